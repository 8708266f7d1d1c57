package scopes_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func decide(t *rapid.T, c *scopes.Catalogue, who scopes.Subject, a scopes.Ask) scopes.Decision {
	d, err := c.Decide(who, a, noon)
	if err != nil {
		t.Fatalf("deciding %+v: %v", a, err)
	}
	return d
}

// T1: whatever a sandbox writes into a request, it acts as itself. The catalogue permits another sandbox everything, and
// this one nothing.
func TestNoRequestFieldChangesTheSubject(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := mustLoad(t, `@id("victim") permit (principal == Sandbox::"spiffe://td.example/victim", action, resource);
@id("domain") permit (principal in TrustDomain::"victim.example", action, resource);
@id("path") permit (principal in Path::"spiffe://td.example/victims", action, resource);`)
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"spiffe://td.example/victim", `Sandbox::"spiffe://td.example/victim"`, "victim.example", "git.issues.read", "mail.read", "acme/api",
		}))
		key := rapid.OneOf(rapid.SampledFrom([]string{"repo", "principal", "id", "sub", "trust_domain", "cents"}), rapid.String())
		a := scopes.Ask{
			Scope:          text.Draw(t, "scope"),
			RequestContext: scopes.RequestContext{Task: text.Draw(t, "task")},
			Params:         map[string]any{key.Draw(t, "key"): text.Draw(t, "value")},
			TTL:            time.Duration(rapid.Int64().Draw(t, "ttl")),
		}
		if rapid.Bool().Draw(t, "well-formed") {
			a = drawAsk(t)
		}
		who := drawSubject(t)
		if d, err := c.Decide(who, a, noon); err == nil && (d.Outcome != scopes.Deny || d.Narrowest != nil) {
			t.Fatalf("%s got %s for %+v, hint %v", who.ID, d.Outcome, a, d.Narrowest)
		}
	})
}

// I3: no TTL is longer than any bound, and each clamp only shortens.
func TestTTLIsWithinEveryBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		who, a := drawSubject(t), drawAsk(t)
		d := decide(t, mustLoad(t, drawPolicies(t)), who, a)
		if d.Scope == nil {
			return
		}
		asked := a.TTL
		if asked == 0 {
			asked = d.Scope.TTL.Default
		}
		bound := d.Scope.Credential.Bind == "mtls" && who.Bound
		if d.TTL > asked || d.TTL > d.Scope.TTL.Max || d.TTL > 24*time.Hour || bound && d.TTL > max(0, who.Expires.Sub(noon)) ||
			who.User != nil && !who.User.Until.IsZero() && d.TTL > who.User.Until.Sub(noon) {
			t.Fatalf("got TTL %s for %s of %+v, SVID until %s", d.TTL, asked, d.Scope, who.Expires.Sub(noon))
		}
		if d.Outcome != scopes.Deny && (d.TTL < time.Second || d.TTL%time.Second != 0) {
			t.Fatalf("got %s for TTL %s", d.Outcome, d.TTL)
		}
		from := asked
		for _, clamp := range d.Clamps {
			if clamp.From != from || clamp.To >= clamp.From {
				t.Fatalf("clamps do not follow one another: %+v from %s", d.Clamps, asked)
			}
			from = clamp.To
		}
		if from != d.TTL {
			t.Fatalf("the clamps %+v end at %s, the TTL is %s", d.Clamps, from, d.TTL)
		}
	})
}

var width = map[scopes.Outcome]int{scopes.Deny: 0, scopes.Pending: 1, scopes.Allow: 2}

func TestAddingAForbidNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		who, a, policies := drawSubject(t), drawAsk(t), drawPolicies(t)
		before := decide(t, mustLoad(t, policies), who, a)
		after := decide(t, mustLoad(t, policies+drawPolicy(t, "forbid", "added")), who, a)
		if width[after.Outcome] > width[before.Outcome] || after.TTL > before.TTL {
			t.Fatalf("%s for %s became %s for %s", before.Outcome, before.TTL, after.Outcome, after.TTL)
		}
	})
}

// Every hint is valid: a request for it is not denied, the scope does not shorten it, and it has no more authority than
// the denied request.
func TestEveryHintIsGrantable(t *testing.T) {
	seen := 0
	rapid.Check(t, func(t *rapid.T) {
		who, a := drawSubject(t), drawAsk(t)
		c := mustLoad(t, drawPolicies(t))
		d := decide(t, c, who, a)
		if d.Narrowest == nil {
			return
		}
		seen++
		if d.Outcome != scopes.Deny {
			t.Fatalf("got a hint beside %s", d.Outcome)
		}
		again := decide(t, c, who, *d.Narrowest)
		if again.Outcome == scopes.Deny {
			t.Fatalf("the hint %+v is denied: %s", *d.Narrowest, again.Explanation)
		}
		if d.Scope != nil && again.Scope.Authority.Rank() > d.Scope.Authority.Rank() {
			t.Fatalf("the hint asks for %s instead of %s", again.Scope.Authority, d.Scope.Authority)
		}
		if d.Narrowest.Task != a.Task || d.Scope != nil && d.Scope.Name == again.Scope.Name && again.TTL > d.TTL {
			t.Fatalf("the hint %+v is wider than %+v", *d.Narrowest, a)
		}
	})
	if seen == 0 {
		t.Errorf("no draw led to a hint: nothing was checked")
	}
}

// I10: a policy that fails to evaluate for a request denies it, whatever the other policies say.
func TestAnErrorNeverAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		who, a := drawSubject(t), drawAsk(t)
		effect := rapid.SampledFrom([]string{"permit", "forbid"}).Draw(t, "effect")
		// Overflows for every ttl from 1.
		erring := "@id(\"err\") " + effect + " (principal, action, resource) when { context.ttl + 9223372036854775807 > 0 };\n"
		d := decide(t, mustLoad(t, drawPolicies(t)+erring), who, a)
		if d.Outcome != scopes.Deny {
			t.Fatalf("got %s by %v", d.Outcome, d.Policies)
		}
		if d.Reason == "policy_error" && !slices.Contains(d.Policies, "err") {
			t.Fatalf("got policy_error by %v, want err among them", d.Policies)
		}
	})
}

// The same question always has the same answer, whatever the order of the files.
func TestDecideIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		who, a, policies := drawSubject(t), drawAsk(t), drawPolicies(t)
		c := mustLoad(t, policies)
		params := maps.Clone(a.Params)
		first := decide(t, c, who, a)
		if diff := cmp.Diff(params, a.Params); diff != "" {
			t.Fatalf("Decide changed the ask (-before +after):\n%s", diff)
		}
		reversed, err := scopes.Load([]scopes.File{file("p.cedar", policies), file("s.yaml", worldScopes)})
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range []scopes.Decision{decide(t, c, who, a), decide(t, reversed, who, a)} {
			if diff := cmp.Diff(first, again); diff != "" {
				t.Fatalf("decisions differ:\n%s", diff)
			}
		}
		if !slices.IsSorted(first.Policies) {
			t.Fatalf("policies are not sorted: %v", first.Policies)
		}
	})
}

// Different values give different resources.
func TestRenderingIsInjective(t *testing.T) {
	c := anything(t)
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[ab/-]{1,6}`)
		draw := func(n string) map[string]any {
			return map[string]any{"a": value.Draw(t, "a"+n), "b": value.Draw(t, "b"+n)}
		}
		x, y := draw("1"), draw("2")
		who := subject(ids[0])
		dx, errX := c.Decide(who, scopes.Ask{Scope: "any.pair", Params: x, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		dy, errY := c.Decide(who, scopes.Ask{Scope: "any.pair", Params: y, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		if errX == nil && errY == nil && (dx.Resource == dy.Resource) != maps.Equal(x, y) {
			t.Fatalf("%v is %s and %v is %s", x, dx.Resource, y, dy.Resource)
		}
	})
}

// The index never skips a policy that would have counted.
func TestTheIndexChangesNoDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := mustLoad(t, drawPolicies(t))
		who, a := drawSubject(t), drawAsk(t)
		for name, decide := range map[string]func(*scopes.Catalogue) (scopes.Decision, error){
			"as it is": func(c *scopes.Catalogue) (scopes.Decision, error) { return c.Decide(who, a, noon) },
			"approved": func(c *scopes.Catalogue) (scopes.Decision, error) { return c.DecideApproved(who, a, noon) },
		} {
			got, err := decide(c)
			want, wantErr := decide(c.Unindexed())
			if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (wantErr == nil) {
				t.Fatalf("%s: %v, %v, -without +with the index:\n%s", name, wantErr, err, diff)
			}
		}
	})
}

// Validating against part of the schema gives the same messages as validating against all of it.
func TestPartialSchemaGivesTheSameMessages(t *testing.T) {
	wrong := []string{
		`when { context.params.repo == 1 }`, `when { context.params.cents > 5 }`, `when { context.nothing }`, `when { principal.name == "x" }`,
		`when { action == Action::"pay.refund" }`, `when { action in Action::"git.*" }`, `when { action in Action::"authority:delete" && context.params.repo like "a*" }`,
		`when { resource in principal }`, `when { context.params has repo && context.params.repo > 1 }`, `unless { context.approved == "yes" }`,
		`when { Action::"pay.refund" in Action::"pay.*" && context.nothing }`, `when { Action::"git.issues.*" in Action::"git.*" && context.nothing }`,
	}
	found := false
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for i := range 4 {
			fmt.Fprintf(&b, "@id(\"p%d\") permit (%s) %s;\n", i, rapid.SampledFrom(heads).Draw(t, "head"), rapid.SampledFrom(slices.Concat(wrong, conditions)).Draw(t, "condition"))
		}
		part, whole := scopes.Validations([]scopes.File{file("s.yaml", worldScopes), file("p.cedar", b.String())})
		if diff := cmp.Diff(whole, part); diff != "" {
			t.Fatalf("-against the whole schema +against its part:\n%s", diff)
		}
		for _, why := range whole {
			found = found || len(why) > 0
		}
	})
	if !found {
		t.Error("nothing was wrong with any policy: the test shows too little")
	}
}
