package server_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/brevettest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

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
