package broker_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

// heldLookUps finds the same pending request for everybody, but only after release is closed.
type heldLookUps struct {
	*tape
	begun   chan string // the sandboxes of the look-ups that have begun
	release chan struct{}
}

func (h heldLookUps) EqualRequest(_ context.Context, rec broker.Record, _ []string) (*broker.View, error) {
	select {
	case h.begun <- rec.Subject.ID.String():
	case <-h.release:
	}
	<-h.release
	return &broker.View{ID: "open", Status: broker.StatusPending}, nil
}

// T11: a sandbox that repeats a request many times at once takes few connections to the store, and none from other trust domains. A
// repeat needs nothing but the look-up: every other read of the tape fails.
func TestRepeatsLookUpInTurn(t *testing.T) {
	f := newFixture(t)
	catalogue, err := scopes.Load([]scopes.File{
		{Name: "scopes.yaml", Data: []byte(catalogueScopes)},
		{Name: "policy.cedar", Data: []byte(`@id("writes") permit (principal, action == Action::"github.issues.write", resource) when { context.approved };`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	held := heldLookUps{f.tape, make(chan string), make(chan struct{})}
	f.cfg.Approvals, f.cfg.Catalogue = held, func() *scopes.Catalogue { return catalogue }
	f.useTokens(t, noTokens{})
	write := read()
	write.Scope = "github.issues.write"
	var calls errgroup.Group
	repeat := func(who attest.Identity) {
		calls.Go(func() error {
			got, err := f.Issue(t.Context(), who, write)
			if err != nil || got.Earlier == nil || got.Earlier.ID != "open" {
				return fmt.Errorf("got %+v, %w, want the open request", got, err)
			}
			return nil
		})
	}
	for range 60 {
		repeat(f.who)
	}
	for range 2 {
		if got := <-held.begun; got != f.who.ID().String() {
			t.Errorf("%s looks up first", got)
		}
	}
	other := identityOf(t, "spiffe://other.example/agent-1")
	repeat(other)
	if got := <-held.begun; got != other.ID().String() {
		t.Errorf("%s looks up, want the sandbox of the other trust domain", got)
	}
	close(held.release)
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
}
