// Package testscopes holds a small catalogue for tests of scopes and its sub-packages, and draws requests for it.
package testscopes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

// Noon is the time of everything in the tests.
var Noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// Scopes has every kind of parameter, authority and rule once.
const Scopes = `scopes:
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

// Policies has a guardrail for each class, and one condition of each kind.
const Policies = `@id("agents-issues")
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

// Load loads a catalogue of two files.
func Load(tb testing.TB, yaml, cedar string) *scopes.Catalogue {
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

// World is the catalogue of Scopes and Policies.
func World(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	return Load(tb, Scopes, Policies)
}

// Subject presents an SVID that lives for an hour, as a token.
func Subject(id string) scopes.Subject {
	return scopes.Subject{ID: spiffeid.RequireFromString(id), Expires: Noon.Add(time.Hour)}
}

// Repo is the parameters of a scope of git.
func Repo(name string) map[string]any { return map[string]any{"repo": name} }

// Replace changes one place of the world, and fails if the text is not there.
func Replace(tb testing.TB, in, old, with string) string {
	tb.Helper()
	if strings.Count(in, old) == 0 {
		tb.Fatalf("the world has no %q", old)
	}
	return strings.Replace(in, old, with, 1)
}

// IDs are sandboxes that some policy tells apart.
var IDs = []string{
	"spiffe://td.example/agents/a", "spiffe://td.example/agents/ab", "spiffe://td.example/agents/a/b",
	"spiffe://td.example/people/b", "spiffe://other.example/agents/a",
}

// DrawSubject draws callers, some of which act for a person.
func DrawSubject(t *rapid.T) scopes.Subject {
	who := scopes.Subject{
		ID:      spiffeid.RequireFromString(rapid.SampledFrom(IDs).Draw(t, "id")),
		Bound:   rapid.Bool().Draw(t, "bound"),
		Proved:  rapid.Bool().Draw(t, "proved"),
		Expires: Noon.Add(time.Duration(rapid.Int64Range(-5, 7200).Draw(t, "rest_ms")) * time.Second / 2),
	}
	if rapid.Bool().Draw(t, "delegated") {
		who.User = &scopes.User{
			ID:     rapid.SampledFrom([]string{"https://idp.example#ann", "https://idp.example#ben"}).Draw(t, "user"),
			Groups: rapid.SampledFrom([][]string{nil, {"dev"}, {"dev", "sre"}}).Draw(t, "groups"),
			Until:  rapid.SampledFrom([]time.Time{{}, Noon, Noon.Add(90 * time.Second), Noon.Add(time.Hour)}).Draw(t, "until"),
		}
	}
	return who
}

// DrawAsk draws well-formed requests, often close to a threshold of some policy.
func DrawAsk(t *rapid.T) scopes.Ask {
	a := scopes.Ask{
		Scope: rapid.SampledFrom([]string{"git.issues.read", "git.issues.write", "git.repo.delete", "pay.refund", "mail.read", "git.issue.read", "no.such"}).Draw(t, "scope"),
		TTL:   time.Duration(rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 1<<33)).Draw(t, "ttl")) * time.Second,
	}
	for _, f := range a.Fields() {
		a.Set(f.Name, rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._:-]{0,10}`).Draw(t, f.Name))
	}
	switch {
	case strings.HasPrefix(a.Scope, "git."):
		a.Params = Repo(rapid.SampledFrom([]string{"acme/api", "acme/secret", "evil/api"}).Draw(t, "repo"))
	case a.Scope == "pay.refund":
		a.Params = map[string]any{
			"cents":    rapid.Int64Range(1, 10000).Draw(t, "cents"),
			"currency": rapid.SampledFrom([]string{"EUR", "USD"}).Draw(t, "currency"),
			"urgent":   rapid.Bool().Draw(t, "urgent"),
		}
	}
	return a
}

// Heads and Conditions are parts of policies that are valid for Scopes.
var (
	Heads = []string{
		`principal, action, resource`,
		`principal in Path::"spiffe://td.example/agents/a", action, resource`,
		`principal == Sandbox::"spiffe://td.example/people/b", action, resource`,
		`principal in TrustDomain::"td.example", action, resource`,
		`principal, action in Action::"git.*", resource`,
		`principal, action in Action::"git.issues.*", resource`,
		`principal, action in [Action::"authority:write", Action::"authority:payment"], resource`,
		`principal, action == Action::"mail.read", resource`,
		`principal, action == Action::"pay.refund", resource`,
		`principal, action, resource == Resource::"git:repo/acme/secret"`,
	}
	Conditions = []string{
		``, ``, `when { context.approved }`, `unless { context.approved }`, `when { context.ttl <= 300 }`, `unless { context.ttl > 61 }`,
		`when { context has user && context.user.groups.contains("sre") }`, `unless { context has user && context.user.id == "https://idp.example#ann" }`,
		`when { context.binding == "mtls" }`, `when { context.binding == "dpop" }`, `when { context.task like "a*" }`, `when { context.params has repo && context.params.repo like "acme/*" }`,
		`when { context.params has cents && context.params.cents < 5000 }`,
		`when { context.ttl * 9223372036854775807 > 0 }`,                     // errs above 1s
		`when { context.approved && context.ttl + 9223372036854775807 > 0 }`, // errs once approved
	}
)

// DrawPolicy draws one policy that is valid for Scopes.
func DrawPolicy(t *rapid.T, effect, id string) string {
	return fmt.Sprintf("@id(%q) %s (%s) %s;\n", id, effect, rapid.SampledFrom(Heads).Draw(t, "head"), rapid.SampledFrom(Conditions).Draw(t, "condition"))
}

// DrawPolicies draws one to six policies.
func DrawPolicies(t *rapid.T) string {
	var b strings.Builder
	for i := range rapid.IntRange(1, 6).Draw(t, "policies") {
		b.WriteString(DrawPolicy(t, rapid.SampledFrom([]string{"permit", "permit", "forbid"}).Draw(t, "effect"), fmt.Sprintf("p%d", i)))
	}
	return b.String()
}

// MustLoad is Load of Scopes in a property.
func MustLoad(t *rapid.T, policies string) *scopes.Catalogue {
	return MustLoadBoth(t, Scopes, policies)
}

// MustLoadBoth is Load in a property.
func MustLoadBoth(t *rapid.T, yaml, cedar string) *scopes.Catalogue {
	c, err := scopes.Load([]scopes.File{{Name: "s.yaml", Data: []byte(yaml)}, {Name: "p.cedar", Data: []byte(cedar)}})
	if err != nil {
		t.Fatalf("loading:\n%s\n%v", cedar, err)
	}
	return c
}

// The credential of the mail scope, and rules for it.
const (
	MailJWT  = "{kind: jwt, audience: https://mail.example, bind: mtls}\n"
	MailRule = "{hosts: [mail.example], methods: [GET], paths: [/in, /out]}"
	PostRule = "{hosts: [mail.example], methods: [POST], paths: [/out]}"
)
