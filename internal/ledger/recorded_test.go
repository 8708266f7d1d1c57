package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/google/go-cmp/cmp"
)

// history opens the decisions since start, as an auditor.
func history(t *testing.T, db *testkit.DB, start time.Time, readers int) *ledger.History {
	t.Helper()
	h, err := ledger.OpenHistory(t.Context(), db.AuditorURL, start.Truncate(time.Microsecond), readers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// readAll reads with this many goroutines, and returns what they got in the order of the ids.
func readAll(t *testing.T, h *ledger.History, readers int) []replay.Recorded {
	t.Helper()
	var mu sync.Mutex
	var all []replay.Recorded
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			var mine []replay.Recorded
			if err := h.Read(t.Context(), func(rec replay.Recorded) { mine = append(mine, rec) }); err != nil {
				t.Errorf("Read: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b replay.Recorded) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// recorded returns what History must return for a record.
func recorded(rec broker.Record) replay.Recorded {
	d := rec.Decision
	return replay.Recorded{
		ID: rec.ID, SPIFFEID: rec.Subject.ID.String(), Bound: rec.Subject.Kind == attest.KindX509, Proved: rec.Request.JKT != "", Scope: rec.Request.Scope,
		Params: d.Params, TTL: rec.Request.TTL, RequestContext: scopes.RequestContext{Task: rec.Request.Task}, Time: rec.Time.Truncate(time.Microsecond),
		Outcome: d.Outcome, Reason: d.Reason, Given: d.TTL,
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	unknown := denied(func(rec *broker.Record) {
		rec.Decision.Scope, rec.Decision.Params, rec.Decision.Resource = nil, nil, ""
		rec.Decision.Reason, rec.Request.Scope = scopes.ReasonUnknownScope, "git.raed"
		rec.Request.Params = map[string]any{"x": []any{"y"}, "whole": int64(1) << 60, "large": 1e30}
	})
	byJWT := allowed(func(rec *broker.Record) {
		rec.Subject.Kind, rec.Subject.Thumbprint, rec.Request.JKT = attest.KindJWT, "", "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
	})
	cut := allowed(func(rec *broker.Record) {
		rec.Decision.TTL = 90 * time.Second
		rec.Decision.Clamps = append(rec.Decision.Clamps, scopes.Clamp{Bound: scopes.BoundSVID, From: 15 * time.Minute, To: 90 * time.Second})
	})
	over := denied(func(rec *broker.Record) {
		rec.Decision.Reason = scopes.ReasonSVIDExpiring
		rec.Decision.Clamps = []scopes.Clamp{{Bound: scopes.BoundSVID, From: 15 * time.Minute, To: 0}}
	})
	ofBob := allowed(func(rec *broker.Record) { rec.Request.User = bobsUser() })
	cutAgain := allowed(func(rec *broker.Record) {
		rec.Request.User, rec.Decision.TTL = bobsUser(), time.Minute
		rec.Decision.Clamps = append(cut.Decision.Clamps, scopes.Clamp{Bound: scopes.BoundUser, From: 90 * time.Second, To: time.Minute})
	})
	before := allowed(func(rec *broker.Record) { rec.Time = start.Add(-time.Microsecond) })
	first, wait := allowed(nil), pending(nil)
	begin(t, l, first, denied(func(rec *broker.Record) { rec.Time = start.Add(-time.Hour) }), unknown, byJWT, cut, before, over, wait, ofBob, cutAgain)
	settle(t, l, to(first, broker.StatusFailed)) // its outcome does not matter

	want := []replay.Recorded{recorded(first), recorded(unknown), recorded(byJWT), recorded(cut), recorded(over), recorded(wait), recorded(ofBob), recorded(cutAgain)}
	want[1].Params = unknown.Request.Params
	want[3].Expires = want[3].Time.Add(90 * time.Second)
	want[4].Expires = want[4].Time
	want[6].User, want[7].User = bobsUser(), bobsUser()
	want[7].User.Until = want[7].Time.Add(time.Minute)
	slices.SortFunc(want, func(a, b replay.Recorded) int { return strings.Compare(a.ID, b.ID) })
	h := history(t, db, start, 1)
	if h.Total() != int64(len(want)) {
		t.Errorf("got %d decisions, want %d", h.Total(), len(want))
	}
	begin(t, l, allowed(nil)) // too late for h
	if diff := cmp.Diff(want, readAll(t, h, 1)); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	if again := readAll(t, h, 1); again != nil {
		t.Errorf("got %d decisions a second time, want none", len(again))
	}
}

// A request that waited and was redeemed counts once.
func TestHistoryCountsAnApprovedRequestOnce(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	const canonical = `{"scope":"git.read"}`
	voter := approval.Voter{ID: "https://people.test#carol", Name: "Carol", Handle: "carol", Groups: []string{"oncall"}, SaidAt: saidEarlier}
	voter, err := l.UpsertPerson(t.Context(), voter, start)
	if err != nil {
		t.Fatal(err)
	}
	asked := pending(func(rec *broker.Record) { rec.Decision.Approval.Quorum, rec.Canonical = 1, canonical })
	begin(t, l, asked)
	err = l.Apply(t.Context(), broker.Transition{
		Request: asked.ID, Was: broker.StatusPending, Becomes: broker.StatusApproved, Time: start, Actor: voter.ID,
		Vote: &approval.Vote{Voter: voter, Verdict: approval.Approve, Time: start},
	})
	if err != nil {
		t.Fatal(err)
	}
	redeemed := allowed(func(rec *broker.Record) {
		rec.Decision.Reason, rec.Approves, rec.Canonical = scopes.ReasonApproved, asked.ID, canonical
	})
	begin(t, l, redeemed)
	h := history(t, db, start, 1)
	if diff := cmp.Diff([]replay.Recorded{recorded(asked)}, readAll(t, h, 1)); diff != "" || h.Total() != 1 {
		t.Errorf("%d decisions (-want +got):\n%s", h.Total(), diff)
	}
}

// Each decision is read once, however the chunks are divided among readers.
func TestHistoryInChunks(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	var want []replay.Recorded
	for rec := range records(40) {
		begin(t, l, rec)
		settle(t, l, to(rec, broker.StatusFailed)) // an index between two decisions
		want = append(want, recorded(rec))
	}
	for _, size := range []int64{1, 7, 79, 80, 1000} {
		for _, readers := range []int{1, 4} {
			t.Run(fmt.Sprintf("size=%d,readers=%d", size, readers), func(t *testing.T) {
				h := history(t, db, start, readers)
				h.InChunksOf(size)
				if diff := cmp.Diff(want, readAll(t, h, readers)); diff != "" {
					t.Errorf("decisions (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestHistoryOfNothing(t *testing.T) {
	t.Parallel()
	h := history(t, testkit.NewDB(t), moment(), 2)
	if got := readAll(t, h, 2); h.Total() != 0 || got != nil {
		t.Errorf("got %d decisions and %v, want none", h.Total(), got)
	}
}

func TestHistoryFailures(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	begin(t, db.Ledger(t), allowed(nil), allowed(nil))
	t.Run("cancelled", func(t *testing.T) {
		h := history(t, db, start, 1)
		h.InChunksOf(1)
		ctx, cancel := context.WithCancel(t.Context())
		err := h.Read(ctx, func(replay.Recorded) { cancel() })
		if !errors.Is(err, context.Canceled) || !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
	})
	t.Run("no migrations", func(t *testing.T) {
		_, err := ledger.OpenHistory(t.Context(), testkit.EmptyDB(t).AdminURL, start, 1)
		if !errors.Is(err, migrations.ErrOutdated) {
			t.Errorf("got %v, want ErrOutdated", err)
		}
	})
	t.Run("no URL", func(t *testing.T) {
		if _, err := ledger.OpenHistory(t.Context(), "postgres://%", start, 1); !errors.Is(err, migrations.ErrURL) {
			t.Errorf("got %v, want ErrURL", err)
		}
	})
}
