package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/openapi"
	"golang.org/x/sync/errgroup"
)

var raceRows = []row{
	{h: "H103", sent: "one Idempotency-Key a hundred times at once; the same key with another body", then: "one issuance; 422", apart: true, tries: []try{{"over both replicas", oneKey}}},
	{h: "H104", sent: "an end during minting", then: "no credential is live after the answer", apart: true, tries: []try{{"tasks and quarantines", endedMeanwhile}}},
	{h: "H105", sent: "a scope that is removed during requests for it", then: "nothing is issued after the answer", apart: true, tries: []try{{"over both replicas", takenAway}}},
	{h: "H106", sent: "a token that was ended on the other replica", then: "inactive", apart: true, tries: []try{{"each end", endedElsewhere}}},
	{h: "H107", sent: "a quorum over two replicas at once", then: "one issuance", apart: true, tries: []try{{"ten of them", quorums}}},
}

func oneKey(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	var wg sync.WaitGroup
	var created, told atomic.Int64
	for i := range 100 {
		s := w.s[i%2]
		auth := "Bearer " + s.JWT(t, agent)
		wg.Go(func() {
			got := call{auth: auth, headers: []string{"Idempotency-Key: k-1"}}.send(t, s)
			switch {
			case got.status == http.StatusCreated:
				created.Add(1)
			case got.status == http.StatusConflict && got.code == "already_issued":
				told.Add(1)
			case got.status == http.StatusTooManyRequests || got.status == http.StatusServiceUnavailable && got.code == "overloaded":
				told.Add(1) // too many calls in flight
			default:
				t.Errorf("got %d %s %s", got.status, got.code, got.text)
			}
		})
	}
	wg.Wait()
	intents := 0
	for _, e := range w.added(t) {
		if e.Kind == "issuance.intent" {
			intents++
		}
	}
	if asked := w.vault.since(0); created.Load() != 1 || intents != 1 || len(asked) != 1 {
		t.Errorf("got %d tokens, %d issuances recorded and %v asked of Vault, want one of each; %d were told so", created.Load(), intents, asked, told.Load())
	}
	w.later() // the calls above may have used up the fifty refusals that a replica records per second
	for _, s := range w.s {
		c := call{headers: []string{"Idempotency-Key: k-1"}, body: params(`{"repo":"acme/web"}`)}
		refusal{422, "idempotency_mismatch", plain}.of(t, w, c, s)
	}
	w.check(t)
}

// endedMeanwhile revokes on one replica what the other replica is minting.
func endedMeanwhile(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	var given int
	var live, late atomic.Int64
	for round := range 20 {
		who := fmt.Sprintf("spiffe://acme.test/agents/a/%d", round)
		ask := issues
		ask.Task = fmt.Sprintf("t-%d", round)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var tokens []string
		for n := range 6 {
			c := w.s[n%2].Client(t, who)
			wg.Go(func() {
				if got, err := c.Request(t.Context(), ask); err == nil && got.Token != nil {
					mu.Lock()
					defer mu.Unlock()
					tokens = append(tokens, got.Token.Secret.Reveal())
				}
			})
		}
		wg.Go(func() {
			var err error
			if round%2 == 0 {
				_, err = w.s[1].Client(t, who).EndTask(t.Context(), ask.Task, client.TaskEnd{})
			} else {
				_, err = w.s[0].Client(t, admin).Quarantine(t.Context(), who, "test")
			}
			if err != nil && !errors.Is(err, client.ErrNotFound) {
				t.Errorf("ending: %v", err)
			}
			if err != nil { // there was nothing to end yet
				_, _ = w.s[0].Client(t, admin).Quarantine(t.Context(), who, "test")
			}
		})
		wg.Wait()
		given += len(tokens)
		for _, token := range tokens {
			for n := range w.s {
				if w.introspect(t, n, token) != inactive {
					live.Add(1)
				}
			}
		}
		for _, s := range w.s {
			if got, err := s.Client(t, who).Request(t.Context(), ask); err == nil {
				late.Add(1)
				t.Logf("round %d: got %+v", round, got.Token)
			}
		}
	}
	if given == 0 {
		t.Error("nothing was issued before an end, so that none was tried")
	}
	if live.Load()+late.Load() > 0 {
		t.Errorf("%d are live after the end, and %d were issued after it", live.Load(), late.Load())
	}
	w.check(t)
}

// takenAway applies a catalogue that removes what two replicas are busy issuing.
func takenAway(t *testing.T, _ *world) {
	o := staffed
	o.SecondAdmin = false
	w := newWorld(t, o)
	shut := changedFiles(t, catalogue, `permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"authority:read"`,
		`permit (principal in Path::"spiffe://acme.test/agents/nobody", action in Action::"authority:read"`)
	shut = changedFiles(t, shut, `permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"git.*"`,
		`permit (principal in Path::"spiffe://acme.test/agents/nobody", action in Action::"git.*"`)
	ctx, stop := context.WithCancel(t.Context())
	callers, callCtx := errgroup.WithContext(ctx)
	var closed atomic.Bool // set when the apply is answered
	var issued, refused atomic.Int64
	for n := range 8 {
		c := w.s[n%2].Client(t, agent)
		callers.Go(func() error {
			for callCtx.Err() == nil {
				after := closed.Load()
				got, err := c.Request(callCtx, issues)
				switch {
				case callCtx.Err() != nil:
					return nil //nolint:nilerr // it was told to stop
				case err == nil && after:
					return fmt.Errorf("%s was issued after the answer", got.Token.ID)
				case err == nil:
					issued.Add(1)
				case errors.Is(err, client.ErrDenied):
					refused.Add(1)
				default:
					return err
				}
			}
			return nil
		})
	}
	enough := func(n *atomic.Int64) func() bool {
		return func() bool { return n.Load() > 50 || callCtx.Err() != nil }
	}
	eventually(t, "tokens", enough(&issued))
	if got := proposing(t, w.s[0], shut).send(t, w.s[0]); got.status != http.StatusOK {
		t.Fatalf("applying: got %d %s", got.status, got.text)
	}
	closed.Store(true)
	eventually(t, "denials", enough(&refused))
	stop()
	if err := callers.Wait(); err != nil {
		t.Error(err)
	}
	w.check(t) // checks every decision against the catalogue that was applied according to earlier entries
}

func endedElsewhere(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	for round := range 15 {
		here, there := round%2, (round+1)%2
		sandbox := w.s[here].Client(t, agent)
		got, err := sandbox.Request(t.Context(), issues)
		if err != nil || got.Token == nil {
			t.Fatalf("got %+v, %v", got, err)
		}
		raw := got.Token.Secret.Reveal()
		for range 3 { // so that it may be answered from the cache
			if seen := w.introspect(t, there, raw); !strings.Contains(seen, `"active":true`) {
				t.Fatalf("before: got %s", seen)
			}
		}
		switch round % 3 {
		case 0:
			_, err = sandbox.Release(t.Context(), got.Token.ID)
		case 1:
			_, err = w.s[here].Client(t, admin).Revoke(t.Context(), client.Selection{ID: got.Token.ID}, "test")
		case 2:
			_, err = w.s[here].Client(t, admin).Revoke(t.Context(), client.Selection{Scope: issues.Scope, TrustDomain: "acme.test"}, "test")
		}
		if err != nil {
			t.Fatalf("ending: %v", err)
		}
		for n := range w.s {
			if seen := w.introspect(t, n, raw); seen != inactive {
				t.Errorf("round %d, replica %d: got %s after its end was confirmed", round, n, seen)
			}
		}
	}
	w.check(t)
}

// quorums lets two people approve at the same moment, each at another replica, while the sandbox redeems at both.
func quorums(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	for round := range 10 {
		ask := writing(fmt.Sprintf("t-%d", round))
		ask.Scope = "git.repo.delete"
		id := waiting(t, w.s[round%2].Client(t, agent), ask)
		shown, err := w.s[0].Person(t, "bob").Approval(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		before := len(w.vault.since(0))
		voters := []devstack.DevPerson{{Username: "bob"}, {Username: "carol"}}
		issued, counted := votesAtOnce(t, w, voters, shown, ask)
		for _, s := range w.s {
			got, err := s.Client(t, agent).Redeem(t.Context(), id, ask)
			if err == nil && got.Token != nil {
				issued[got.Token.ID] = true
			} else {
				wants(t, "redeeming again", err, http.StatusConflict, openapi.CodeNotApproved)
			}
		}
		if asked := w.vault.since(before); len(issued) != 1 || counted != 2 || len(asked) != 1 {
			t.Errorf("got %d issuances by %d votes, and %v of Vault, want one by two", len(issued), counted, asked)
		}
	}
	w.check(t)
}
