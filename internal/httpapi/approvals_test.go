package httpapi_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// aliceBot is a sandbox that Alice owns.
const aliceBot = "spiffe://acme.test/users/alice/bot"

const approvable = `scopes:
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.repo.delete
    title: Delete a repository
    authority: delete
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 2}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.comments.write
    title: Comment on issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, remember: task}
    credential: {kind: jwt, audience: https://git.test}
  - name: vault.notes.write
    title: Write notes
    authority: write
    resource: vault:notes
    ttl: {default: 1m, max: 5m}
    approval: {group: admins, quorum: 1}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [update]}]}
`

var withPeople = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(approvable)},
		{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal in TrustDomain::"acme.test", action, resource);
@id("others") permit (principal in TrustDomain::"other.test", action, resource);
@id("people") forbid (principal, action, resource) unless { context.approved };`)},
	},
	Auditors: []string{auditor}, Admins: []string{admin},
	People: []devstack.DevPerson{
		{Username: "alice", Name: "Alice", Groups: []string{"oncall", "admins"}},
		{Username: "bob", Name: "Bob", Groups: []string{"oncall"}},
		{Username: "carol", Name: "Carol", Groups: []string{"oncall", "admins"}},
		{Username: "mallory", Name: "Mallory", Groups: []string{"staff"}},
		{Username: "otto", Name: "Otto", Groups: []string{"oncall", "elsewhere"}},
	},
	Rules: []people.Rule{
		{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleApprover, Group: "staff", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleApprover, Group: "elsewhere", Within: []string{"spiffe://other.test"}},
	},
	Owners: []string{"spiffe://acme.test/users/{owner}/**"},
}

func askFor(scope string) client.Ask {
	a := client.Ask{Scope: scope, Task: "task-1", Reason: "because"}
	if scope != "vault.notes.write" {
		a.Params = map[string]any{"repo": "acme/api"}
	}
	return a
}

// waiting sends a new request that needs approval, and returns its id. It gives the request an idempotency key, unless it has one:
// otherwise the request could repeat an earlier one.
func waiting(t *testing.T, c *client.Client, a client.Ask) string {
	t.Helper()
	a.IdempotencyKey = cmp.Or(a.IdempotencyKey, rand.Text())
	return pending(t, c, a)
}

// pending sends a request that needs approval, and returns its id.
func pending(t *testing.T, c *client.Client, a client.Ask) string {
	t.Helper()
	got, err := c.Request(t.Context(), a)
	if err != nil || got.Pending == nil {
		t.Fatalf("asking for %s: got %+v, %v, want it pending", a.Scope, got, err)
	}
	return got.Pending.ID
}

// vote reads a request and votes on what it shows.
func vote(t *testing.T, c *client.Client, id string, verdict openapi.Verdict) (openapi.ApprovalCase, error) {
	t.Helper()
	shown, err := c.Approval(t.Context(), id)
	if err != nil {
		return shown, err
	}
	return c.Vote(t.Context(), shown, verdict, "")
}

func code(err error) openapi.ProblemCode {
	var p *client.Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return ""
}

func TestApprovedWriteIsIssued(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	for _, scope := range []string{"git.issues.write", "vault.notes.write"} {
		t.Run(scope, func(t *testing.T) {
			sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
			id := waiting(t, sandbox, askFor(scope))
			if got, err := sandbox.Redeem(t.Context(), id, askFor(scope)); err != nil || got.Pending == nil || got.Token != nil {
				t.Fatalf("redeeming what waits: got %+v, %v, want it pending", got, err)
			}
			list, err := carol.Approvals(t.Context(), 10)
			if err != nil || len(list.Approvals) != 1 || list.Approvals[0].ID != id || list.Approvals[0].Reason != "because" || list.Approvals[0].Title == "" {
				t.Fatalf("got %+v, %v, want the request and what the scope does", list, err)
			}
			after, err := vote(t, carol, id, openapi.VerdictApprove)
			if err != nil || after.Status != "approved" || len(after.Votes) != 1 || after.Votes[0].Name != "Carol" {
				t.Fatalf("got %+v, %v, want it approved by Carol", after, err)
			}
			got, err := sandbox.Redeem(t.Context(), id, askFor(scope))
			if err != nil || got.Token == nil || got.Token.ID == id {
				t.Fatalf("got %+v, %v, want a credential of its own issuance", got, err)
			}
			if _, err := sandbox.Redeem(t.Context(), id, askFor(scope)); code(err) != openapi.CodeNotApproved {
				t.Errorf("redeeming again: got %v, want not_approved", err)
			}
			request, err := s.Client(t, auditor).Issuance(t.Context(), id)
			if err != nil || request.Status != "redeemed" || request.RedeemedBy != got.Token.ID {
				t.Errorf("got %+v, %v, want it redeemed by %s", request, err, got.Token.ID)
			}
			issued, err := s.Client(t, auditor).Issuance(t.Context(), got.Token.ID)
			if err != nil || issued.Approves != id || issued.DecisionCode != "approved" {
				t.Errorf("got %+v, %v, want an issuance that approves %s", issued, err, id)
			}
		})
	}
	s.DB.Check(t)
}

// T7, with H83 to H88, H92 and H94: who may vote on what, and when.
func TestIneligibleVotesAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, other := s.Client(t, agent), s.Replica(t)
	wants := func(name string, err error, want openapi.ProblemCode) {
		t.Helper()
		if code(err) != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	own := waiting(t, s.Client(t, aliceBot), askFor("git.issues.write"))
	_, err := vote(t, s.Person(t, "alice"), own, openapi.VerdictApprove)
	wants("H83: one's own sandbox", err, openapi.CodeOwnRequest)

	two := waiting(t, sandbox, askFor("git.repo.delete"))
	for _, replica := range []*testkit.Stack{s, other, s} {
		after, err := vote(t, replica.Person(t, "bob"), two, openapi.VerdictApprove)
		if err != nil || after.Status != "pending" || len(after.Votes) != 1 {
			t.Errorf("H84: one person twice: got %+v, %v, want one vote", after, err)
		}
	}
	_, err = vote(t, s.Person(t, "mallory"), two, openapi.VerdictApprove)
	wants("not in the group", err, openapi.CodeNotEligible)

	shown, err := s.Person(t, "carol").Approval(t.Context(), two)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := s.Person(t, "carol").Approval(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	shown.Hash = stale.Hash
	_, err = s.Person(t, "carol").Vote(t.Context(), shown, openapi.VerdictApprove, "")
	wants("H86: another hash", err, openapi.CodeStale)

	foreign := waiting(t, s.Client(t, "spiffe://other.test/agents/a"), askFor("git.issues.write"))
	for name, id := range map[string]string{
		"H92: foreign": foreign, "unknown": "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21", "malformed": "x",
	} {
		_, err := s.Person(t, "bob").Approval(t.Context(), id)
		wants(name, err, openapi.CodeNotFound)
		_, err = s.Person(t, "bob").Vote(t.Context(), openapi.ApprovalCase{ID: id, Hash: shown.Hash}, openapi.VerdictApprove, "")
		wants(name+", a vote", err, openapi.CodeNotFound)
	}
	for name, workload := range map[string]*client.Client{"X.509": sandbox, "JWT": s.JWTClient(t, agent), "admin": s.Client(t, admin)} {
		_, err := workload.Vote(t.Context(), shown, openapi.VerdictApprove, "")
		wants("H94: "+name+"-SVID", err, openapi.CodeNotAllowed)
	}
	withdrawn := waiting(t, sandbox, askFor("git.issues.write"))
	if err := sandbox.Withdraw(t.Context(), withdrawn); err != nil {
		t.Fatal(err)
	}
	_, err = vote(t, s.Person(t, "bob"), withdrawn, openapi.VerdictApprove)
	wants("H87: after a withdrawal", err, openapi.CodeDecided)
	denied := waiting(t, sandbox, askFor("git.issues.write"))
	if after, err := vote(t, s.Person(t, "bob"), denied, openapi.VerdictDeny); err != nil || after.Status != "rejected" {
		t.Errorf("got %+v, %v, want it rejected", after, err)
	}
	_, err = vote(t, s.Person(t, "carol"), denied, openapi.VerdictApprove)
	wants("H87: after a no", err, openapi.CodeDecided)
	_, err = sandbox.Redeem(t.Context(), denied, askFor("git.issues.write"))
	wants("redeeming after a no", err, openapi.CodeDenied)
	s.DB.Check(t)
}

// H88: a denial after issuance comes too late for the decision, but it still revokes the credential.
func TestDenialAfterIssuanceRevokes(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox := s.Client(t, agent)
	for _, scope := range []string{"git.issues.write", "vault.notes.write"} {
		id := waiting(t, sandbox, askFor(scope))
		if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
			t.Fatal(err)
		}
		got, err := sandbox.Redeem(t.Context(), id, askFor(scope))
		if err != nil || got.Token == nil {
			t.Fatalf("got %+v, %v, want a credential", got, err)
		}
		if _, err := vote(t, s.Person(t, "alice"), id, openapi.VerdictDeny); code(err) != openapi.CodeDecided {
			t.Errorf("%s: got %v, want decided", scope, err)
		}
		if state, err := sandbox.State(t.Context(), got.Token.ID); err != nil || state.Status != "revoked" {
			t.Errorf("%s: got %+v, %v, want it revoked", scope, state, err)
		}
		if _, err := sandbox.Redeem(t.Context(), id, askFor(scope)); code(err) != openapi.CodeNotApproved {
			t.Errorf("%s: redeeming again: got %v, want not_approved", scope, err)
		}
	}
	s.DB.Check(t)
}

// H93, H107: with concurrent votes and redemptions on both replicas, the credential is issued once.
func TestConcurrentVotesIssueOnce(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.People = nil
	for i := range 100 {
		name := "voter-" + string(rune('a'+i/10)) + string(rune('a'+i%10))
		o.People = append(o.People, devstack.DevPerson{Username: name, Name: name, Groups: []string{"oncall"}})
	}
	s := testkit.NewStack(t, o)
	replicas := []*testkit.Stack{s, s.Replica(t)}
	id := waiting(t, s.Client(t, agent), askFor("git.repo.delete"))
	shown, err := s.Person(t, o.People[0].Username).Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var voters sync.WaitGroup
	var mu sync.Mutex
	issued := map[string]bool{}
	counted := 0
	for i, p := range o.People {
		voter, sandbox := replicas[i%2].Person(t, p.Username), replicas[(i+1)%2].Client(t, agent)
		voters.Go(func() {
			_, err := voter.Vote(t.Context(), shown, openapi.VerdictApprove, "")
			got, redeemErr := sandbox.Redeem(t.Context(), id, askFor("git.repo.delete"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				counted++
			} else if code(err) != openapi.CodeDecided {
				t.Errorf("voting: %v", err)
			}
			if redeemErr == nil && got.Token != nil {
				issued[got.Token.ID] = true
			} else if redeemErr != nil && code(redeemErr) != openapi.CodeNotApproved {
				t.Errorf("redeeming: %v", redeemErr)
			}
		})
	}
	voters.Wait()
	if len(issued) != 1 || counted != 2 {
		t.Errorf("got %d issuances by %d votes, want 1 by 2", len(issued), counted)
	}
	s.DB.Check(t)
}

func TestWaitReturnsOnTheVote(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	other, sandbox := s.Replica(t), s.Client(t, agent)
	id := waiting(t, sandbox, askFor("git.issues.write"))
	type seen struct {
		state openapi.RequestState
		err   error
		at    time.Time
	}
	done := make(chan seen)
	go func() {
		state, err := sandbox.Wait(t.Context(), id)
		done <- seen{state, err, time.Now()}
	}()
	if _, err := vote(t, other.Person(t, "bob"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	voted := time.Now()
	got := <-done
	if got.err != nil || got.state.Status != "approved" || got.at.Sub(voted) > 10*time.Second { // one call waits for 20 s
		t.Errorf("got %+v %v after the vote, want it approved at once", got.state, got.at.Sub(voted))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := sandbox.Wait(ctx, waiting(t, sandbox, askFor("git.issues.write"))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for nobody: got %v, want the caller's own time", err)
	}
}

// H105, I4 and I5: redemption checks everything again.
func TestVoidApprovalsAreNotRedeemed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	for name, tc := range map[string]struct {
		sandbox string
		spoil   func(t *testing.T, sandbox, task string)
		want    openapi.ProblemCode
	}{
		"the sandbox is in quarantine": {"q", func(t *testing.T, sandbox, _ string) {
			if _, err := s.Client(t, admin).Quarantine(t.Context(), sandbox, "test"); err != nil {
				t.Fatal(err)
			}
		}, openapi.CodeDenied},
		"the task has ended": {"e", func(t *testing.T, sandbox, task string) {
			if _, err := s.Client(t, sandbox).EndTask(t.Context(), task, client.TaskEnd{}); err != nil {
				t.Fatal(err)
			}
		}, openapi.CodeNotApproved}, // the end of the task has withdrawn the request
	} {
		t.Run(name, func(t *testing.T) {
			sandbox := "spiffe://acme.test/agents/" + tc.sandbox
			id := waiting(t, s.Client(t, sandbox), askFor("git.issues.write"))
			if _, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove); err != nil {
				t.Fatal(err)
			}
			tc.spoil(t, sandbox, "task-1")
			_, err := s.Client(t, sandbox).Redeem(t.Context(), id, askFor("git.issues.write"))
			if code(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	s.DB.Check(t)
}

// However a task ends, its pending requests are withdrawn, and nobody can vote on them any more.
func TestEndedTaskWithdrawsItsRequests(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, bob, dave := s.Client(t, agent), s.Person(t, "bob"), s.Client(t, auditor)
	sweep(t, s)
	ask := func(task string) string {
		a := askFor("git.issues.write")
		a.Task = task
		return waiting(t, sandbox, a)
	}
	for _, tc := range []struct {
		name  string
		by    string // who ends the task
		end   func() client.TaskEnd
		actor string // whom the record names
	}{
		{"by the sandbox", agent, func() client.TaskEnd { return client.TaskEnd{} }, agent},
		{"by an admin", admin, func() client.TaskEnd { return client.TaskEnd{SPIFFEID: agent, Reason: "enough"} }, admin},
		{"by a deadline", agent, func() client.TaskEnd { return client.TaskEnd{At: time.Now().Add(5 * time.Second)} }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			task := strings.ReplaceAll(tc.name, " ", "-")
			undecided, approved, other := ask(task), ask(task), ask(task+"-other")
			if _, err := vote(t, bob, approved, openapi.VerdictApprove); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Client(t, tc.by).EndTask(t.Context(), task, tc.end()); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{undecided, approved} {
				eventually(t, func() error {
					record, err := dave.Issuance(t.Context(), id)
					if err == nil && (record.Status != "withdrawn" || record.EndedBy != tc.actor) {
						err = fmt.Errorf("request is %s by %q, want it withdrawn by %q", record.Status, record.EndedBy, tc.actor)
					}
					return err
				})
			}
			if _, err := vote(t, bob, undecided, openapi.VerdictApprove); code(err) != openapi.CodeDecided {
				t.Errorf("a vote after the end: got %v, want %s", err, openapi.CodeDecided)
			}
			if _, err := vote(t, bob, other, openapi.VerdictApprove); err != nil {
				t.Errorf("a vote on another task's request: %v", err)
			}
		})
	}
	s.DB.Check(t)
}

// I4: an approval that covers the task applies to the same request of the same sandbox and task, and to nothing else. A denial ends
// it.
func TestApprovalForTheTaskIsReused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
	covering := func(id string) (openapi.ApprovalCase, error) {
		shown, err := carol.Approval(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return carol.VoteForTask(t.Context(), shown, "")
	}
	never := waiting(t, sandbox, askFor("git.issues.write"))
	if _, err := covering(never); code(err) != openapi.CodeInvalidRequest {
		t.Errorf("a scope that remembers nothing: got %v, want invalid_request", err)
	}
	ask := askFor("git.comments.write")
	first := waiting(t, sandbox, ask)
	if _, err := covering(first); err != nil {
		t.Fatal(err)
	}
	tokens := []string{}
	got, err := sandbox.Redeem(t.Context(), first, ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a credential", got, err)
	}
	for range 3 {
		again, err := s.Replica(t).Client(t, agent).Request(t.Context(), ask)
		if err != nil || again.Token == nil {
			t.Fatalf("asking again: got %+v, %v, want a credential at once", again, err)
		}
		tokens = append(tokens, again.Token.ID)
	}
	if c, err := carol.Approval(t.Context(), first); err != nil || c.Recalled != 3 {
		t.Errorf("got %+v, %v, want it recalled 3 times", c, err)
	}
	other, longer, elsewhere := ask, ask, ask
	other.Task, longer.TTL, elsewhere.Params = "task-2", 10*time.Minute, map[string]any{"repo": "acme/web"}
	for name, a := range map[string]client.Ask{"another task": other, "for longer": longer, "another repository": elsewhere} {
		if got, err := sandbox.Request(t.Context(), a); err != nil || got.Pending == nil {
			t.Errorf("%s: got %+v, %v, want it pending", name, got, err)
		}
	}
	if got, err := s.Client(t, twin).Request(t.Context(), ask); err != nil || got.Pending == nil {
		t.Errorf("another sandbox: got %+v, %v, want it pending", got, err)
	}
	if _, err := vote(t, s.Person(t, "bob"), first, openapi.VerdictDeny); code(err) != openapi.CodeDecided {
		t.Errorf("a no afterwards: got %v, want decided", err)
	}
	for _, id := range append(tokens, got.Token.ID) {
		if state, err := sandbox.State(t.Context(), id); err != nil || state.Status != "revoked" {
			t.Errorf("got %+v, %v, want all of it revoked", state, err)
		}
	}
	if got, err := sandbox.Request(t.Context(), ask); err != nil || got.Pending == nil {
		t.Errorf("after the no: got %+v, %v, want it pending", got, err)
	}
	unused := ask
	unused.Task = "task-3"
	standing := waiting(t, sandbox, unused)
	if _, err := covering(standing); err != nil {
		t.Fatal(err)
	}
	recalled, err := sandbox.Request(t.Context(), unused)
	if err != nil || recalled.Token == nil {
		t.Fatalf("got %+v, %v, want a credential at once", recalled, err)
	}
	if after, err := vote(t, s.Person(t, "bob"), standing, openapi.VerdictDeny); err != nil || after.Status != "rejected" {
		t.Errorf("a no to what is not redeemed: got %+v, %v, want it rejected", after, err)
	}
	if state, err := sandbox.State(t.Context(), recalled.Token.ID); err != nil || state.Status != "revoked" {
		t.Errorf("got %+v, %v, want what it stood for revoked", state, err)
	}
	s.DB.Check(t)
}

// H95: neither a sandbox nor a person can flood the approvers.
func TestRequestAndVoteFloodsAreLimited(t *testing.T) {
	t.Parallel()
	o := withPeople
	var stopped atomic.Int64 // when the clock stopped; on a busy machine the calls are too slow for a flood
	o.Now = func() time.Time {
		if at := stopped.Load(); at != 0 {
			return time.Unix(0, at)
		}
		return time.Now()
	}
	s := testkit.NewStack(t, o)
	sandbox, other := s.Client(t, agent), s.Replica(t).Client(t, agent)
	var ids []string
	for i := range 20 {
		ids = append(ids, waiting(t, []*client.Client{sandbox, other}[i%2], askFor("git.issues.write")))
	}
	var p *client.Problem
	if _, err := other.Request(t.Context(), askFor("git.repo.delete")); !errors.As(err, &p) || p.Code != openapi.CodeRateLimited || p.RetryAfter == 0 {
		t.Errorf("the 21st: got %v, want rate_limited with Retry-After", err)
	}
	waiting(t, s.Client(t, twin), askFor("git.issues.write"))
	if err := sandbox.Withdraw(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	waiting(t, sandbox, askFor("git.issues.write"))

	bob, flooded := s.Person(t, "bob"), false
	stopped.Store(time.Now().UnixNano())
	for range 400 {
		if _, err := bob.Approvals(t.Context(), 1); code(err) == openapi.CodeRateLimited {
			flooded = true
			break
		}
	}
	if !flooded {
		t.Error("400 calls of one person were answered, want 429 in between")
	}
	if _, err := s.Person(t, "carol").Approvals(t.Context(), 1); err != nil {
		t.Errorf("another person: %v", err)
	}
	s.DB.Check(t)
}

// H90: prefetching a page does not vote. H87: an expired request is decided.
func TestPrefetchDoesNotVote(t *testing.T) {
	t.Parallel()
	o := withPeople
	var ahead atomic.Int64
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, o)
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	for _, path := range []string{"/v1/approvals/" + id, "/v1/approvals/" + id + "/votes", "/v1/approvals/" + id + "/votes?verdict=approve"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+s.IDToken(t, "bob"))
			resp, err := s.HTTP(t, nil).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	}
	shown, err := s.Person(t, "bob").Approval(t.Context(), id)
	if err != nil || shown.Status != "pending" || shown.VotesCast != 0 {
		t.Errorf("got %+v, %v, want no vote", shown, err)
	}
	ahead.Store(int64(11 * time.Minute))
	if _, err := s.Person(t, "bob").Vote(t.Context(), shown, openapi.VerdictApprove, ""); code(err) != openapi.CodeDecided {
		t.Errorf("after its time: got %v, want decided", err)
	}
	s.DB.Check(t)
}
