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

// federated is a catalogue with one scope that has this federation block.
func federated(block string) []scopes.File {
	return oneScope("{kind: jwt, audience: sts.amazonaws.com, federation: " + block + "}")
}

func TestFederationIsRead(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	for _, tt := range []struct {
		block string
		want  scopes.Federation
	}{
		{"{subject: 'repo:{path}:{env}', algorithm: ES256}", scopes.Federation{Subject: "repo:{path}:{env}", Algorithm: scopes.AlgorithmES256}},
		{"{subject: 'agent:{name}'}", scopes.Federation{Subject: "agent:{name}", Algorithm: scopes.AlgorithmRS256}},
		{"{subject: 'agent:{n}/{yes}@acme'}", scopes.Federation{Subject: "agent:{n}/{yes}@acme", Algorithm: scopes.AlgorithmRS256}},
	} {
		c, err := scopes.Load(federated(tt.block))
		if err != nil {
			t.Errorf("%s: %v", tt.block, err)
			continue
		}
		if err := asEditor(schema, string(federated(tt.block)[0].Data)); err != nil {
			t.Errorf("%s: the schema for editors refuses it: %v", tt.block, err)
		}
		s, _ := c.Scope("one.scope")
		want := scopes.Credential{Kind: scopes.KindJWT, Audience: "sts.amazonaws.com", Bind: scopes.BindNone, Federation: tt.want}
		if diff := cmp.Diff(want, s.Credential); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.block, diff)
		}
		if s.Credential.AccessToken() || !s.Credential.Federated() {
			t.Errorf("%s: it counts as an access token", tt.block)
		}
		if got, want := s.Credential.Summary(), "jwt sts.amazonaws.com as "+tt.want.Subject+" (federation)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestScopesSchemaRefusesFederations(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	for _, block := range []string{"{}", "{subject: 7}", "{subject: 'a:b', sub: c}", "{subject: 'a:b', algorithm: EdDSA}", "{subject: 'a:*'}", "{subject: '{name}'}"} {
		if err := asEditor(schema, string(federated(block)[0].Data)); err == nil {
			t.Errorf("the schema accepts %s", block)
		}
	}
}

// Clouds choose audiences that are no absolute URIs. Only a scope with federation may have one.
func TestFederationAcceptsAudiencesOfClouds(t *testing.T) {
	for _, audience := range []string{
		"sts.amazonaws.com", "api://AzureADTokenExchange",
		"//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/brevet",
	} {
		if _, err := scopes.Load(oneScope("{kind: jwt, audience: '" + audience + "', federation: {subject: 'a:b'}}")); err != nil {
			t.Errorf("%s: %v", audience, err)
		}
	}
	if _, err := scopes.Load(oneScope("{kind: jwt, audience: sts.amazonaws.com}")); err == nil {
		t.Error("a scope without federation has an audience that is no absolute URI")
	}
}

func TestLoadRefusesFederations(t *testing.T) {
	const (
		example = "such as {subject: 'repo:{repo}:task', algorithm: RS256}"
		head    = " must begin with a kind and a colon, such as repo:{repo}:task"
		chars   = " may contain only {param} and letters, digits and : / . _ @ -"
	)
	for block, want := range map[string]string{
		"{}":                                        "credential.federation needs a subject, " + example,
		"{algorithm: RS256}":                        "credential.federation needs a subject, " + example,
		"aws":                                       "credential.federation must be a mapping (key: value)",
		"{subject: a:b, sub: c}":                    `credential.federation: unknown key "sub"`,
		"{subject: [a]}":                            "credential.federation.subject must be text",
		"{subject: ''}":                             `credential.federation.subject ""` + head,
		"{subject: '{name}'}":                       `credential.federation.subject "{name}"` + head,
		"{subject: 'repo:*'}":                       `credential.federation.subject "repo:*"` + chars,
		"{subject: 'repo:?'}":                       `credential.federation.subject "repo:?"` + chars,
		"{subject: 'repo:ä'}":                       `credential.federation.subject "repo:ä"` + chars,
		"{subject: 'a:${name}'}":                    `credential.federation.subject "a:${name}"` + chars,
		"{subject: \"a:b\\n\"}":                     `credential.federation.subject "a:b\n"` + chars,
		"{subject: 'repo:{who}'}":                   "credential.federation.subject names {who}, which is not in params (env, few, free, n, name, path, yes)",
		"{subject: 'a:{env}{n}'}":                   `credential.federation.subject "a:{env}{n}" has {env}{n} with nothing between them; put a separator between them`,
		"{subject: 'a:{free}:b'}":                   "credential.federation.subject has {free}, whose pattern could match a :; write one that cannot, such as [a-z0-9-]+",
		"{subject: 'a:b/../c'}":                     `credential.federation.subject "a:b/../c" has a . or .. segment; remove it`,
		"{subject: 'spiffe://acme.example/{name}'}": "is a SPIFFE ID, which only access tokens have as subject",
		"{subject: 'a:" + strings.Repeat("b", 254) + "'}":       "is longer than 255 bytes",
		"{subject: a:b, algorithm: EdDSA}":                      `credential.federation.algorithm "EdDSA" is unknown; choose RS256 or ES256`,
		"{subject: a:b, algorithm: none}":                       `credential.federation.algorithm "none" is unknown; choose RS256 or ES256`,
		"{subject: a:b}, bind: dpop":                            "credential.bind cannot be used with federation: the other system does not check it",
		"{subject: a:b}, algorithm: ES256":                      "credential.algorithm cannot be used with federation: set credential.federation.algorithm",
		"{subject: a:b}, uses: 1":                               "credential.uses cannot be used with federation: the other system does not check it",
		"{subject: a:b}, status_list: true":                     "credential.status_list cannot be used with federation: the other system does not check it",
		"{subject: a:b}, within_svid: true":                     `unknown key "within_svid"`,
		"{subject: 'a:{env}'}, mount: a":                        `unknown key "mount"`,
		"{subject: 'sub:{env}', algorithm: RS256, issuer: 'a'}": `unknown key "issuer"`,
	} {
		_, err := scopes.Load(federated(block))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", block, err, want)
		}
	}
	_, err := scopes.Load(federated("{subject: 'a:b'}}\n    egress: [{hosts: [api.example], methods: [GET], paths: ['/'], send: {as: bearer}}]\n    #"))
	if err == nil || !strings.Contains(err.Error(), "egress with federation requires credential.federation.exchange, by which the gateway exchanges the token, such as {as: aws,") {
		t.Errorf("egress: got %v", err)
	}
	for _, audience := range []string{"", "a b", "a#b", "ä", "a\\x00", strings.Repeat("a", 501)} {
		_, err := scopes.Load(oneScope(`{kind: jwt, audience: "` + audience + `", federation: {subject: 'a:b'}}`))
		if err == nil || !strings.Contains(err.Error(), "credential.audience") {
			t.Errorf("audience %q: got %v", audience, err)
		}
	}
}

// No value can move a request into the subject of another one: no value contains the separator, and no subject is a SPIFFE ID.
func TestFederatedSubjectKeepsValuesInTheirPlace(t *testing.T) {
	files := []scopes.File{file("s.yaml", `scopes:
  - name: one.scope
    title: One
    authority: read
    params:
      repo: {type: string, pattern: '[A-Za-z0-9._/@-]+'}
      env: {type: string, pattern: '[a-z]+'}
    resource: one:{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'repo:{repo}:env:{env}'}}
`), file("p.cedar", permitAll)}
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	who := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://td.example/a"), Expires: testscopes.Noon.AddDate(1, 0, 0), Bound: true}
	decide := func(repo string) (scopes.Decision, error) {
		return c.Decide(who, scopes.Ask{Scope: "one.scope", Params: map[string]any{"repo": repo, "env": "prod"}, RequestContext: scopes.RequestContext{Task: "t"}}, testscopes.Noon)
	}
	d, err := decide("acme/api")
	if err != nil || d.FederatedSubject != "repo:acme/api:env:prod" {
		t.Errorf("got %q, %v", d.FederatedSubject, err)
	}
	for _, repo := range []string{
		"acme/api:env:prod", "a:b", ":", "acme/*", "acme/?", "", "a b", "a\nb", "../x", "a//b", "ä", "аcme", "{env}", "${env}", "a%3Ab", "a\x00",
		strings.Repeat("a", 200) + "/" + strings.Repeat("b", 60),
	} {
		var bad *scopes.InvalidAsk
		if d, err := decide(repo); !errors.As(err, &bad) {
			t.Errorf("%q: got %q, %v, want an invalid request", repo, d.FederatedSubject, err)
		}
	}
	// The longest value that a parameter may have leaves room for the rest, or the request is invalid.
	if _, err := decide(strings.Repeat("a", 200)); err != nil {
		t.Errorf("200 bytes: %v", err)
	}
}
