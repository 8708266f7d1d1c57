package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
)

const jkt = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"

func (p *tape) UseProof(context.Context, dpop.Proof) error {
	p.say("use proof")
	return p.beginErr
}

// A proved key is in the record, and in the claims of credentials that can be bound to it.
func TestTokenIsBoundToTheProvedKey(t *testing.T) {
	f := newFixture(t)
	ask, report := read(), broker.Request{Scope: "reports.read", RequestContext: scopes.RequestContext{Task: "t-1"}, JKT: jkt}
	ask.JKT = jkt
	for _, req := range []broker.Request{ask, report, read()} {
		if _, err := f.Issue(t.Context(), f.who, req); err != nil {
			t.Fatal(err)
		}
	}
	bound, other, bearer := f.tape.records[0], f.tape.records[1], f.tape.records[2]
	var claims token.Claims
	if err := json.Unmarshal(bound.Intent.Claims, &claims); err != nil {
		t.Fatal(err)
	}
	if bound.Request.JKT != jkt || claims.Confirm == nil || *claims.Confirm != (token.Confirm{JKT: jkt}) {
		t.Errorf("got the key %q and the cnf %+v, want both to be the one that was proved", bound.Request.JKT, claims.Confirm)
	}
	if other.Request.JKT != "" {
		t.Error("a database login is recorded as bound to a key")
	}
	if bound.Digest == bearer.Digest {
		t.Error("one digest for two keys: a repeated idempotency key would pass for either")
	}
}

// It also shares the proofs of a second between trust domains and sandboxes.
func TestProofIsRefusedWithoutTheReplayStore(t *testing.T) {
	f := newFixture(t)
	f.tape.beginErr = broker.ErrLedgerUnavailable
	use := func(by int) error {
		domain := []string{"acme.test", "other.test", "third.test"}[by/10]
		return f.UseProof(t.Context(), "spiffe://"+domain+"/"+strconv.Itoa(by), dpop.Proof{})
	}
	if err := use(0); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
	f.tape.beginErr = nil
	taken := [20]int{}
	for i := range 30_000 { // sandbox 0 calls ten times as often as each other
		by := max(0, i/1000-10)
		if err := use(by); err == nil {
			taken[by]++
		} else if !errors.Is(err, dpop.ErrCrowded) {
			t.Fatal(err)
		}
	}
	// The first trust domain is alone when it begins, and takes half. The second has a third, of which its first sandbox has half at most,
	// and no sandbox more than 200.
	acme, other := 1, 0 // one that failed
	for by, n := range taken {
		if n > 200 {
			t.Errorf("got %d proofs of sandbox %d taken in a second, want at most 200", n, by)
		}
		if by < 10 {
			acme += n
		} else {
			other += n
		}
	}
	if taken[0] != 199 || acme > 1000 || acme < 600 || other > 667 || other < 400 {
		t.Errorf("got %v proofs taken in a second", taken)
	}
	if err := use(20); err != nil {
		t.Errorf("a third trust domain in the same second: got %v", err)
	}
	f.clock = f.clock.Add(time.Second)
	if err := use(0); err != nil {
		t.Errorf("a second later: got %v", err)
	}
}
