package scopes_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func refund(cents int64, urgent bool) map[string]any {
	return map[string]any{"cents": cents, "currency": "EUR", "urgent": urgent}
}

// TestDecide decides examples. Some reach a bound of the TTL (I3).
func TestDecide(t *testing.T) {
	agent, other := "spiffe://td.example/agents/a", "spiffe://td.example/people/b"
	oncall := &scopes.Approval{Group: "oncall", Quorum: 1, Expires: 10 * time.Minute, Remember: scopes.RememberNever, Passkey: scopes.PasskeyNever}
	tests := []struct {
		name string
		who  scopes.Subject
		ask  scopes.Ask
		want scopes.Decision // without Scope, Params and Catalogue
	}{
		{
			name: "permitted", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api")},
			want: scopes.Decision{
				Outcome: scopes.Allow, Reason: "permitted", Resource: "git:repo/acme/api", TTL: 5 * time.Minute,
				Policies: []string{"agents-issues"}, Explanation: "Permitted by agents-issues.",
			},
		},
		{
			name: "no permit", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.read", Params: repo("evil/api")},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "no_permit", Resource: "git:repo/evil/api", TTL: 5 * time.Minute,
				Explanation: "No policy permits git.issues.read on git:repo/evil/api for this sandbox. A condition does not hold in: agents-issues (params.repo).",
				NearMisses:  []scopes.NearMiss{{Policy: "agents-issues", Fields: []string{"params.repo"}, Failed: `when { context.params.repo like "acme/*" }`, Told: true}},
			},
		},
		{
			name: "forbid wins over permit (H65)", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.read", Params: repo("acme/secret")},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "forbidden", Resource: "git:repo/acme/secret", TTL: 5 * time.Minute,
				Policies: []string{"secret-repo"}, Explanation: "Forbidden by secret-repo.",
			},
		},
		{
			name: "forbid that an approval does not lift", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.write", Params: repo("acme/secret")},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "forbidden", Resource: "git:repo/acme/secret", TTL: 5 * time.Minute,
				Policies: []string{"secret-repo"}, Explanation: "Forbidden by secret-repo.",
			},
		},
		{
			name: "pending", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), TTL: time.Minute},
			want: scopes.Decision{
				Outcome: scopes.Pending, Reason: "approval_required", Resource: "git:repo/acme/api", TTL: time.Minute,
				Policies: []string{"agents-issues", "writes-need-a-person"}, Approval: oncall,
				Explanation: "1 person of the group oncall must approve within 10m (agents-issues, writes-need-a-person).",
			},
		},
		{
			name: "an approval rule alone gives nothing", who: subject(agent),
			ask: scopes.Ask{Scope: "git.repo.delete", Params: repo("acme/api")},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "no_permit", Resource: "git:repo/acme/api", TTL: time.Minute,
				Explanation: "No policy permits git.repo.delete on git:repo/acme/api for this sandbox. You could request git.issues.write with repo=acme/api, which requires approval.",
				Narrowest:   &scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
			},
		},
		{
			name: "unknown scope", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issue.read", Params: repo("acme/api")},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "unknown_scope",
				Explanation: "The scope git.issue.read does not exist. You could request git.issues.read with repo=acme/api.",
				Narrowest:   &scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}},
			},
		},
		{
			name: "unknown scope that is near only to what is not permitted", who: subject(other),
			ask:  scopes.Ask{Scope: "git.issue.read", Params: repo("acme/api")},
			want: scopes.Decision{Outcome: scopes.Deny, Reason: "unknown_scope", Explanation: "The scope git.issue.read does not exist."},
		},
		{
			name: "TTL over the maximum (H61)", who: subject(agent),
			ask: scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), TTL: 1000 * time.Hour},
			want: scopes.Decision{
				Outcome: scopes.Allow, Reason: "permitted", Resource: "git:repo/acme/api", TTL: 15 * time.Minute,
				Clamps: []scopes.Clamp{{Bound: "scope.max", From: 1000 * time.Hour, To: 15 * time.Minute}}, Policies: []string{"agents-issues"},
				Explanation: "Permitted by agents-issues. The TTL was reduced from 1000h to 15m, the maximum of this scope.",
			},
		},
		{
			name: "a shorter TTL would pass", who: subject(agent),
			ask: scopes.Ask{Scope: "pay.refund", Params: refund(100, false), TTL: 10 * time.Minute},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "forbidden", Resource: "pay:EUR/100", TTL: 10 * time.Minute, Policies: []string{"short-refunds"},
				Explanation: "Forbidden by short-refunds. You could request pay.refund with ttl=4m59s.",
				Narrowest:   &scopes.Ask{Scope: "pay.refund", Params: refund(100, false), TTL: 299 * time.Second, RequestContext: scopes.RequestContext{Task: "t"}},
			},
		},
		{
			name: "a smaller amount would pass", who: subject(other),
			ask: scopes.Ask{Scope: "pay.refund", Params: refund(9000, false)},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "no_permit", Resource: "pay:EUR/9000", TTL: 2 * time.Minute,
				Explanation: "No policy permits pay.refund on pay:EUR/9000 for this sandbox. A condition does not hold in: small-refunds (params.cents, params.urgent). You could request pay.refund with cents=5000.",
				NearMisses:  []scopes.NearMiss{{Policy: "small-refunds", Fields: []string{"params.cents", "params.urgent"}, Failed: "when { context.params.cents <= 5000 }", Told: true}},
				Narrowest:   &scopes.Ask{Scope: "pay.refund", Params: refund(5000, false), RequestContext: scopes.RequestContext{Task: "t"}},
			},
		},
		{
			name: "nothing near would pass", who: subject(other),
			ask: scopes.Ask{Scope: "pay.refund", Params: refund(100, true)},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "no_permit", Resource: "pay:EUR/100", TTL: 2 * time.Minute,
				Explanation: "No policy permits pay.refund on pay:EUR/100 for this sandbox. A condition does not hold in: small-refunds (params.cents, params.urgent).",
				NearMisses:  []scopes.NearMiss{{Policy: "small-refunds", Fields: []string{"params.cents", "params.urgent"}, Failed: "when { !context.params.urgent }", Told: true}},
			},
		},
		{
			name: "bound, cut to the SVID's rest", who: boundFor(other, 90*time.Second+999*time.Millisecond),
			ask: scopes.Ask{Scope: "mail.read", TTL: 2 * time.Hour},
			want: scopes.Decision{
				Outcome: scopes.Allow, Reason: "permitted", Resource: "mail:all", TTL: 90 * time.Second, Policies: []string{"mail"},
				Clamps: []scopes.Clamp{
					{Bound: "scope.max", From: 2 * time.Hour, To: time.Hour},
					{Bound: "svid.expires", From: time.Hour, To: 90 * time.Second},
				},
				Explanation: "Permitted by mail. The TTL was reduced from 2h to 1h, the maximum of this scope. The TTL was reduced from 1h to 1m30s, the remaining lifetime of the SVID.",
			},
		},
		{
			name: "bound scope without mTLS", who: subject(other),
			ask: scopes.Ask{Scope: "mail.read"},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "binding_required", Resource: "mail:all", TTL: 10 * time.Minute, Policies: []string{"mail"},
				Explanation: "This scope binds its credential to an X.509-SVID; present one over mTLS and try again.",
			},
		},
		{
			name: "bound scope without mTLS and without a permit", who: subject("spiffe://other.example/a"),
			ask: scopes.Ask{Scope: "mail.read"},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "no_permit", Resource: "mail:all", TTL: 10 * time.Minute,
				Explanation: "No policy permits mail.read on mail:all for this sandbox.",
			},
		},
		{
			name: "SVID about to expire", who: boundFor(other, 999*time.Millisecond),
			ask: scopes.Ask{Scope: "mail.read"},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "svid_expiring", Resource: "mail:all",
				Clamps:      []scopes.Clamp{{Bound: "svid.expires", From: 10 * time.Minute, To: 0}},
				Explanation: "The SVID expires within a second, and the credential may not outlive it; try again with a fresh one.",
			},
		},
		{
			name: "SVID of unknown expiry", who: scopes.Subject{ID: spiffeid.RequireFromString(other), Bound: true},
			ask: scopes.Ask{Scope: "mail.read"},
			want: scopes.Decision{
				Outcome: scopes.Deny, Reason: "svid_expiring", Resource: "mail:all",
				Clamps:      []scopes.Clamp{{Bound: "svid.expires", From: 10 * time.Minute, To: 0}},
				Explanation: "The SVID expires within a second, and the credential may not outlive it; try again with a fresh one.",
			},
		},
	}
	c := world(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.ask.Task = "t"
			got, err := c.Decide(tt.who, tt.ask, noon)
			if err != nil {
				t.Fatalf("got error %v", err)
			}
			if known := tt.want.Reason != "unknown_scope"; known != (got.Scope != nil) || known && got.Scope.Name != tt.ask.Scope {
				t.Errorf("got scope %v, want that of the ask", got.Scope)
			}
			if got.Catalogue != c.Digest() {
				t.Errorf("got catalogue %s, want %s", got.Catalogue, c.Digest())
			}
			got.Scope, got.Params, got.Catalogue = nil, nil, ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func boundFor(id string, rest time.Duration) scopes.Subject {
	s := boundSubject(id)
	s.Expires = noon.Add(rest)
	return s
}

// A scope that binds to a key requires a proof by that key, whatever else the caller presents. Its token does not end
// with the SVID.
func TestKeyBoundScopeNeedsAProof(t *testing.T) {
	c := load(t, replace(t, worldScopes, "bind: mtls", "bind: dpop"), worldPolicies)
	ask := scopes.Ask{Scope: "mail.read", RequestContext: scopes.RequestContext{Task: "t-1"}}
	unproved := boundFor("spiffe://td.example/people/b", time.Minute)
	d, err := c.Decide(unproved, ask, noon)
	if err != nil {
		t.Fatal(err)
	}
	want := "This scope binds its token to a key of the caller; send a DPoP proof (RFC 9449) by that key and try again."
	if d.Outcome != scopes.Deny || d.Reason != scopes.ReasonProofRequired || d.Explanation != want {
		t.Errorf("without a proof: got %s %s %q", d.Outcome, d.Reason, d.Explanation)
	}
	proved := unproved
	proved.Proved = true
	if d, err = c.Decide(proved, ask, noon); err != nil || d.Outcome != scopes.Allow || d.TTL != 10*time.Minute {
		t.Errorf("with one: got %s for %s, %v; want it allowed for 10m", d.Outcome, d.TTL, err)
	}
	if d, err = c.Assess(unproved, ask, noon); err != nil || d.Outcome != scopes.Allow {
		t.Errorf("an example: got %s, %v; want a proof taken for sent", d.Outcome, err)
	}
	r := replay.New(c)
	r.Add(replay.Recorded{
		ID: "1", SPIFFEID: unproved.ID.String(), Scope: "mail.read", RequestContext: scopes.RequestContext{Task: "t-1"}, Time: noon, Outcome: scopes.Deny,
		Reason: scopes.ReasonProofRequired,
	})
	r.Add(replay.Recorded{
		ID: "2", SPIFFEID: unproved.ID.String(), Proved: true, Scope: "mail.read", RequestContext: scopes.RequestContext{Task: "t-1"}, Time: noon, Outcome: scopes.Allow,
		Reason: scopes.ReasonPermitted,
	})
	if got := r.Report(0).Counts[replay.Unchanged]; got != 2 {
		t.Errorf("replayed: got %d unchanged, want 2", got)
	}
}

func TestPoliciesSeeTheBinding(t *testing.T) {
	c := load(t, worldScopes, worldPolicies+`
@id("bound-only") forbid (principal, action == Action::"git.issues.read", resource) unless { context.binding == "dpop" };`)
	who := subject("spiffe://td.example/agents/a")
	ask := scopes.Ask{Scope: "git.issues.read", RequestContext: scopes.RequestContext{Task: "t-1"}, Params: repo("acme/api")}
	for _, proved := range []bool{false, true} {
		who.Proved = proved
		if d, err := c.Decide(who, ask, noon); err != nil || (d.Outcome == scopes.Allow) != proved {
			t.Errorf("proved %t: got %s, %v", proved, d.Outcome, err)
		}
	}
}

// H33, H34: a path prefix matches whole segments only, and a trust domain matches by its whole name.
func TestPathsAndTrustDomains(t *testing.T) {
	c := load(t, worldScopes, `
@id("path") permit (principal in Path::"spiffe://td.example/agents/a", action == Action::"git.issues.read", resource);
@id("one") permit (principal == Sandbox::"spiffe://td.example/solo", action == Action::"git.issues.write", resource);
@id("domain") permit (principal in TrustDomain::"td.example", action == Action::"pay.refund", resource);`)
	tests := []struct {
		id, scope string
		want      scopes.Outcome
	}{
		{"spiffe://td.example/agents/a", "git.issues.read", scopes.Allow},
		{"spiffe://td.example/agents/a/b/c", "git.issues.read", scopes.Allow},
		{"spiffe://td.example/agents/ab", "git.issues.read", scopes.Deny},
		{"spiffe://td.example/agents", "git.issues.read", scopes.Deny},
		{"spiffe://td.example/x/agents/a", "git.issues.read", scopes.Deny},
		{"spiffe://other.example/agents/a", "git.issues.read", scopes.Deny},
		{"spiffe://td.example.evil/agents/a", "git.issues.read", scopes.Deny},
		{"spiffe://td.example/solo", "git.issues.write", scopes.Allow},
		{"spiffe://td.example/solo/b", "git.issues.write", scopes.Deny},
		{"spiffe://td.example/x", "pay.refund", scopes.Allow},
		{"spiffe://td.example.evil/x", "pay.refund", scopes.Deny},
		{"spiffe://sub.td.example/x", "pay.refund", scopes.Deny},
		{"spiffe://xn--td-example/x", "pay.refund", scopes.Deny},
	}
	for _, tt := range tests {
		t.Run(tt.id+" "+tt.scope, func(t *testing.T) {
			params := repo("acme/api")
			if tt.scope == "pay.refund" {
				params = refund(1, false)
			}
			d, err := c.Decide(subject(tt.id), scopes.Ask{Scope: tt.scope, Params: params, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
			if err != nil || d.Outcome != tt.want {
				t.Errorf("got %s (%s) and error %v, want %s", d.Outcome, d.Reason, err, tt.want)
			}
		})
	}
}

// H63, H64, I10: Cedar ignores a policy that fails to evaluate, and it may be the one that forbids.
func TestFailingPolicyDenies(t *testing.T) {
	const permit = `@id("all") permit (principal, action, resource);`
	tests := []struct{ name, policies, want string }{
		{"forbid that overflows", permit + `@id("huge") forbid (principal, action, resource) when { context.ttl * 9223372036854775807 > 0 };`, "huge"},
		{"permit that overflows", permit + `@id("huge") permit (principal, action, resource) when { context.ttl + 9223372036854775807 > 0 };`, "huge"},
		{
			"only once approved", `@id("b-later") permit (principal, action, resource) when { context.approved };` +
				`@id("a-huge") forbid (principal, action, resource) when { context.approved && context.ttl * 9223372036854775807 > 0 };`, "a-huge",
		},
		{
			"two", permit + `@id("z") forbid (principal, action, resource) when { context.ttl * 9223372036854775807 > 0 };` +
				`@id("b") forbid (principal, action, resource) when { context.ttl * 9223372036854775807 > 1 };`, "b, z",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := load(t, worldScopes, tt.policies)
			d, err := c.Decide(subject("spiffe://td.example/a"), scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
			if err != nil {
				t.Fatal(err)
			}
			if d.Outcome != scopes.Deny || d.Reason != "policy_error" || strings.Join(d.Policies, ", ") != tt.want || d.Narrowest != nil {
				t.Errorf("got %s %s %v %v, want deny policy_error %s and no hint", d.Outcome, d.Reason, d.Policies, d.Narrowest, tt.want)
			}
			if want := "Denied because a policy could not be evaluated (" + tt.want + "); an admin must correct it."; d.Explanation != want {
				t.Errorf("got %q, want %q", d.Explanation, want)
			}
		})
	}
}

// Policies see every attribute of the context as documented.
func TestPoliciesSeeTheDocumentedContext(t *testing.T) {
	c := load(t, worldScopes, `@id("exact") permit (principal, action == Action::"pay.refund", resource == Resource::"pay:USD/42")
when { context.params == {cents: 42, currency: "USD", urgent: true} && context.ttl == 61 && context.task == "job-1"
  && context.binding == "mtls" && !context.approved };`)
	ask := scopes.Ask{Scope: "pay.refund", Params: map[string]any{"cents": 42.0, "currency": "USD", "urgent": true}, TTL: 61 * time.Second, RequestContext: scopes.RequestContext{Task: "job-1"}}
	d, err := c.Decide(boundSubject("spiffe://td.example/a"), ask, noon)
	if err != nil || d.Outcome != scopes.Allow {
		t.Errorf("got %s (%s) and error %v, want allow", d.Outcome, d.Explanation, err)
	}
	if diff := cmp.Diff(map[string]any{"cents": int64(42), "currency": "USD", "urgent": true}, d.Params); diff != "" {
		t.Errorf("canonical params (-want +got):\n%s", diff)
	}
	if d, _ := c.Decide(subject("spiffe://td.example/a"), ask, noon); d.Outcome != scopes.Deny {
		t.Errorf("without mTLS: got %s, want deny", d.Outcome)
	}
}

// T1: a request that is not exactly of the form that its scope defines is refused.
func TestDecideRefusesMalformedRequests(t *testing.T) {
	good := scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}
	tests := []struct {
		name       string
		change     func(*scopes.Ask)
		field, why string
	}{
		{"no task", func(a *scopes.Ask) { a.Task = "" }, "task", "must be 1 to 128 letters, digits and . _ : - and begin with a letter or digit"},
		{"long task", func(a *scopes.Ask) { a.Task = strings.Repeat("t", 129) }, "task", "must be 1 to 128 letters, digits and . _ : - and begin with a letter or digit"},
		{"task with a line break", func(a *scopes.Ask) { a.Task = "a\nb" }, "task", "must be 1 to 128 letters, digits and . _ : - and begin with a letter or digit"},
		{"negative TTL", func(a *scopes.Ask) { a.TTL = -time.Second }, "ttl", "must be a whole number of seconds, at least 1"},
		{"TTL below a second", func(a *scopes.Ask) { a.TTL = time.Second - 1 }, "ttl", "must be a whole number of seconds, at least 1"},
		{"TTL of parts of a second", func(a *scopes.Ask) { a.TTL = 1500 * time.Millisecond }, "ttl", "must be a whole number of seconds, at least 1"},
		{"no scope", func(a *scopes.Ask) { a.Scope = "" }, "scope", "must be the name of a scope, such as github.issues.read"},
		{"scope with escapes", func(a *scopes.Ask) { a.Scope = "git.issues.read\x1b[2J" }, "scope", "must be the name of a scope, such as github.issues.read"},
		{"group for scope", func(a *scopes.Ask) { a.Scope = "git.issues.*" }, "scope", "must be the name of a scope, such as github.issues.read"},
		{"authority for scope", func(a *scopes.Ask) { a.Scope = "authority:read" }, "scope", "must be the name of a scope, such as github.issues.read"},
		{"no params", func(a *scopes.Ask) { a.Params = nil }, "params.repo", "is required"},
		{"unknown param", func(a *scopes.Ask) { a.Params = map[string]any{"repo": "acme/api", "role": "admin"} }, "params.role", "is unknown; this scope takes repo"},
		{"unknown param that is hostile", func(a *scopes.Ask) { a.Params = map[string]any{"<b>": 1} }, "params", "is unknown; this scope takes repo"},
		{"other case", func(a *scopes.Ask) { a.Params = map[string]any{"Repo": "acme/api"} }, "params", "is unknown; this scope takes repo"},
		{"array for string (H60)", func(a *scopes.Ask) { a.Params = map[string]any{"repo": []any{"acme/api"}} }, "params.repo", "must be a string"},
		{"null", func(a *scopes.Ask) { a.Params = map[string]any{"repo": nil} }, "params.repo", "must be a string"},
		{"outside the pattern", func(a *scopes.Ask) { a.Params = repo("acme") }, "params.repo", "must match [a-z0-9-]+/[a-z0-9._-]+"},
		{"too long", func(a *scopes.Ask) { a.Params = repo("acme/" + strings.Repeat("a", 36)) }, "params.repo", "must be at most 40 bytes long"},
	}
	c := world(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ask := good
			tt.change(&ask)
			d, err := c.Decide(subject("spiffe://td.example/agents/a"), ask, noon)
			var bad *scopes.InvalidAsk
			if !errors.As(err, &bad) || bad.Field != tt.field || bad.Why != tt.why {
				t.Errorf("got %v, want %s %s", err, tt.field, tt.why)
			}
			if diff := cmp.Diff(scopes.Decision{}, d); diff != "" {
				t.Errorf("got a decision beside the error:\n%s", diff)
			}
		})
	}
}

func TestDecideNeedsASubject(t *testing.T) {
	root := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://td.example")}
	for name, who := range map[string]scopes.Subject{"zero": {}, "root": root} {
		_, err := world(t).Decide(who, scopes.Ask{Scope: "mail.read", RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		if !errors.Is(err, scopes.ErrNoSubject) {
			t.Errorf("%s: got %v, want ErrNoSubject", name, err)
		}
	}
}

// A hint has no more authority than the requested scope, and stays within its name prefix.
func TestHintIsNoBroaderThanTheRequest(t *testing.T) {
	c := load(t, worldScopes, `
@id("much") permit (principal, action in [Action::"git.repo.*", Action::"git.issues.write", Action::"pay.*"], resource);`)
	d, err := c.Decide(subject("spiffe://td.example/a"), scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil || d.Outcome != scopes.Deny || d.Narrowest != nil {
		t.Errorf("got %s, hint %v, error %v; want deny without a hint: write and delete are more than read", d.Outcome, d.Narrowest, err)
	}
}

func TestCatalogueIsSafeForConcurrentUse(t *testing.T) {
	c := world(t)
	ask := scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}
	want, err := c.Decide(subject("spiffe://td.example/agents/a"), ask, noon)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				got, err := c.Decide(subject("spiffe://td.example/agents/a"), ask, noon)
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("error %v, decision (-want +got):\n%s", err, diff)
					return
				}
			}
		})
	}
	all.Wait()
}

// The example catalogue does what its comments promise.
func TestExampleCatalogue(t *testing.T) {
	c := example(t)
	const research, support, quarantined = "spiffe://acme.example/research/r-7", "spiffe://acme.example/support/s-1", "spiffe://acme.example/quarantine/r-7"
	order := func(cents int) map[string]any {
		return map[string]any{"order": "ord_123456", "amount_cents": cents, "currency": "EUR"}
	}
	calendar := map[string]any{"calendar": "team@acme.example"}
	tests := []struct {
		name   string
		who    scopes.Subject
		scope  string
		params map[string]any
		ttl    time.Duration
		want   scopes.Outcome
		by     []string
		hint   string
	}{
		{"research reads", subject(research), "github.issues.read", repo("acme/api"), 0, scopes.Allow, []string{"research-reads-issues"}, ""},
		{"research reads elsewhere", subject(research), "github.issues.read", repo("other/api"), 0, scopes.Deny, nil, ""},
		{"research comments", subject(research), "github.issues.write", repo("acme/api"), 0, scopes.Pending, []string{"changes-need-a-person", "research-comments-on-issues"}, ""},
		{"research comments slowly", subject(research), "github.issues.write", repo("acme/api"), 10 * time.Minute, scopes.Deny, []string{"comments-are-quick"}, "github.issues.write"},
		{"research deletes", subject(research), "github.repo.delete", repo("acme/api"), 0, scopes.Deny, nil, "github.issues.write"},
		{"support reads issues", subject(support), "github.issues.read", repo("acme/api"), 0, scopes.Deny, nil, ""},
		{"support refunds", subject(support), "payments.refund", order(5000), 0, scopes.Pending, []string{"changes-need-a-person", "support-refunds-small-amounts"}, ""},
		{"support refunds much", subject(support), "payments.refund", order(5001), 0, scopes.Deny, nil, "payments.refund"},
		{"calendar over mTLS", boundSubject(support), "calendar.events.read", calendar, 0, scopes.Allow, []string{"everyone-reads-calendars"}, ""},
		{"calendar without", subject(support), "calendar.events.read", calendar, 0, scopes.Deny, []string{"everyone-reads-calendars"}, ""},
		{"calendar from quarantine", boundSubject(quarantined), "calendar.events.read", calendar, 0, scopes.Deny, []string{"quarantine"}, ""},
		{"calendar from elsewhere", boundSubject("spiffe://other.example/a"), "calendar.events.read", calendar, 0, scopes.Deny, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := c.Decide(tt.who, scopes.Ask{Scope: tt.scope, Params: tt.params, TTL: tt.ttl, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
			hint := ""
			if d.Narrowest != nil {
				hint = d.Narrowest.Scope
			}
			if err != nil || d.Outcome != tt.want || !slices.Equal(d.Policies, tt.by) || hint != tt.hint {
				t.Errorf("got %s by %v, hint %q, error %v; want %s by %v, hint %q", d.Outcome, d.Policies, hint, err, tt.want, tt.by, tt.hint)
			}
		})
	}
}
