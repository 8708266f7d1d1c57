package scopes_test

import (
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"pgregory.net/rapid"
)

func TestDecideApproved(t *testing.T) {
	c := world(t)
	for _, tc := range []struct {
		name, scope, repo string
		outcome           scopes.Outcome
		reason            string
	}{
		{"what waited is allowed", "git.issues.write", "acme/api", scopes.Allow, scopes.ReasonApproved},
		{"what needs no approval is allowed too", "git.issues.read", "acme/api", scopes.Allow, scopes.ReasonApproved},
		{"a forbid stays", "git.issues.write", "acme/secret", scopes.Deny, scopes.ReasonForbidden},
		{"so does the default", "git.issues.write", "evil/api", scopes.Deny, scopes.ReasonNoPermit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ask := scopes.Ask{Scope: tc.scope, Params: repo(tc.repo), RequestContext: scopes.RequestContext{Task: "task-1"}}
			d, err := c.DecideApproved(subject("spiffe://td.example/agents/a"), ask, noon)
			if err != nil || d.Outcome != tc.outcome || d.Reason != tc.reason {
				t.Errorf("got %s %s, %v, want %s %s", d.Outcome, d.Reason, err, tc.outcome, tc.reason)
			}
			if d.Approval != nil || d.TTL > 15*time.Minute {
				t.Errorf("got approval %v and TTL %s, want none and at most the scope's", d.Approval, d.TTL)
			}
		})
	}
}

func TestDecideBreakGlass(t *testing.T) {
	c := world(t)
	who := subject("spiffe://td.example/agents/a")
	for repository, reason := range map[string]string{
		"acme/api": scopes.ReasonBreakGlass, "acme/secret": scopes.ReasonForbidden, "evil/api": scopes.ReasonNoPermit,
	} {
		d, err := c.DecideBreakGlass(who, scopes.Ask{Scope: "git.issues.write", Params: repo(repository), RequestContext: scopes.RequestContext{Task: "task-1"}}, noon)
		if err != nil || d.Reason != reason || (d.Outcome == scopes.Allow) != (reason == scopes.ReasonBreakGlass) {
			t.Errorf("%s: got %s %s, %v, want %s", repository, d.Outcome, d.Reason, err, reason)
		}
	}
}

// I3: a break-glass credential lives for 30 minutes at most, whatever the scope allows.
func TestBreakGlassCredentialIsShortLived(t *testing.T) {
	c := load(t, replace(t, worldScopes, "15m}\n    approval", "2h}\n    approval"), worldPolicies)
	who := subject("spiffe://td.example/agents/a")
	for asked, want := range map[time.Duration]time.Duration{
		0: 5 * time.Minute, 30 * time.Minute: 30 * time.Minute, 31 * time.Minute: 30 * time.Minute, 5 * time.Hour: 30 * time.Minute,
	} {
		d, err := c.DecideBreakGlass(who, scopes.Ask{Scope: "git.issues.write", Params: repo("acme/api"), TTL: asked, RequestContext: scopes.RequestContext{Task: "task-1"}}, noon)
		if err != nil || d.TTL != want || !strings.Contains(d.Explanation, "by the break-glass group") {
			t.Errorf("asked for %s: got %s (%s), %v, want %s", asked, d.TTL, d.Explanation, err, want)
		}
		if cut := asked > scopes.BreakGlassTTL; cut != strings.Contains(d.Explanation, "the maximum for break-glass") {
			t.Errorf("asked for %s: got %q, want it said that it was cut: %t", asked, d.Explanation, cut)
		}
	}
}

// A pending request is granted once people approve it, and so is every hint: no caller is sent to ask for an approval in
// vain.
func TestPendingRequestIsGrantedOnceApproved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := mustLoad(t, drawPolicies(t))
		who, ask := drawSubject(t), drawAsk(t)
		for d := decide(t, c, who, ask); ; {
			approved, err := c.DecideApproved(who, ask, noon)
			if err != nil {
				t.Fatalf("deciding %+v as approved: %v", ask, err)
			}
			if d.Outcome == scopes.Pending && (approved.Outcome != scopes.Allow || approved.TTL != d.TTL) {
				t.Fatalf("%+v waits for people, and once approved it is %s for %s", ask, approved.Outcome, approved.TTL)
			}
			if approved.Outcome == scopes.Pending {
				t.Fatalf("%+v is pending though approved", ask)
			}
			if d.Narrowest == nil {
				return
			}
			ask = *d.Narrowest
			if d = decide(t, c, who, ask); d.Outcome == scopes.Deny {
				t.Fatalf("the hint %+v is denied: %s", ask, d.Explanation)
			}
		}
	})
}
