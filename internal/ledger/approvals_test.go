package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
)

func TestApprovalIsRedeemedOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	request := approved(t, l)
	first := redeems(request)
	begin(t, l, first)
	if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("redeeming twice: got %v, want ErrNotApproved", err)
	}
	// A request whose issuance failed can be redeemed once more, and not more often.
	settle(t, l, to(first, broker.StatusFailed))
	second := redeems(request)
	begin(t, l, second)
	settle(t, l, to(second, broker.StatusFailed))
	if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("redeeming a third time: got %v, want ErrNotApproved", err)
	}
	db.Check(t)
}

// C9: an approval is used up by the commit of its intent. What stops that commit leaves the approval good for one credential.
func TestApprovalIsKeptUntilItsIntentIsCommitted(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	p, databaseURL := through(t, db.BrokerURL)
	l := open(t, databaseURL)
	for name, tc := range map[string]struct {
		stop func(broker.Record)
		end  func()
		want error
	}{
		"the commit does not arrive": {
			func(rec broker.Record) { p.arm(rec.ID, cutStatement, false) }, p.restore, broker.ErrLedgerUnavailable,
		},
		"the sandbox is in quarantine": {
			func(broker.Record) { announce(t, l, quarantine(sandbox)) }, func() { announce(t, l, lift(sandbox)) }, broker.ErrQuarantined,
		},
	} {
		request := approved(t, l)
		stopped := redeems(request)
		tc.stop(stopped)
		if _, err := l.Begin(t.Context(), stopped); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
		tc.end()
		if _, err := l.Begin(t.Context(), redeems(request)); err != nil {
			t.Errorf("%s: redeeming afterwards: %v", name, err)
		}
		if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
			t.Errorf("%s: redeeming twice: got %v, want ErrNotApproved", name, err)
		}
	}
	db.Check(t)
}

// I4 and I5: a request counts as approved only with the votes of eligible people, also when it is redeemed.
func TestUnapprovedRequestIsNotRedeemed(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	refused := func(name string, request broker.Record) {
		t.Helper()
		if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
			t.Errorf("%s: got %v, want ErrNotApproved", name, err)
		}
	}
	refused("nobody has voted", waits(t, l))
	one := waits(t, l)
	if err := cast(t, l, one, bobVotes, broker.Transition{Was: broker.StatusPending, Becomes: broker.StatusPending}); err != nil {
		t.Fatal(err)
	}
	refused("one of two", one)
	if err := cast(t, l, one, bobVotes, broker.Transition{Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusApproved}); err == nil {
		t.Error("one person was counted twice")
	}
	if err := cast(t, l, one, carolVotes, broker.Transition{Was: broker.StatusPending, Votes: 0, Becomes: broker.StatusApproved}); !errors.Is(err, broker.ErrConcurrentChange) {
		t.Errorf("a step from before: got %v, want ErrConcurrentChange", err)
	}
	stranger := approval.Voter{ID: "https://idp.test#eve", Name: "Eve", Groups: []string{"staff"}, SaidAt: saidEarlier}
	if err := cast(t, l, one, stranger, broker.Transition{Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusApproved}); err == nil {
		t.Error("somebody outside of the group was counted")
	}
	void := approved(t, l)
	left := carolVotes
	left.Groups, left.SaidAt = []string{}, start.Add(time.Minute)
	if _, err := l.UpsertPerson(t.Context(), left, start); err != nil {
		t.Fatal(err)
	}
	refused("H85: an approver has left the group", void)
	if known, err := l.UpsertPerson(t.Context(), carolVotes, start); err != nil || len(known.Groups) != 0 {
		t.Errorf("an older login brings the group back: %+v, %v", known, err)
	}
	back := carolVotes
	back.SaidAt = start.Add(2 * time.Minute)
	if _, err := l.UpsertPerson(t.Context(), back, start); err != nil {
		t.Fatal(err)
	}
	other := redeems(void)
	other.Decision.TTL += time.Second
	if _, err := l.Begin(t.Context(), other); err == nil {
		t.Error("more was issued than people have approved")
	}
	begin(t, l, redeems(void))
	db.Check(t)
}

// I4: a credential that reached the sandbox uses up its approval, also after the credential has ended.
func TestDeliveredCredentialUsesUpItsApproval(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for _, end := range []broker.Status{broker.StatusRevoked, broker.StatusReleased} {
		request := approved(t, l)
		delivered := redeems(request)
		begin(t, l, delivered)
		settle(t, l, to(delivered, end))
		if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
			t.Errorf("after the credential was %s: got %v, want ErrNotApproved", end, err)
		}
	}
	db.Check(t)
}

// T3, as far as the broker's own role goes: the database refuses rows that no one has voted for.
func TestForgedApprovals(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	request := waits(t, l)
	if _, err := l.UpsertPerson(t.Context(), bobVotes, start); err != nil {
		t.Fatal(err)
	}
	conn := testkit.Connect(t, db.BrokerURL)
	for name, sql := range map[string]string{
		"approved without votes":      `UPDATE issuances SET status = 'approved', status_time = now() WHERE id = $1`,
		"votes that are not there":    `UPDATE issuances SET status = 'approved', status_time = now(), votes = 2 WHERE id = $1`,
		"more votes at once":          `UPDATE issuances SET votes = 5 WHERE id = $1`,
		"redeemed at once":            `UPDATE issuances SET status = 'redeemed', redemptions = 1, redeemed_by = id WHERE id = $1`,
		"somebody who was never seen": `INSERT INTO people SELECT 'https://idp.test#x', 'x', 'x', '{oncall}', now(), id, entry_index FROM issuances WHERE id = $1`,
		"a vote that no entry has":    `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'approve', 'request', now(), '', entry_index FROM issuances WHERE id = $1`,
	} {
		if got := refusedBy(t, conn, sql, request.ID); got != violation {
			t.Errorf("%s: got %q, want %q", name, got, violation)
		}
	}
	if got := refusedBy(t, conn, `UPDATE issuances SET status = 'approved', status_time = now(), votes = 1 WHERE id = $1`, request.ID); got != violation {
		t.Errorf("approved by one of two: got %q, want %q", got, violation)
	}
}

// A person with a narrow reach sees the requests in it, however many wait elsewhere. A request that matches twice is listed
// once.
func TestPendingRequestsInReachAreNotCrowdedOut(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	var want []broker.PendingRequest
	var asking errgroup.Group
	for n := range 30 {
		asking.Go(func() error {
			_, err := l.Begin(t.Context(), pending(ofSandbox(n, nil)))
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*broker.Record){as(moment(), "spiffe://acme.test/small/a", "git.read", "t1", 0), as(moment(), "spiffe://acme.test/smaller", "git.read", "t1", 0)} {
		rec := pending(change)
		begin(t, l, rec)
		want = append(want, broker.PendingRequest{ID: rec.ID, SPIFFEID: rec.Subject.ID.String(), Group: "oncall"})
	}
	begin(t, l, pending(func(rec *broker.Record) {
		as(moment(), "spiffe://acme.test/small/b", "git.read", "t1", 0)(rec)
		lapse(rec)
	}))
	for name, tc := range map[string]struct {
		queries []broker.WaitingQuery
		want    []broker.PendingRequest
	}{
		"a path":             {[]broker.WaitingQuery{{Groups: []string{"oncall"}, Within: []string{"spiffe://acme.test/small"}, Limit: 20}}, want[:1]},
		"the same twice":     {[]broker.WaitingQuery{{Groups: []string{"oncall"}, Within: []string{"spiffe://acme.test/small"}, Limit: 20}, {Groups: []string{"x", "oncall"}, Within: []string{"spiffe://acme.test/smaller", "spiffe://acme.test/small"}, Limit: 20}}, want},
		"another group":      {[]broker.WaitingQuery{{Groups: []string{"admins"}, Within: []string{people.Everywhere}, Limit: 20}}, nil},
		"nowhere":            {[]broker.WaitingQuery{{Groups: []string{"oncall"}, Limit: 20}}, nil},
		"what is no group":   {[]broker.WaitingQuery{{Groups: []string{"\x00"}, Within: []string{people.Everywhere}, Limit: 20}}, nil},
		"nobody asks at all": {nil, nil},
	} {
		got, err := l.PendingRequests(t.Context(), tc.queries)
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	everywhere, err := l.PendingRequests(t.Context(), []broker.WaitingQuery{{Groups: []string{"oncall"}, Within: []string{people.Everywhere}, Limit: 20}})
	if err != nil || len(everywhere) != 20 {
		t.Errorf("got %d, %v, want the oldest 20", len(everywhere), err)
	}
}

// Each trust domain has its turn, and in it each sandbox, and the oldest request of a sandbox comes first.
func TestPendingRequestsAreListedRoundRobin(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	asked := map[string]string{}
	for _, one := range []string{"acme.test/a 1", "acme.test/a 2", "acme.test/b 1", "acme.test/a 3", "other.test/a 1", "acme.test/b 2", "other.test/a 2"} {
		id, _, _ := strings.Cut(one, " ")
		rec := pending(as(moment(), "spiffe://"+id, "git.read", "t1", 0))
		begin(t, l, rec)
		asked[rec.ID] = one
	}
	begin(t, l, pending(func(rec *broker.Record) { as(moment(), "spiffe://acme.test/a", "git.read", "t1", 0)(rec); lapse(rec) }))
	q := broker.WaitingQuery{Groups: []string{"oncall"}, Within: []string{people.Everywhere}}
	inTurn := []string{"acme.test/a 1", "other.test/a 1", "acme.test/b 1", "other.test/a 2", "acme.test/a 2", "acme.test/b 2", "acme.test/a 3"}
	for q.Limit = 1; q.Limit <= 8; q.Limit++ {
		n := min(q.Limit, 7)
		views, more, err := l.Waiting(t.Context(), q)
		var got []string
		for _, v := range views {
			got = append(got, asked[v.ID])
		}
		if diff := cmp.Diff(inTurn[:n], got); err != nil || more != (q.Limit < 7) || diff != "" {
			t.Errorf("%d: more: %t, %v (-want +got):\n%s", q.Limit, more, err, diff)
		}
		pending, err := l.PendingRequests(t.Context(), []broker.WaitingQuery{q})
		got = nil
		for _, s := range pending {
			got = append(got, asked[s.ID])
		}
		slices.Sort(got)
		if diff := cmp.Diff(slices.Sorted(slices.Values(inTurn[:n])), got); err != nil || diff != "" {
			t.Errorf("%d in short: %v (-want +got):\n%s", q.Limit, err, diff)
		}
	}
}
