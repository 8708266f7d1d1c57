package server_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/brevettest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// H95: whoever withdraws what it has asked for has bothered people all the same. What a yes covers bothers nobody.
func TestAskingAndWithdrawingIsLimited(t *testing.T) {
	s := brevettest.NewStack(t, withPeople)
	sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
	covered := askFor("git.comments.write")
	shown, err := carol.Approval(t.Context(), waiting(t, sandbox, covered))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := carol.VoteForTask(t.Context(), shown, ""); err != nil {
		t.Fatal(err)
	}
	for range broker.AskingLimit.Count - 1 {
		if err := sandbox.Withdraw(t.Context(), waiting(t, sandbox, askFor("git.issues.write"))); err != nil {
			t.Fatal(err)
		}
	}
	var p *client.Problem
	if _, err := s.Replica(t).Client(t, agent).Request(t.Context(), askFor("git.repo.delete")); !errors.As(err, &p) ||
		p.Code != openapi.CodeRateLimited || p.RetryAfter == 0 || !strings.Contains(p.Error(), "People are asked 60 in 1h per sandbox at most") {
		t.Errorf("once more: got %v, want rate_limited", err)
	}
	if got, err := sandbox.Request(t.Context(), covered); err != nil || got.Token == nil {
		t.Errorf("what a yes covers: got %+v, %v, want a credential", got, err)
	}
	waiting(t, s.Client(t, twin), askFor("git.issues.write"))
	s.DB.Check(t)
}

// onceRead does something right after a record was read.
type onceRead struct {
	broker.Ledger
	do *atomic.Pointer[func()]
}

func (l onceRead) Get(ctx context.Context, id string, reach broker.Reach) (*broker.View, error) {
	view, err := l.Ledger.Get(ctx, id, reach)
	if do := l.do.Swap(nil); do != nil {
		(*do)()
	}
	return view, err
}

// A request whose mint failed is redeemed once more while somebody says no: the no ends the second credential.
func TestANoBetweenTwoRedemptions(t *testing.T) {
	var meanwhile atomic.Pointer[func()]
	slow, broken := withPeople, withPeople
	slow.Ledger = func(l broker.Ledger) broker.Ledger { return onceRead{l, &meanwhile} }
	broken.Minter = func(m broker.Minter) broker.Minter {
		return brokenMinter{m, func() (broker.Credential, error) { return broker.Credential{}, broker.ErrVaultUnavailable }}
	}
	s := brevettest.NewStack(t, withPeople)
	sandbox, ask := s.Client(t, agent), askFor("git.issues.write")
	id := waiting(t, sandbox, ask)
	shown, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictApprove)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReplicaWith(t, broken).Client(t, agent).Redeem(t.Context(), id, ask); code(err) != openapi.CodeVaultUnavailable {
		t.Fatalf("got %v, want vault_unavailable", err)
	}
	var second client.Answer
	redeem := func() { second, err = sandbox.Redeem(t.Context(), id, ask) }
	carol := s.ReplicaWith(t, slow).Person(t, "carol")
	meanwhile.Store(&redeem)
	if _, voteErr := carol.Vote(t.Context(), shown, openapi.VerdictDeny, ""); code(voteErr) != openapi.CodeDecided {
		t.Errorf("got %v, want decided", voteErr)
	}
	if err != nil || second.Token == nil {
		t.Fatalf("got %+v, %v, want a credential meanwhile", second, err)
	}
	if state, err := sandbox.State(t.Context(), second.Token.ID); err != nil || state.Status != "revoked" {
		t.Errorf("got %+v, %v, want it revoked", state, err)
	}
	s.DB.Check(t)
}
