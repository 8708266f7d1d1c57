package scopes_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

const sreOnly = `@id("sre") permit (principal, action, resource) when { context has user && context.user.groups.contains("sre") };
@id("not-ben") forbid (principal, action, resource) when { context has user && context.user.id == "https://idp.example#ben" };`

func behalf(id string, groups ...string) scopes.Subject {
	who := subject(agent)
	who.User = &scopes.User{ID: "https://idp.example#" + id, Groups: groups, Until: noon.Add(2*time.Minute + 999*time.Millisecond)}
	return who
}

// A policy can depend on the person whom the sandbox acts for, and only if there is one.
func TestPoliciesCanDependOnThePerson(t *testing.T) {
	c := load(t, worldScopes, sreOnly)
	for name, tc := range map[string]struct {
		who    scopes.Subject
		reason string
	}{
		"of the group":   {behalf("ann", "dev", "sre"), scopes.ReasonPermitted},
		"of another":     {behalf("ann", "dev"), scopes.ReasonNoPermit},
		"of none":        {behalf("ann"), scopes.ReasonNoPermit},
		"on nobody's":    {subject(agent), scopes.ReasonNoPermit},
		"by the id":      {behalf("ben", "sre"), scopes.ReasonForbidden},
		"with a comma":   {behalf("ann", "dev,sre"), scopes.ReasonNoPermit},
		"nearly the one": {behalf("ann", "SRE", "sre "), scopes.ReasonNoPermit},
	} {
		d, err := c.Decide(tc.who, scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		if err != nil || d.Reason != tc.reason {
			t.Errorf("%s: got %s, %v, want %s", name, d.Reason, err, tc.reason)
		}
	}
	for _, wrong := range []string{`context.user.id == "x"`, `context has user && context.user.group == "x"`, `context has user && context.user.groups == "x"`} {
		_, err := scopes.Load([]scopes.File{file("s.yaml", worldScopes), file("p.cedar", `@id("p") permit (principal, action, resource) when { `+wrong+` };`)})
		if err == nil {
			t.Errorf("%s: got a catalogue, want it refused", wrong)
		}
	}
}

// I3: a credential expires with the person's ID token.
func TestIDTokenBoundsTheTTL(t *testing.T) {
	c := load(t, worldScopes, sreOnly)
	ask := scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}, TTL: time.Hour}
	d, err := c.Decide(behalf("ann", "sre"), ask, noon)
	want := []scopes.Clamp{{Bound: scopes.BoundScopeMax, From: time.Hour, To: 15 * time.Minute}, {Bound: scopes.BoundUser, From: 15 * time.Minute, To: 2 * time.Minute}}
	if diff := cmp.Diff(want, d.Clamps); err != nil || diff != "" || d.TTL != 2*time.Minute {
		t.Errorf("got %s, %v; clamps (-want +got):\n%s", d.TTL, err, diff)
	}
	if text := "from 15m to 2m, the remaining lifetime of the person's ID token."; !strings.Contains(d.Explanation, text) {
		t.Errorf("got %q, want it to say %q", d.Explanation, text)
	}
	over := behalf("ann", "sre")
	over.User.Until = noon.Add(-4 * time.Second) // the token check allows some clock skew
	if d, err = c.Decide(over, ask, noon); err != nil || d.Outcome != scopes.Deny || d.Reason != scopes.ReasonUserExpiring || d.TTL != 0 {
		t.Errorf("at its end: got %+v, %v, want it denied", d, err)
	}
}

func TestExamplesOnBehalfOfSomebody(t *testing.T) {
	c := load(t, worldScopes, sreOnly)
	for _, result := range c.Check(examplesOf(t, `examples:
  - {name: one of the group, as: spiffe://td.example/agents/a, scope: git.issues.read, params: {repo: acme/api}, user: {id: "https://idp.example#ann", groups: [sre]}, want: allow}
  - {name: nobody, as: spiffe://td.example/agents/a, scope: git.issues.read, params: {repo: acme/api}, want: deny}
`)) {
		if len(result.Failures) > 0 {
			t.Errorf("%s: got %q, want none", result.Example.Name, result.Failures)
		}
	}
	for _, wrong := range []string{`{}`, `{groups: [sre]}`, `{id: 5}`, `{id: x, group: y}`, `x`} {
		_, err := scopes.ReadExamples([]scopes.File{file("a.test.yaml", `examples:
  - {name: n, as: spiffe://td.example/a, scope: mail.read, want: allow, user: `+wrong+`}`)})
		if err == nil {
			t.Errorf("user %s: got an example, want it refused", wrong)
		}
	}
	if keys := string(scopes.ExamplesSchema()); !slices.Contains(strings.Fields(keys), `"user":`) {
		t.Error("the schema of examples does not know user")
	}
}
