package httpapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// withGlass has a scope that needs the approval of three people of oncall, or of two people of leads by break-glass. Alice is in
// both groups.
var withGlass = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: hosts.shell.open
    title: Log in to a host
    authority: write
    params:
      host: {type: string, pattern: '[a-z0-9-]+', max_length: 100}
    resource: host:{host}
    ttl: {default: 5m, max: 2h}
    approval: {group: oncall, quorum: 3, remember: task, break_glass: leads}
    credential: {kind: jwt, audience: https://hosts.test}
`)},
		{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal in TrustDomain::"acme.test", action, resource);
@id("vault") forbid (principal, action, resource) when { context.params.host == "vault" };
@id("people") forbid (principal, action, resource) unless { context.approved };`)},
	},
	Auditors: []string{auditor}, Admins: []string{admin},
	People: []devstack.DevPerson{
		{Username: "alice", Name: "Alice", Groups: []string{"oncall", "leads"}},
		{Username: "bob", Name: "Bob", Groups: []string{"oncall"}},
		{Username: "dave", Name: "Dave", Groups: []string{"leads"}},
		{Username: "erin", Name: "Erin", Groups: []string{"leads"}},
		{Username: "mallory", Name: "Mallory", Groups: []string{"staff"}},
	},
	Rules: []people.Rule{
		{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleApprover, Group: "leads", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleApprover, Group: "staff", Within: []string{"spiffe://acme.test"}},
	},
	Owners: []string{"spiffe://acme.test/users/{owner}/**"},
}

func shell(ttl time.Duration) client.Ask {
	return client.Ask{Scope: "hosts.shell.open", Params: map[string]any{"host": "web-1"}, TTL: ttl, Task: "task-1", Reason: "it burns"}
}

// breaks reads a request and casts a break-glass vote.
func breaks(t *testing.T, c *client.Client, id string) (openapi.ApprovalCase, error) {
	t.Helper()
	shown, err := c.Approval(t.Context(), id)
	if err != nil {
		return shown, err
	}
	return c.Vote(t.Context(), shown, openapi.VerdictBreakGlass, "oncall does not answer")
}

func TestBreakGlassNeedsTwoPeople(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withGlass)
	other, sandbox := s.Replica(t), s.Client(t, agent)
	heard := hear(t, s.Person(t, "bob"))
	id := waiting(t, sandbox, shell(31*time.Minute))
	heard.wants(t, "waiting "+id)
	if list, err := s.Person(t, "dave").Approvals(t.Context(), 10); err != nil || len(list.Approvals) != 1 || list.Approvals[0].Approval.BreakGlass != "leads" || list.Approvals[0].Approval.Broken {
		t.Errorf("got %+v, %v, want it listed to who may stand in, and whole", list, err)
	}
	for _, replica := range []*testkit.Stack{s, other} {
		after, err := breaks(t, replica.Person(t, "dave"), id)
		if err != nil || after.Status != "pending" || len(after.Votes) != 1 || !after.Approval.Broken {
			t.Errorf("one person, twice: got %+v, %v, want one vote, and that the glass is broken", after, err)
		}
	}
	heard.wants(t, "waiting "+id) // sent again because of the break-glass vote
	if list, err := other.Person(t, "bob").Approvals(t.Context(), 10); err != nil || len(list.Approvals) != 1 || !list.Approvals[0].Approval.Broken {
		t.Errorf("got %+v, %v, want those who were asked to see that the glass is broken", list, err)
	}
	after, err := breaks(t, other.Person(t, "erin"), id)
	if err != nil || after.Status != "approved" {
		t.Fatalf("got %+v, %v, want it approved by the second", after, err)
	}
	heard.wants(t, "approved "+id)
	if state, err := sandbox.State(t.Context(), id); err != nil || !state.Approval.Broken || state.Approval.BreakGlass != "leads" {
		t.Errorf("got %+v, %v, want the sandbox told that the glass is broken", state, err)
	}
	got, err := sandbox.Redeem(t.Context(), id, shell(0))
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	cut := slices.Contains(got.Token.Clamped, openapi.Clamp{Bound: scopes.BoundBreakGlass, From: 31 * 60, To: 30 * 60})
	if !got.Token.BreakGlass || got.Token.TTL != 30*time.Minute || !cut {
		t.Errorf("got %+v, want 30 minutes of the 31, and that the glass was broken", got.Token)
	}
	var listed []openapi.Issuance
	for one, err := range s.Client(t, auditor).Issuances(t.Context(), client.Filter{DecisionCode: scopes.ReasonBreakGlass}) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, one)
	}
	if len(listed) != 1 || listed[0].ID != got.Token.ID || listed[0].Approves != id || !strings.Contains(listed[0].Explanation, "after approval by the break-glass group") {
		t.Errorf("got %+v, want what was issued by breaking the glass", listed)
	}
	s.DB.Check(t)
}

// The log and the metrics show each break-glass step.
func TestBreakGlassIsLoggedAndCounted(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withGlass)
	if text := scrape(t, s.Server); !strings.Contains(text, `brevet_break_glass_total{step="vote"} 0`) {
		t.Errorf("got %s, want a counter that can be seen to rise", text)
	}
	id := waiting(t, s.Client(t, agent), shell(0))
	for _, who := range []string{"dave", "erin"} {
		if _, err := breaks(t, s.Person(t, who), id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Client(t, agent).Redeem(t.Context(), id, shell(0)); err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	for _, want := range []string{`brevet_break_glass_total{step="vote"} 2`, `brevet_break_glass_total{step="issuance"} 1`} {
		if text := scrape(t, s.Server); !strings.Contains(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	errors := 0
	for line := range strings.Lines(s.Log.String()) {
		if strings.Contains(line, "level=ERROR") && strings.Contains(line, "break-glass approval") && strings.Contains(line, id) && strings.Contains(line, agent) {
			errors++
		}
	}
	if errors != 3 {
		t.Errorf("got %d errors in the log, want one for each vote and one for what was issued", errors)
	}
}

// Each recorded vote is counted once. Repeated votes are not counted, and a denial that comes too late is.
func TestVotesAreCountedOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withGlass)
	id := waiting(t, s.Client(t, agent), shell(0))
	if _, err := vote(t, s.Person(t, "alice"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"alice", "dave", "dave", "erin", "erin"} {
		if _, err := breaks(t, s.Person(t, who), id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Client(t, agent).Redeem(t.Context(), id, shell(0)); err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	for range 2 {
		if _, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictDeny); code(err) != openapi.CodeDecided {
			t.Errorf("a no after the issue: got %v, want decided", err)
		}
	}
	text := scrape(t, s.Server)
	for _, want := range []string{
		`brevet_break_glass_total{step="vote"} 2`,
		`verdict="approve"} 1`, `verdict="break_glass"} 2`, `verdict="deny"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	if n := strings.Count(text, "\nbrevet_votes_total{"); n != 3 {
		t.Errorf("got %d verdicts, want 3", n)
	}
	for _, identity := range []string{`"alice"`, `"bob"`, `"dave"`, `"erin"`, "spiffe://", id} {
		if strings.Contains(text, identity) {
			t.Errorf("the metrics, which need no login, name %s", identity)
		}
	}
}

func TestInvalidBreakGlassVotesAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withGlass)
	sandbox := s.Client(t, agent)
	wants := func(name string, err error, want openapi.ProblemCode) {
		t.Helper()
		if code(err) != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	id := waiting(t, sandbox, shell(0))
	shown, err := s.Person(t, "dave").Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range []string{"", " \t"} {
		_, err = s.Person(t, "dave").Vote(t.Context(), shown, openapi.VerdictBreakGlass, note)
		wants("without a note", err, openapi.CodeInvalidRequest)
	}
	_, err = s.Person(t, "dave").Vote(t.Context(), openapi.ApprovalCase{ID: id, Hash: strings.Repeat("0", 64)}, openapi.VerdictBreakGlass, "x")
	wants("another hash", err, openapi.CodeStale)
	_, err = breaks(t, s.Person(t, "bob"), id)
	wants("of the group that was asked", err, openapi.CodeNotEligible)
	_, err = breaks(t, s.Person(t, "mallory"), id)
	wants("of no group", err, openapi.CodeNotEligible)
	_, err = vote(t, s.Person(t, "dave"), id, openapi.VerdictApprove)
	wants("an ordinary yes by who may stand in", err, openapi.CodeNotEligible)
	own := waiting(t, s.Client(t, aliceBot), shell(0))
	_, err = breaks(t, s.Person(t, "alice"), own)
	wants("for one's own sandbox", err, openapi.CodeOwnRequest)
	_, err = sandbox.Vote(t.Context(), shown, openapi.VerdictBreakGlass, "x")
	wants("a workload", err, openapi.CodeNotAllowed)

	// Two ordinary votes and one break-glass vote do not add up to a quorum of three, and Alice, who is in both groups, counts
	// once.
	for _, who := range []string{"alice", "bob"} {
		if _, err := vote(t, s.Person(t, who), id, openapi.VerdictApprove); err != nil {
			t.Fatal(err)
		}
	}
	for _, who := range []string{"alice", "dave"} {
		if after, err := breaks(t, s.Person(t, who), id); err != nil || after.Status != "pending" {
			t.Errorf("%s: got %+v, %v, want it pending", who, after, err)
		}
	}
	if got, err := sandbox.Redeem(t.Context(), id, shell(0)); err != nil || got.Pending == nil {
		t.Errorf("got %+v, %v, want it pending", got, err)
	}
	s.DB.Check(t)
}

// Break-glass replaces the approval of the group, and nothing else.
func TestBreakGlassReplacesOnlyTheGroupsApproval(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withGlass)
	sandbox := s.Client(t, agent)
	forbidden := shell(0)
	forbidden.Params = map[string]any{"host": "vault"}
	if _, err := sandbox.Request(t.Context(), forbidden); code(err) != openapi.CodeDenied {
		t.Errorf("got %v, want a forbid to win", err)
	}
	broken := func(who *client.Client) string {
		id := waiting(t, who, shell(0))
		for _, name := range []string{"dave", "erin"} {
			if _, err := breaks(t, s.Person(t, name), id); err != nil {
				t.Fatal(err)
			}
		}
		return id
	}
	denied := broken(sandbox)
	if after, err := vote(t, s.Person(t, "bob"), denied, openapi.VerdictDeny); err != nil || after.Status != "rejected" {
		t.Errorf("a no afterwards: got %+v, %v, want it rejected", after, err)
	}
	if _, err := sandbox.Redeem(t.Context(), denied, shell(0)); code(err) != openapi.CodeDenied {
		t.Errorf("after a no: got %v, want denied", err)
	}
	redeemed := broken(sandbox)
	got, err := sandbox.Redeem(t.Context(), redeemed, shell(0))
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	if _, err := vote(t, s.Person(t, "dave"), redeemed, openapi.VerdictDeny); code(err) != openapi.CodeDecided {
		t.Errorf("a no after the issue: got %v, want decided", err)
	}
	if state, err := sandbox.State(t.Context(), got.Token.ID); err != nil || state.Status != "revoked" {
		t.Errorf("got %+v, %v, want it revoked", state, err)
	}
	remembered := broken(sandbox)
	if again, err := sandbox.Request(t.Context(), shell(0)); err != nil || again.Pending == nil {
		t.Errorf("after %s: got %+v, %v, want the same ask to wait again", remembered, again, err)
	}
	confined := broken(s.Client(t, twin))
	if _, err := s.Client(t, admin).Quarantine(t.Context(), twin, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client(t, twin).Redeem(t.Context(), confined, shell(0)); code(err) != openapi.CodeDenied {
		t.Errorf("in quarantine: got %v, want denied", err)
	}
	s.DB.Check(t)
}
