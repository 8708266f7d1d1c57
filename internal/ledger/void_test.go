package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// asks begins a request of the n-th sandbox that one catalogue decided, and that two people have to approve.
func asks(t *testing.T, l *ledger.Ledger, n int, digest string, change func(*broker.Record)) broker.Record {
	t.Helper()
	rec := pending(testkit.OfSandbox(n, func(rec *broker.Record) {
		rec.Decision.Catalogue, rec.Canonical = digest, `{"what":"people see"}`
		rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
		if change != nil {
			change(rec)
		}
	}))
	begin(t, l, rec)
	return rec
}

// agree lets two people approve a request.
func agree(t *testing.T, l *ledger.Ledger, rec broker.Record) broker.Record {
	t.Helper()
	for i, who := range []approval.Voter{bobVotes, carolVotes} {
		becomes := []broker.Status{broker.StatusPending, broker.StatusApproved}[i]
		if err := cast(t, l, rec, who, broker.Transition{Was: broker.StatusPending, Votes: i, Becomes: becomes}); err != nil {
			t.Fatal(err)
		}
	}
	return rec
}

// I4, I11: another catalogue in force makes every request void that waits for people or to be redeemed, for good and at once. Nothing
// moves it any more, it counts as open nowhere, and one that had ended before stays what it was.
func TestCatalogueChangeMakesOpenRequestsVoid(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	box := openOutbox(t, db, standings)
	first := take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	waiting, agreed := asks(t, l, 1, first.Digest, nil), agree(t, l, asks(t, l, 2, first.Digest, nil))
	failed := agree(t, l, asks(t, l, 3, first.Digest, nil))
	issuance := redeems(failed)
	begin(t, l, issuance)
	settle(t, l, to(issuance, broker.StatusFailed))
	late := asks(t, l, 4, first.Digest, func(rec *broker.Record) {
		rec.Time = time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		rec.Expires = rec.Time.Add(time.Minute).Truncate(time.Second)
	})
	rejected := asks(t, l, 5, first.Digest, nil)
	if err := cast(t, l, rejected, bobVotes, broker.Transition{Was: "pending", Becomes: "rejected"}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		asks(t, l, 6, first.Digest, func(rec *broker.Record) { rec.Decision.Approval.Group = "others" })
	}
	for n, err := box.Next(t.Context(), standings); n != nil || err != nil; n, err = box.Next(t.Context(), standings) {
		if err != nil || box.MarkDelivered(t.Context(), standings.Name, *n) != nil {
			t.Fatal(err)
		}
	}

	change := take(t, l, step(t, l, broker.CatalogueApplied, "Two", "a"))
	stands := func(when string) {
		t.Helper()
		for rec, want := range map[string]broker.Status{
			waiting.ID: broker.StatusVoid, agreed.ID: broker.StatusVoid, failed.ID: broker.StatusRedeemed, late.ID: broker.StatusExpired,
			rejected.ID: broker.StatusRejected,
		} {
			view, err := l.Get(t.Context(), rec, broker.Reach{All: true})
			if err != nil || view.Status != want {
				t.Fatalf("%s: got %+v, %v, want %s", when, view, err, want)
			}
			if void := want == broker.StatusVoid; void != (view.VoidedBy == 2) || void != view.StatusTime.Equal(change.Time.Truncate(time.Microsecond)) {
				t.Errorf("%s: got version %d at %v of %s", when, view.VoidedBy, view.StatusTime, want)
			}
		}
		for status, want := range map[broker.Status][]string{
			broker.StatusPending: nil, broker.StatusApproved: nil, broker.StatusExpired: {late.ID}, broker.StatusRejected: {rejected.ID},
		} {
			page, err := l.List(t.Context(), broker.Query{Status: status, Limit: 50}, broker.Reach{All: true})
			var got []string
			for _, v := range page.Records {
				got = append(got, v.ID)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: listing %s: got %v, %v, want %v", when, status, got, err, want)
			}
		}
		page, err := l.List(t.Context(), broker.Query{Status: broker.StatusVoid, Limit: 50}, broker.Reach{All: true})
		if err != nil || len(page.Records) != 22 {
			t.Errorf("%s: listing void ones: got %d, %v", when, len(page.Records), err)
		}
		for rec, at := range map[string]broker.Transition{
			waiting.ID: {Was: "pending", Becomes: "pending"}, agreed.ID: {Was: "approved", Votes: 2, Becomes: "rejected"},
		} {
			if err := cast(t, l, broker.Record{ID: rec, Canonical: waiting.Canonical}, approval.Voter{ID: "https://idp.test#dave", Name: "Dave", Handle: "dave", Groups: []string{"oncall"}, SaidAt: saidEarlier}, at); !errors.Is(err, broker.ErrConcurrentChange) {
				t.Errorf("%s: a vote: got %v, want ErrConcurrentChange", when, err)
			}
			at.Request, at.Becomes, at.Time = rec, broker.StatusWithdrawn, time.Now()
			if err := l.Apply(t.Context(), at); !errors.Is(err, broker.ErrConcurrentChange) {
				t.Errorf("%s: a withdrawal: got %v, want ErrConcurrentChange", when, err)
			}
		}
		everybody := broker.WaitingQuery{Groups: []string{"oncall", "others"}, Within: []string{people.Everywhere}, Limit: 50}
		if views, _, err := l.Waiting(t.Context(), everybody); err != nil || len(views) > 0 {
			t.Errorf("%s: got %d waiting, %v", when, len(views), err)
		}
		if some, err := l.PendingRequests(t.Context(), []broker.WaitingQuery{everybody}); err != nil || len(some) > 0 {
			t.Errorf("%s: got %d pending, %v", when, len(some), err)
		}
		if ids, err := l.Decided(t.Context(), []string{waiting.ID}); err != nil || len(ids) != 1 {
			t.Errorf("%s: got %v decided, %v", when, ids, err)
		}
		for _, request := range []broker.Record{agreed, failed} {
			key := broker.ReuseKey{SPIFFEID: request.Subject.ID.String(), Task: request.Request.Task, Scope: request.Request.Scope}
			if reusable, err := l.ReusableApprovals(t.Context(), key, time.Time{}); err != nil || len(reusable) > 0 {
				t.Errorf("%s: got %d approvals to reuse, %v", when, len(reusable), err)
			}
		}
	}
	stands("after the change")
	for _, request := range []broker.Record{agreed, failed} {
		if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrSuperseded) {
			t.Errorf("redeeming: got %v, want ErrSuperseded", err)
		}
	}
	told := map[string]bool{}
	for n, err := box.Next(t.Context(), standings); n != nil || err != nil; n, err = box.Next(t.Context(), standings) {
		if err != nil || n.Kind != broker.NoticeDecided || n.Status != broker.StatusVoid || !n.Time.Equal(change.Time.Truncate(time.Microsecond)) || told[n.Request] {
			t.Fatalf("got %+v, %v, want a decision that a request is void", n, err)
		}
		told[n.Request] = true
		if err := box.MarkDelivered(t.Context(), standings.Name, *n); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 22 || !told[waiting.ID] || !told[agreed.ID] {
		t.Errorf("got %d notices", len(told))
	}
	feed, err := l.Changes(t.Context(), broker.Query{}, broker.Reach{Subject: agreed.Subject.ID.String()}, 0)
	if n := len(feed.Records); err != nil || n != 1 || feed.Records[0].Status != broker.StatusVoid {
		t.Errorf("got %+v, %v in the sandbox's feed", feed, err)
	}
	again := asks(t, l, 6, change.Digest, nil) // its sandbox had 20 that waited
	if err := l.Apply(t.Context(), broker.Transition{Request: again.ID, Was: "pending", Becomes: "withdrawn", Time: time.Now(), Actor: again.Subject.ID.String()}); err != nil {
		t.Error(err)
	}

	// The return of the earlier catalogue revives nothing.
	back := step(t, l, broker.CatalogueApplied, "One", "a")
	take(t, l, back)
	stands("after the return")
	for _, request := range []broker.Record{agreed, failed} {
		if _, err := l.Begin(t.Context(), redeems(request)); !errors.Is(err, broker.ErrNotApproved) {
			t.Errorf("redeeming after the return: got %v, want ErrNotApproved", err)
		}
	}
	// A denial of what was redeemed still counts: it revokes the credential.
	no := broker.Transition{Request: failed.ID, Was: "redeemed", Votes: 2, Becomes: "redeemed", Time: time.Now(), Actor: bobVotes.ID}
	no.Vote, no.Hash = &approval.Vote{Voter: bobVotes, Verdict: approval.Deny, Time: no.Time}, (&broker.ApprovalRequest{View: broker.View{Canonical: failed.Canonical}}).Hash()
	if err := l.Apply(t.Context(), no); err != nil {
		t.Errorf("denying what was redeemed: %v", err)
	}
	admin := testkit.Connect(t, db.AdminURL)
	for _, sql := range []string{
		`UPDATE issuances SET status = 'withdrawn' WHERE id = $1`, `UPDATE issuances SET status = 'rejected' WHERE id = $1`,
	} {
		if _, err := admin.Exec(t.Context(), sql, waiting.ID); err == nil || !strings.Contains(err.Error(), "is void") {
			t.Errorf("%s: got %v", sql, err)
		}
	}
	db.Check(t)
}

// A vote and a redemption that commit beside a change of the catalogue either come before it or are refused, on any replica.
func TestNoVoteFollowsACatalogueChange(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	inForce := take(t, replicas[0], step(t, replicas[0], broker.CatalogueApplied, "Round 0", ""))
	if _, err := replicas[0].UpsertPerson(t.Context(), bobVotes, moment()); err != nil {
		t.Fatal(err)
	}
	counted, refused := 0, 0
	for round := range 25 {
		var requests []broker.Record
		for n := range 8 {
			requests = append(requests, asks(t, replicas[n%2], 100*round+n, inForce.Digest, nil))
		}
		redeemable := agree(t, replicas[0], asks(t, replicas[0], 100*round+50, inForce.Digest, nil))
		next := step(t, replicas[0], broker.CatalogueApplied, fmt.Sprintf("Round %d", round+1), "a")
		if round%2 == 1 {
			next = step(t, replicas[0], broker.CatalogueApplied, "Round 0", "a")
		}
		var wg sync.WaitGroup
		outcomes := make([]error, len(requests))
		for n, rec := range requests {
			wg.Go(func() {
				outcomes[n] = cast(t, replicas[n%2], rec, bobVotes, broker.Transition{Was: "pending", Becomes: "pending"})
			})
		}
		wg.Go(func() {
			if _, err := replicas[1].Begin(t.Context(), redeems(redeemable)); err != nil && !errors.Is(err, broker.ErrSuperseded) {
				t.Errorf("redeeming: %v", err)
			}
		})
		wg.Go(func() { take(t, replicas[0], next) })
		wg.Wait()
		for n, err := range outcomes {
			view, failed := replicas[0].Get(t.Context(), requests[n].ID, broker.Reach{All: true})
			if failed != nil || view.Status != broker.StatusVoid || view.Votes > 0 != (err == nil) || err != nil && !errors.Is(err, broker.ErrConcurrentChange) {
				t.Errorf("got %+v, %v after %v", view, failed, err)
			}
			if err == nil {
				counted++
			} else {
				refused++
			}
		}
		inForce = next
	}
	t.Logf("%d votes before a change, %d refused", counted, refused)
	db.Check(t)
}

// I8: whoever lets a vote or a redemption pass in spite of a change leaves entries that no ledger can have, although each row agrees with
// its entry.
func TestVoteOnAVoidRequestIsFound(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	first := take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	waiting, agreed := asks(t, l, 1, first.Digest, nil), agree(t, l, asks(t, l, 2, first.Digest, nil))
	take(t, l, step(t, l, broker.CatalogueApplied, "Two", "a"))
	take(t, l, step(t, l, broker.CatalogueApplied, "One", "a"))
	exec(t, testkit.Connect(t, db.AdminURL),
		`CREATE OR REPLACE FUNCTION outdated(since bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN false; END $$`)
	if err := cast(t, l, waiting, bobVotes, broker.Transition{Was: "pending", Becomes: "pending"}); err != nil {
		t.Fatal(err)
	}
	begin(t, l, redeems(agreed))
	found := testkit.Findings(t, db.AdminURL)
	for i, what := range []string{"its request was void", "it redeems a request that was void"} {
		if len(found) != 2 || !strings.Contains(found[i].What, what) {
			t.Fatalf("got %v, want that %s", found, what)
		}
	}
}
