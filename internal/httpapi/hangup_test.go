package httpapi_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// hangingUp is a ledger that calls a function after Begin or before Get, in which the caller disconnects.
type hangingUp struct {
	broker.Ledger
	atGet, atBegun *atomic.Pointer[func(context.Context)]
}

func (l hangingUp) Get(ctx context.Context, id string, reach broker.Reach) (*broker.View, error) {
	if f := l.atGet.Load(); f != nil {
		(*f)(ctx)
	}
	return l.Ledger.Get(ctx, id, reach)
}

func (l hangingUp) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	earlier, err := l.Ledger.Begin(ctx, rec)
	if f := l.atBegun.Load(); f != nil {
		(*f)(ctx)
	}
	return earlier, err
}

// withHangUps returns a replica with such a ledger.
func withHangUps(t *testing.T, s *testkit.Stack) (*testkit.Stack, hangingUp) {
	t.Helper()
	h := hangingUp{atGet: &atomic.Pointer[func(context.Context)]{}, atBegun: &atomic.Pointer[func(context.Context)]{}}
	o := withPeople
	o.Ledger = func(l broker.Ledger) broker.Ledger {
		h.Ledger = l
		return h
	}
	return s.ReplicaWith(t, o), h
}

// gone returns a function that cancels a call and waits until the server notices, at most half a second.
func gone(cancel context.CancelFunc) func(context.Context) {
	return func(ctx context.Context) {
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// A denial is carried out even if the voter disconnects: the credential is revoked.
func TestDenialRevokesAfterTheVoterDisconnects(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	replica, h := withHangUps(t, s)
	sandbox, ask := s.Client(t, agent), askFor("git.issues.write")
	id := waiting(t, sandbox, ask)
	shown, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reads atomic.Int32
	hangUp := gone(cancel)
	second := func(ctx context.Context) { // the first read is before the denial is recorded
		if reads.Add(1) == 2 {
			hangUp(ctx)
		}
	}
	h.atGet.Store(&second)
	if _, err := replica.Person(t, "carol").Vote(ctx, shown, openapi.VerdictDeny, ""); err == nil {
		t.Error("got an answer, want none: the voter has hung up")
	}
	eventually(t, func() error {
		state, err := sandbox.State(t.Context(), got.Token.ID)
		if err == nil && state.Status != openapi.StatusRevoked {
			err = fmt.Errorf("got %s, want it revoked", state.Status)
		}
		return err
	})
}

// If the caller disconnects while an earlier approval is reused, no request is left waiting for people.
func TestDisconnectDuringReuseLeavesNothingPending(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	replica, h := withHangUps(t, s)
	ask := askFor("git.comments.write")
	carol := s.Person(t, "carol")
	shown, err := carol.Approval(t.Context(), waiting(t, s.Client(t, agent), ask))
	if err == nil {
		_, err = carol.VoteForTask(t.Context(), shown, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		hangUp := gone(cancel)
		h.atBegun.Store(&hangUp)
		ask.IdempotencyKey = rand.Text()
		_, _ = replica.Client(t, agent).Request(ctx, ask)
		h.atBegun.Store(nil)
		cancel()
	}
	eventually(t, func() error {
		again, err := carol.Approval(t.Context(), shown.ID)
		list, listErr := carol.Approvals(t.Context(), 100)
		err = errors.Join(err, listErr)
		if err == nil && (len(list.Approvals) != 0 || again.Recalled != 3) {
			err = fmt.Errorf("got %d recalled and %d that wait, want 3 and none", again.Recalled, len(list.Approvals))
		}
		return err
	})
}

// A forged record, written with the broker's own rights, cannot allow break-glass if the catalogue does not.
func TestBreakGlassNeedsAScopeThatAllowsIt(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.People = append(o.People[:len(o.People):len(o.People)], devstack.DevPerson{Username: "nina", Name: "Nina", Groups: []string{"staff"}})
	s := testkit.NewStack(t, o)
	sandbox, ask := s.Client(t, agent), askFor("git.repo.delete")
	l := s.DB.Ledger(t)
	v, err := l.Get(t.Context(), waiting(t, sandbox, ask), broker.Reach{All: true})
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.Must(uuid.NewV7()).String()
	text := strings.Replace(strings.Replace(v.Canonical, v.ID, id, 1), `"quorum":2,`, `"quorum":2,"break_glass":"staff",`, 1)
	rec := broker.Record{
		ID: id, Time: v.Time, Subject: v.Subject, Status: broker.StatusPending, Expires: v.Expires, Canonical: text, Digest: v.RequestDigest,
		Request: broker.Request{Scope: v.Scope, Params: v.Params, TTL: v.TTLAsked, RequestContext: scopes.RequestContext{Task: v.Task}, Reason: v.Reason},
		Decision: scopes.Decision{
			Outcome: scopes.Pending, Scope: &scopes.Scope{Name: v.Scope, Authority: scopes.Authority(v.Authority)}, Resource: v.Resource,
			Params: v.Params, TTL: v.TTL, Policies: v.Policies, Reason: v.DecisionCode, Explanation: v.Explanation, Catalogue: v.Catalogue,
			Approval: &scopes.Approval{Group: "oncall", Quorum: 2, BreakGlass: "staff", Expires: 10 * time.Minute},
		},
	}
	if _, err := l.Begin(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"mallory", "nina"} {
		if _, err := breaks(t, s.Person(t, who), id); err != nil {
			t.Fatalf("%s: %v", who, err)
		}
	}
	if got, err := sandbox.Redeem(t.Context(), id, ask); got.Token != nil || code(err) != openapi.CodeStale {
		t.Errorf("got %+v, %v; want %s", got.Token, err, openapi.CodeStale)
	}
}
