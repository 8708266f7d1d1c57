package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"golang.org/x/sync/errgroup"
)

// H95: a withdrawn request still counts against the limit, because people were asked. A request that an approval covers does not
// count.
func TestWithdrawnRequestsCountAgainstTheLimit(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
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
		p.Code != openapi.CodeRateLimited || p.RetryAfter == 0 || !strings.Contains(p.Error(), "Requests for approval are limited to 60 in 1h per sandbox") {
		t.Errorf("once more: got %v, want rate_limited", err)
	}
	if got, err := sandbox.Request(t.Context(), covered); err != nil || got.Token == nil {
		t.Errorf("what a yes covers: got %+v, %v, want a credential", got, err)
	}
	waiting(t, s.Client(t, twin), askFor("git.issues.write"))
	s.DB.Check(t)
}

// H95: neither a few sandboxes that request as often as they may nor a whole trust domain hide the requests of others, in the
// list and in the stream. Approvers learn that there are more requests.
func TestFloodHidesNoOtherRequests(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Rules = []people.Rule{{Role: people.RoleApprover, Group: "oncall"}}
	s := testkit.NewStack(t, o)
	ask, bob := askFor("git.issues.write"), s.Person(t, "bob")
	var flood errgroup.Group
	for i := range 26 {
		c := s.Client(t, fmt.Sprintf("spiffe://other.test/evil/s%d", i))
		flood.Go(func() error {
			for i := range 20 {
				ask := ask
				ask.IdempotencyKey = strconv.Itoa(i)
				if _, err := c.Request(t.Context(), ask); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := flood.Wait(); err != nil {
		t.Fatal(err)
	}
	beside, victim := waiting(t, s.Client(t, foreign), ask), waiting(t, s.Client(t, agent), ask)
	list, err := bob.Approvals(t.Context(), 500)
	if err != nil || len(list.Approvals) != 500 || !list.More {
		t.Fatalf("got %d, more: %t, %v, want 500 and more", len(list.Approvals), list.More, err)
	}
	if !slices.ContainsFunc(list.Approvals[:2], func(one openapi.ApprovalCase) bool { return one.ID == victim }) ||
		!slices.ContainsFunc(list.Approvals[:28], func(one openapi.ApprovalCase) bool { return one.ID == beside }) {
		t.Error("who asks for the first time is not listed in their turn")
	}
	watch := bob.WatchApprovals()
	heard := tellsUntil(t, watch, func(told map[string]bool) bool { return told[victim] && told[beside] && len(told) > maxTold })
	later := waiting(t, s.Client(t, twin), ask)
	// A client that reconnects receives the newest request, and also those that did not fit before, once there is room.
	for _, one := range list.Approvals[:40] {
		if _, err := bob.Vote(t.Context(), one, openapi.VerdictDeny, ""); err != nil {
			t.Fatal(err)
		}
	}
	tellsUntil(t, watch, func(told map[string]bool) bool {
		maps.Copy(heard, told)
		return heard[later] && len(heard) == 26*20+3
	})
	if list, err := bob.Approvals(t.Context(), 500); err != nil || list.More {
		t.Errorf("got %d, more: %t, %v, want all", len(list.Approvals), list.More, err)
	}
}

// maxTold is how many requests of a group a stream sends at once.
const maxTold = 500

// tellsUntil follows a watch until enough accepts the requests that it sent as waiting.
func tellsUntil(t *testing.T, watch *client.ApprovalWatch, enough func(told map[string]bool) bool) map[string]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	told, done := map[string]bool{}, errors.New("enough")
	err := watch.Follow(ctx, func(e client.ApprovalEvent) error {
		if e.Waiting != nil {
			told[e.Waiting.ID] = true
		} else if e.Decided.Status == openapi.StatusPending {
			t.Errorf("%s is said to wait no more, and does", e.Decided.ID)
		}
		if enough(told) {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatalf("%d told, and then %v", len(told), err)
	}
	return told
}

// onceRead runs a function once, right after a record was read.
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

// A request whose mint failed is redeemed again during a denial. The denial revokes the second credential.
func TestDenialDuringRedemptionRevokes(t *testing.T) {
	t.Parallel()
	var meanwhile atomic.Pointer[func()]
	slow, broken := withPeople, withPeople
	slow.Ledger = func(l broker.Ledger) broker.Ledger { return onceRead{l, &meanwhile} }
	broken.Minter = func(m broker.Minter) broker.Minter {
		return brokenMinter{m, func() (broker.Credential, error) { return broker.Credential{}, broker.ErrVaultUnavailable }}
	}
	s := testkit.NewStack(t, withPeople)
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
