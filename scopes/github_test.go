package scopes_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const installation = "{kind: github, app: acme, installation: 7, repositories: ['acme/{name}', acme/docs], permissions: {issues: read, contents: write}}"

func TestInstallationTokenIsRead(t *testing.T) {
	c, err := scopes.Load(oneScope(installation))
	if err != nil {
		t.Fatal(err)
	}
	if err := asEditor(compiled(t, scopes.ScopesSchema()), string(oneScope(installation)[0].Data)); err != nil {
		t.Errorf("the schema for editors refuses it: %v", err)
	}
	s, _ := c.Scope("one.scope")
	want := scopes.Credential{
		Kind: scopes.KindGitHub, App: "acme", Installation: 7, Repositories: []string{"acme/{name}", "acme/docs"},
		Permissions: map[string]string{"issues": "read", "contents": "write"},
	}
	if diff := cmp.Diff(want, s.Credential); diff != "" {
		t.Errorf("credential (-want +got):\n%s", diff)
	}
	if got := s.Credential.Summary(); got != "github acme/{name}, acme/docs contents=write,issues=read" {
		t.Errorf("got %q", got)
	}
	if !c.NeedsGitHub() || !s.Credential.Leased() {
		t.Error("got a catalogue that needs no engines for GitHub, or a credential that Brevet cannot end")
	}
}

func TestInvalidInstallationTokensAreRefused(t *testing.T) {
	const repositories, permissions = "repositories: [acme/site]", "permissions: {issues: read}"
	for credential, want := range map[string]string{
		"{kind: github, app: acme, installation: 7, " + repositories + "}":                                                                      "credential of kind github: permissions is missing",
		"{kind: github, app: acme, installation: 7, " + permissions + "}":                                                                       "credential of kind github: repositories is missing",
		"{kind: github, app: acme, " + repositories + ", " + permissions + "}":                                                                  "credential of kind github: installation is missing",
		"{kind: github, app: Acme, installation: 7, " + repositories + ", " + permissions + "}":                                                 `credential.app "Acme" must be the name of an App`,
		"{kind: github, app: a/b, installation: 7, " + repositories + ", " + permissions + "}":                                                  `credential.app "a/b" must be the name of an App`,
		"{kind: github, app: '{name}', installation: 7, " + repositories + ", " + permissions + "}":                                             `credential.app "{name}" must be the name of an App`,
		"{kind: github, app: acme, installation: 0, " + repositories + ", " + permissions + "}":                                                 "credential.installation must be",
		"{kind: github, app: acme, installation: '{n}', " + repositories + ", " + permissions + "}":                                             "credential.installation must be",
		"{kind: github, app: acme, installation: 7, repositories: [], " + permissions + "}":                                                     "credential.repositories",
		"{kind: github, app: acme, installation: 7, repositories: [site], " + permissions + "}":                                                 "is not the full name of a repository",
		"{kind: github, app: acme, installation: 7, repositories: [acme/site.git], " + permissions + "}":                                        "is not the full name of a repository",
		"{kind: github, app: acme, installation: 7, repositories: ['acme/*'], " + permissions + "}":                                             "may contain only {param} and letters, digits and / . _ -",
		"{kind: github, app: acme, installation: 7, repositories: ['acme/..'], " + permissions + "}":                                            "is not the full name of a repository",
		"{kind: github, app: acme, installation: 7, " + repositories + ", permissions: {}}":                                                     "credential.permissions must have 1 to 50 permissions",
		"{kind: github, app: acme, installation: 7, " + repositories + ", permissions: {issues: all}}":                                          "is not read, write or admin",
		"{kind: github, app: acme, installation: 7, " + repositories + ", permissions: {Issues: read}}":                                         "must be the name of a permission of GitHub Apps",
		"{kind: github, app: acme, installation: 7, " + repositories + ", permissions: {issues: '{env}'}}":                                      "whose value dev cannot be part of a permission",
		"{kind: github, app: acme, installation: 7, " + repositories + ", " + permissions + ", mount: x}":                                       `unknown key "mount"`,
		"{kind: kv, path: brevet-github-tokens/x}":                                                                                              "is below brevet-github-tokens/, which only credentials of kind github use",
		"{kind: vault, method: write, path: brevet-github/sign/acme, data: {input: x}}":                                                         "is below brevet-github/, which only credentials of kind github use",
		"{kind: vault-token, policy: [{path: brevet-github-tokens/*, capabilities: [read]}]}":                                                   "is below brevet-github-tokens/, which only credentials of kind github use",
		"{kind: database, mount: brevet-github, role: x}":                                                                                       "is below brevet-github/, which only credentials of kind github use",
		installation + "\n    egress: [{hosts: [api.github.com], methods: [GET], paths: [/a], send: {as: query, name: t, field: permissions}}]": `send.field "permissions" is not a member`,
	} {
		_, err := scopes.Load(oneScope(credential))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", credential, err, want)
		}
	}
	files := oneScope(installation)
	files[0].Data = []byte(strings.Replace(string(files[0].Data), "max: 15m", "max: 61m", 1))
	if _, err := scopes.Load(files); err == nil || !strings.Contains(err.Error(), "ttl.max (1h1m) is longer than 1h") {
		t.Errorf("a TTL above an hour: got %v", err)
	}
}

// An installation token names exactly what the request may reach, and no value adds a repository or a permission.
func TestInstallationTokenGrantsWhatTheScopeNames(t *testing.T) {
	c, err := scopes.Load([]scopes.File{file("s.yaml", `scopes:
  - name: one.scope
    title: One
    authority: read
    params:
      repo: {type: string, pattern: '.*'}
      level: {type: enum, values: [read, write]}
    resource: one:repo
    ttl: {default: 5m, max: 15m}
    credential: {kind: github, app: acme, installation: 7, repositories: ['{repo}', acme/docs], permissions: {issues: '{level}', contents: read}}
    egress: [{hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/**']}]
`), file("p.cedar", permitAll)})
	if err != nil {
		t.Fatal(err)
	}
	who := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://td.example/a"), Expires: testscopes.Noon.AddDate(1, 0, 0), Bound: true}
	decide := func(repo string) (scopes.Decision, error) {
		return c.Decide(who, scopes.Ask{Scope: "one.scope", Params: map[string]any{"repo": repo, "level": "write"}, RequestContext: scopes.RequestContext{Task: "t"}}, testscopes.Noon)
	}
	d, err := decide("acme/site")
	if err != nil {
		t.Fatal(err)
	}
	want := &scopes.Grant{
		Policy: policyOf(t, c, "one.scope", "brevet-github/sign/acme/sha2-256"), Method: "write", Path: "brevet-github/sign/acme/sha2-256", Leased: true,
		Data: map[string]string{"app": "acme", "installation": "7", "repositories": "acme/site,acme/docs", "permissions": "contents=read,issues=write"},
	}
	if diff := cmp.Diff(want, d.Grant); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	for _, repo := range []string{"site", "acme", "acme/", "/site", "acme/site,acme/other", "acme/a/b", "acme/.", "evil/site", "acme/site.git", "acme/s*", "acme /site", "x", "", "acme/Site", "ACME/site"} {
		if d, err := decide(repo); err == nil {
			t.Errorf("%q: got %v", repo, d.Grant)
		} else if _, invalid := errors.AsType[*scopes.InvalidAsk](err); !invalid {
			t.Errorf("%q: got %v, want an invalid request", repo, err)
		}
	}
}
