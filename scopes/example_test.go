package scopes_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The catalogue that we ship passes its own examples.
func TestShippedExamplesPass(t *testing.T) {
	examples, err := scopes.ReadExamplesFS(os.DirFS("../examples/catalog"))
	if err != nil {
		t.Fatal(err)
	}
	if len(examples) < 12 {
		t.Errorf("got %d examples, want a dozen", len(examples))
	}
	for _, result := range example(t).Check(examples) {
		for _, failure := range result.Failures {
			t.Errorf("%s:%d: %s: %s", result.Example.File, result.Example.Line, result.Example.Name, failure)
		}
	}
}

func examplesOf(t *testing.T, yaml string) []scopes.Example {
	t.Helper()
	examples, err := scopes.ReadExamples([]scopes.File{file("a.test.yaml", yaml)})
	if err != nil {
		t.Fatal(err)
	}
	return examples
}

func TestExamplesAreRead(t *testing.T) {
	got := examplesOf(t, `examples:
  - name: all of it
    as: spiffe://td.example/agents/a
    svid: jwt
    scope: pay.refund
    params: {cents: 5, currency: EUR, urgent: false}
    ttl: 90s
    task: t-1
    user: {id: https://idp.example#ann, groups: [sre]}
    approved: true
    at: 2030-01-01T12:00:00Z
    want: {outcome: deny, reason: forbidden, ttl: 2m, policies: [b, a], narrowest: mail.read}
  - {name: little, as: spiffe://td.example/a, scope: mail.read, want: allow}
`)
	want := []scopes.Example{
		{
			Name: "all of it", File: "a.test.yaml", Line: 2, As: spiffeid.RequireFromString("spiffe://td.example/agents/a"),
			Ask: scopes.Ask{
				Scope: "pay.refund", Params: map[string]any{"cents": int64(5), "currency": "EUR", "urgent": false},
				TTL: 90 * time.Second, RequestContext: scopes.RequestContext{Task: "t-1"},
			},
			User: &scopes.User{ID: "https://idp.example#ann", Groups: []string{"sre"}}, Approved: true, At: noon,
			Want: scopes.Expectation{Outcome: scopes.Deny, Reason: "forbidden", TTL: 2 * time.Minute, Policies: []string{"a", "b"}, Narrowest: "mail.read"},
		},
		{
			Name: "little", File: "a.test.yaml", Line: 13, As: spiffeid.RequireFromString("spiffe://td.example/a"), Bound: true,
			Ask:  scopes.Ask{Scope: "mail.read", Params: map[string]any{}, RequestContext: scopes.RequestContext{Task: "example"}},
			Want: scopes.Expectation{Outcome: scopes.Allow},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(scopes.Example{}, "At"), cmp.Comparer(func(a, b spiffeid.ID) bool { return a == b })); diff != "" {
		t.Errorf("examples (-want +got):\n%s", diff)
	}
	if !got[0].At.Equal(noon) || got[1].At.IsZero() {
		t.Errorf("got %s and %s, want noon and some time", got[0].At, got[1].At)
	}
}

// Each kind of mistake, with its position and the advice to correct it.
func TestReadExamplesRefuses(t *testing.T) {
	var names []string
	for _, f := range (scopes.RequestContext{}).Fields() {
		names = append(names, f.Name)
	}
	stated := strings.Join(names, ", ")
	const good = "examples:\n  - name: one\n    as: spiffe://td.example/a\n    scope: mail.read\n    want: allow\n"
	for _, tc := range []struct{ name, old, with, want string }{
		{"key of a scope file", "examples:", "scopes:", "a.test.yaml:1: examples is missing; list the examples under it\na.test.yaml:1: file: unknown key \"scopes\"; the keys are examples"},
		{"nothing", good, "", "a.test.yaml: not valid YAML: the file is empty; begin it with examples:"},
		{"empty name", "name: one", "name: ' '", "a.test.yaml:2: example: name must be 1 to 200 bytes of text"},
		{"unknown key", "want: allow", "want: allow\n    expect: allow", `a.test.yaml:6: example: unknown key "expect"; the keys are name, as, svid, scope, params, ttl, ` + stated + `, user, approved, at, want`},
		{"no want", "    want: allow\n", "", "a.test.yaml:2: example: want is missing"},
		{"outcome", "want: allow", "want: alow", `a.test.yaml:5: example "one": want "alow" is unknown; choose allow, deny, pending or invalid`},
		{"empty want", "want: allow", "want: {ttl: 5m}", `a.test.yaml:5: example "one": want needs an outcome, such as {outcome: deny, reason: no_permit}`},
		{"key of want", "want: allow", "want: {outcome: deny, code: no_permit}", `a.test.yaml:5: example "one": want: unknown key "code"; the keys are outcome, reason, ttl, policies, narrowest`},
		{"policies that are no list", "want: allow", "want: {outcome: deny, policies: a}", `a.test.yaml:5: example "one": want.policies must be a list`},
		{"SPIFFE ID", "spiffe://td.example/a", "td.example/a", `a.test.yaml:3: example "one": as "td.example/a" is not a SPIFFE ID with a path, such as spiffe://acme.example/research/r-1`},
		{"trust domain alone", "spiffe://td.example/a", "spiffe://td.example", `a.test.yaml:3: example "one": as "spiffe://td.example" is not a SPIFFE ID with a path, such as spiffe://acme.example/research/r-1`},
		{"SVID", "want: allow", "svid: x.509\n    want: allow", `a.test.yaml:5: example "one": svid "x.509" is unknown; choose x509 or jwt`},
		{"list for a parameter", "want: allow", "params: {repo: [a]}\n    want: allow", `a.test.yaml:5: example "one": params.repo must be text, a whole number, true or false`},
		{"fraction for a parameter", "want: allow", "params: {n: 1.5}\n    want: allow", `a.test.yaml:5: example "one": params.n must be text, a whole number, true or false`},
		{"number for a TTL", "want: allow", "ttl: 300\n    want: allow", `a.test.yaml:5: example "one": ttl must be whole seconds from 1s to 24h, such as 90s or 5m`},
		{"day for a time", "want: allow", "at: 2030-01-01\n    want: allow", `a.test.yaml:5: example "one": at must be a time such as 2030-01-01T12:00:00Z`},
		{"word for a truth", "want: allow", "approved: maybe\n    want: allow", `a.test.yaml:5: example "one": approved must be true or false`},
		{"the same name", "    want: allow\n", "    want: allow\n" + strings.TrimPrefix(good, "examples:\n"), `a.test.yaml:6: example "one" is defined twice; the first is at a.test.yaml:2`},
		{
			"the same name three times", "    want: allow\n", "    want: allow\n" + strings.Repeat(strings.TrimPrefix(good, "examples:\n"), 2),
			`a.test.yaml:6: example "one" is defined twice; the first is at a.test.yaml:2` + "\n" +
				`a.test.yaml:10: example "one" is defined twice; the first is at a.test.yaml:2`,
		},
		{"alias", "name: one", "name: &n one", "a.test.yaml:2: anchors and aliases are not allowed; write the value out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := scopes.ReadExamples([]scopes.File{file("a.test.yaml", replace(t, good, tc.old, tc.with))})
			var problems scopes.Problems
			if !errors.As(err, &problems) || got != nil {
				t.Fatalf("got %v and %v, want Problems alone", got, err)
			}
			if diff := cmp.Diff(sortedLines(tc.want), sortedLines(err.Error())); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// Check compares every part of the expectation with the result.
func TestCheckSaysWhatDiffers(t *testing.T) {
	const head = "examples:\n  - name: one\n    as: spiffe://td.example/agents/a\n    scope: git.issues.write\n"
	for _, tc := range []struct {
		name, rest string
		want       []string
	}{
		{"as wanted", "    params: {repo: acme/api}\n    want: {outcome: pending, policies: [agents-issues, writes-need-a-person]}\n", nil},
		{"outcome", "    params: {repo: acme/api}\n    want: allow\n", []string{"outcome: got pending, want allow"}},
		{
			"everything", "    params: {repo: acme/api}\n    ttl: 20m\n    want: {outcome: deny, reason: forbidden, ttl: 20m, policies: [], narrowest: mail.read}\n",
			[]string{
				"outcome: got pending, want deny", "reason: got approval_required, want forbidden", "ttl: got 15m, want 20m",
				"policies: got agents-issues, writes-need-a-person, want -", "narrowest: got none, want mail.read",
			},
		},
		{"approved", "    params: {repo: acme/api}\n    approved: true\n    want: {outcome: allow, reason: approved}\n", nil},
		{"refused", "    params: {repo: '../..'}\n    want: {outcome: deny, reason: no_permit}\n", []string{"outcome: got invalid, want deny", "reason: got -, want no_permit"}},
		{"refused as wanted", "    params: {repo: '../..'}\n    want: invalid\n", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			results := world(t).Check(examplesOf(t, head+tc.rest))
			if len(results) != 1 || !slices.Equal(results[0].Failures, tc.want) || results[0].Why == "" {
				t.Errorf("got %+v, want failures %q and why", results, tc.want)
			}
		})
	}
}

// Examples are stored beside the catalogue, but are not part of it.
func TestExamplesAreNoPartOfTheCatalogue(t *testing.T) {
	files := fstest.MapFS{"s.yaml": {Data: []byte(worldScopes)}, "p.cedar": {Data: []byte(worldPolicies)}}
	before, err := scopes.LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.test.yaml", "team/b.test.yml"} {
		files[name] = &fstest.MapFile{Data: []byte("examples:\n  - {name: " + name + ", as: spiffe://td.example/a, scope: mail.read, want: allow}\n")}
	}
	after, err := scopes.LoadFS(files)
	if err != nil || after.Digest() != before.Digest() {
		t.Errorf("got %v and %v, want the digest as it was", after, err)
	}
	examples, err := scopes.ReadExamplesFS(files)
	if err != nil || len(examples) != 2 || examples[0].Name != "a.test.yaml" || examples[1].Name != "team/b.test.yml" {
		t.Errorf("got %v and %v, want two examples", examples, err)
	}
	got := refusal(t, file("s.yaml", worldScopes), file("p.cedar", worldPolicies), file("a.test.yaml", "examples: []"))
	if want := "a.test.yaml: is an example table, which is not part of a catalogue; leave it out"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Assess decides as Decide would with a suitable key, and never returns the request for Vault.
func TestAssessAssumesASuitableKey(t *testing.T) {
	c := load(t, worldScopes+`  - name: web.certificate.issue
    title: Issue
    authority: write
    params:
      service: {type: string, pattern: '[a-z.]+'}
    resource: service:{service}
    ttl: {default: 5m, max: 15m}
    credential: {kind: pki, mount: pki, role: web, common_name: '{service}.td.example'}
  - name: web.shell.open
    title: Log in
    authority: write
    resource: host:web
    ttl: {default: 5m, max: 15m}
    credential: {kind: ssh, mount: ssh, role: web, principals: [deploy]}
`, `@id("web") permit (principal, action in Action::"web.*", resource) when { context.ttl <= 600 };`)
	who := subject("spiffe://td.example/a")
	for _, scope := range []string{"web.certificate.issue", "web.shell.open"} {
		params := map[string]any{}
		if scope == "web.certificate.issue" {
			params["service"] = "shop"
		}
		ask := scopes.Ask{Scope: scope, Params: params, RequestContext: scopes.RequestContext{Task: "t"}, TTL: 10 * time.Minute}
		var invalid *scopes.InvalidAsk
		if _, err := c.Decide(who, ask, noon); !errors.As(err, &invalid) {
			t.Fatalf("%s: got %v from Decide, want it to ask for the key", scope, err)
		}
		d, err := c.Assess(who, ask, noon)
		if err != nil || d.Outcome != scopes.Allow || d.TTL != 10*time.Minute || d.Grant != nil {
			t.Errorf("%s: got %+v and %v, want it allowed without a grant", scope, d, err)
		}
		ask.TTL = 0
		ask.CSR, ask.PublicKey = "not a key", "nor this"
		if d, err = c.Assess(who, ask, noon); err != nil || d.Outcome != scopes.Allow {
			t.Errorf("%s: got %+v and %v, want keys left out of it", scope, d, err)
		}
		ask.TTL = 11 * time.Minute
		d, err = c.Assess(who, ask, noon)
		if err != nil || d.Outcome != scopes.Deny || d.Narrowest == nil || d.Narrowest.Scope != scope || d.Narrowest.TTL != 10*time.Minute {
			t.Errorf("%s: got %+v and %v, want it denied with a shorter one as hint", scope, d, err)
		}
	}
	// A name that would be refused is found without the key.
	bad := scopes.Ask{Scope: "web.certificate.issue", Params: map[string]any{"service": "shop..x"}, RequestContext: scopes.RequestContext{Task: "t"}}
	if d, err := c.Assess(who, bad, noon); err == nil {
		t.Errorf("got %+v, want the name refused", d)
	}
	// A hint does not propose a scope that needs a key which the caller never had.
	d, err := c.Assess(who, scopes.Ask{Scope: "web.shells", RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil || d.Outcome != scopes.Deny || d.Narrowest != nil {
		t.Errorf("got %+v and %v, want no hint", d, err)
	}
}

// If there is nothing to certify, Assess and Decide differ only in the grant.
func TestAssessAgreesWithDecide(t *testing.T) {
	c := world(t)
	for _, ask := range []scopes.Ask{
		{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}, TTL: time.Hour},
		{Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
		{Scope: "git.issues.write", Params: repo("evil/api"), RequestContext: scopes.RequestContext{Task: "t"}},
		{Scope: "git.issues.red", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
	} {
		who := subject("spiffe://td.example/agents/a")
		want, errDecide := c.Decide(who, ask, noon)
		got, err := c.Assess(who, ask, noon)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(scopes.Decision{}, "Grant")); diff != "" || err != nil || errDecide != nil {
			t.Errorf("%s: (-Decide +Assess), %v and %v:\n%s", ask.Scope, errDecide, err, diff)
		}
		want, _ = c.DecideApproved(who, ask, noon)
		if got, _ = c.AssessApproved(who, ask, noon); cmp.Diff(want, got, cmpopts.IgnoreFields(scopes.Decision{}, "Grant")) != "" {
			t.Errorf("%s: got %+v, want %+v once approved", ask.Scope, got, want)
		}
	}
}
