package scopes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

// offered lists what a sandbox is offered: each scope with its Approval.
func offered(c *scopes.Catalogue, id string) []string {
	all := []string{}
	for _, offer := range c.Offers(spiffeid.RequireFromString(id)) {
		all = append(all, offer.Scope.Name+" "+string(offer.Approval))
	}
	return all
}

func TestOffers(t *testing.T) {
	const permit = `@id("p") permit (principal in Path::"spiffe://td.example/agents", action, resource)`
	everything := []string{"git.issues.read never", "git.issues.write maybe", "git.repo.delete maybe", "mail.read never", "pay.refund never"}
	for name, tc := range map[string]struct {
		policies string
		want     []string
	}{
		"all":                           {permit + `;`, everything},
		"parameters are not known":      {permit + ` when { context.params has repo && context.params.repo == "acme/api" };`, everything[:3]},
		"nor the TTL":                   {permit + ` when { context.ttl < 1 };`, everything},
		"nor who proves what":           {permit + ` when { context.binding == "mtls" };`, everything},
		"nor the resource":              {permit + ` when { resource == Resource::"mail:all" };`, everything},
		"nor the whole context":         {permit + ` when { context == context && context.params == context.params };`, everything},
		"a resource in the head":        {strings.Replace(permit, ", resource)", `, resource == Resource::"git:repo/acme/api")`, 1) + `;`, everything[:3]},
		"only once approved":            {permit + ` when { context.approved };`, []string{"git.issues.write always", "git.repo.delete always"}},
		"only before":                   {permit + ` unless { context.approved };`, []string{"git.issues.read never", "git.issues.write never", "git.repo.delete never", "mail.read never", "pay.refund never"}},
		"of another sandbox":            {permit + ` when { principal == Sandbox::"spiffe://td.example/agents/b" };`, []string{}},
		"of its own":                    {permit + ` when { principal == Sandbox::"spiffe://td.example/agents/a" };`, everything},
		"unless or":                     {permit + ` unless { principal is Sandbox || context.ttl > 5 };`, []string{}},
		"if":                            {permit + ` when { if action == Action::"mail.read" then context.ttl > 5 else false };`, everything},
		"forbidden by group":            {permit + `; @id("f") forbid (principal, action in Action::"git.*", resource);`, everything[3:]},
		"forbidden in some asks":        {permit + `; @id("f") forbid (principal, action, resource) when { context.ttl > 60 };`, everything},
		"forbidden for a resource":      {permit + `; @id("f") forbid (principal, action, resource == Resource::"git:repo/acme/api");`, everything},
		"forbidden for others":          {permit + `; @id("f") forbid (principal == Sandbox::"spiffe://td.example/agents/b", action, resource);`, everything},
		"forbidden until approved":      {permit + `; @id("f") forbid (principal, action in [Action::"authority:write", Action::"authority:payment"], resource) unless { context.approved };`, []string{"git.issues.read never", "git.issues.write always", "git.repo.delete maybe", "mail.read never"}},
		"forbidden unless it asks less": {permit + `; @id("f") forbid (principal, action, resource) unless { context.approved && context.ttl < 60 };`, []string{"git.issues.write always", "git.repo.delete always"}},
	} {
		if diff := cmp.Diff(tc.want, offered(load(t, worldScopes, tc.policies), "spiffe://td.example/agents/a")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, other := range []string{"spiffe://td.example/agentsx", "spiffe://other.example/agents/a"} {
			if got := offered(load(t, worldScopes, tc.policies), other); len(got) != 0 {
				t.Errorf("%s: %s is offered %v", name, other, got)
			}
		}
	}
	want := []string{"git.issues.read never", "git.issues.write always", "mail.read never", "pay.refund never"}
	if got := offered(world(t), "spiffe://td.example/agents/a"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An offer is a copy.
func TestOffersAreCopies(t *testing.T) {
	c, id := world(t), spiffeid.RequireFromString("spiffe://td.example/agents/a")
	delete(c.Offers(id)[0].Scope.Params, "repo")
	if len(c.Offers(id)[0].Scope.Params) != 1 {
		t.Error("changing an offer changed the catalogue")
	}
}

// drawCondition draws conditions on requests and callers, combined arbitrarily.
func drawCondition(t *rapid.T, depth int) string {
	if depth == 0 || rapid.IntRange(0, 2).Draw(t, "leaf") == 0 {
		return rapid.SampledFrom([]string{
			"true", "false", "context.approved", `context.ttl <= 300`, `context.task like "a*"`, `context.binding == "mtls"`,
			`principal in Path::"spiffe://td.example/agents/a"`, `principal == Sandbox::"spiffe://td.example/people/b"`,
			`principal is Sandbox`, `principal is Sandbox in TrustDomain::"td.example"`, `action in Action::"git.issues.*"`,
			`action == Action::"mail.read"`, `resource == Resource::"git:repo/acme/api"`, `[resource].contains(Resource::"mail:all")`,
			`context.params has repo`, `context.params has cents && context.params.cents < 5000`, `context.ttl * 9223372036854775807 > 0`,
			`[context.ttl, 60].contains(300)`, `[context.task].containsAny(["a", "t"])`, `(if context.approved then context.ttl else 60) < 61`,
			`{a: context.approved} == {a: true}`, `9223372036854775807 + 1 > 0`, `(if principal is Sandbox then 1 else 2) == 1`,
		}).Draw(t, "atom")
	}
	left, right := drawCondition(t, depth-1), drawCondition(t, depth-1)
	switch rapid.IntRange(0, 3).Draw(t, "join") {
	case 0:
		return "!(" + left + ")"
	case 1:
		return "(" + left + " && " + right + ")"
	case 2:
		return "(" + left + " || " + right + ")"
	}
	return "(if " + left + " then " + right + " else " + drawCondition(t, depth-1) + ")"
}

// Offers includes everything that Decide allows or leaves pending, and its Approval is correct.
func TestOffersLeaveNothingOut(t *testing.T) {
	seen := map[scopes.Outcome]int{}
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		text.WriteString(drawPolicies(t))
		for i := range rapid.IntRange(0, 4).Draw(t, "more") {
			fmt.Fprintf(&text, "@id(%q) %s (%s) %s { %s };\n", fmt.Sprintf("more%d", i),
				rapid.SampledFrom([]string{"permit", "permit", "forbid"}).Draw(t, "effect"), rapid.SampledFrom(heads).Draw(t, "head"),
				rapid.SampledFrom([]string{"when", "unless"}).Draw(t, "keyword"), drawCondition(t, 3))
		}
		c := mustLoad(t, text.String())
		for range 24 {
			who, a := drawSubject(t), drawAsk(t)
			d := decide(t, c, who, a)
			if d.Outcome == scopes.Deny {
				continue
			}
			seen[d.Outcome]++
			offers := c.Offers(who.ID)
			at := slices.IndexFunc(offers, func(o scopes.Offer) bool { return o.Scope.Name == a.Scope })
			if at < 0 {
				t.Fatalf("%s for %s, which is not offered; policies:\n%s", d.Outcome, a.Scope, text.String())
			}
			if never := map[scopes.Outcome]scopes.Consent{scopes.Allow: scopes.ConsentAlways, scopes.Pending: scopes.ConsentNever}[d.Outcome]; offers[at].Approval == never {
				t.Fatalf("%s for %s, of which people are said to be asked: %s; policies:\n%s", d.Outcome, a.Scope, offers[at].Approval, text.String())
			}
		}
	})
	if seen[scopes.Allow] == 0 || seen[scopes.Pending] == 0 {
		t.Errorf("got %v decided: too little was checked", seen)
	}
}
