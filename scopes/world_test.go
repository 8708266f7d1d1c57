package scopes_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// noon is the time of everything in these tests.
var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// worldScopes has every kind of parameter, authority and rule once.
const worldScopes = `scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 40}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.example}
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 40}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://git.example}
  - name: git.repo.delete
    title: Delete a repository
    authority: delete
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 40}
    resource: git:repo/{repo}
    ttl: {default: 1m, max: 5m}
    approval: {group: admins, quorum: 2, expires: 1h}
    credential: {kind: jwt, audience: https://git.example}
  - name: pay.refund
    title: Refund
    authority: payment
    params:
      cents: {type: int, min: 1, max: 10000}
      currency: {type: enum, values: [EUR, USD]}
      urgent: {type: bool}
    resource: pay:{currency}/{cents}
    ttl: {default: 2m, max: 10m}
    credential: {kind: jwt, audience: https://pay.example}
  - name: mail.read
    title: Read mail
    authority: read
    resource: mail:all
    ttl: {default: 10m, max: 1h}
    credential: {kind: jwt, audience: https://mail.example, bind: mtls}
`

const worldPolicies = `@id("agents-issues")
permit (principal in Path::"spiffe://td.example/agents", action in Action::"git.issues.*", resource)
when { context.params.repo like "acme/*" };

@id("writes-need-a-person")
forbid (principal, action in Action::"authority:write", resource) unless { context.approved };

@id("secret-repo")
forbid (principal, action, resource == Resource::"git:repo/acme/secret");

@id("small-refunds")
permit (principal, action == Action::"pay.refund", resource)
when { context.params.cents <= 5000 && !context.params.urgent };

@id("short-refunds")
forbid (principal, action == Action::"pay.refund", resource) unless { context.ttl < 300 };

@id("mail")
permit (principal is Sandbox in TrustDomain::"td.example", action == Action::"mail.read", resource);

@id("no-permissions")
forbid (principal, action in Action::"authority:permission", resource);
`

func load(tb testing.TB, yaml, cedar string) *scopes.Catalogue {
	tb.Helper()
	c, err := scopes.Load([]scopes.File{
		{Name: "scopes.yaml", Data: []byte(yaml)},
		{Name: "policies.cedar", Data: []byte(cedar)},
	})
	if err != nil {
		tb.Fatalf("loading the catalogue:\n%v", err)
	}
	return c
}

func world(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	return load(tb, worldScopes, worldPolicies)
}

// example is the catalogue that we ship.
func example(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	c, err := scopes.LoadFS(os.DirFS("../examples/catalog"))
	if err != nil {
		tb.Fatalf("loading the example catalogue:\n%v", err)
	}
	return c
}

func subject(id string) scopes.Subject {
	return scopes.Subject{ID: spiffeid.RequireFromString(id), Expires: noon.Add(time.Hour)}
}

func boundSubject(id string) scopes.Subject {
	s := subject(id)
	s.Bound = true
	return s
}

func repo(name string) map[string]any { return map[string]any{"repo": name} }

// replace changes one place of the world, and fails if the text is not there.
func replace(tb testing.TB, in, old, with string) string {
	tb.Helper()
	if strings.Count(in, old) == 0 {
		tb.Fatalf("the world has no %q", old)
	}
	return strings.Replace(in, old, with, 1)
}
