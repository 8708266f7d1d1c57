package ledger_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func status(t *testing.T, l *ledger.Ledger) broker.LedgerStatus {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStatusOfAnEmptyLedger(t *testing.T) {
	t.Parallel()
	got := status(t, testkit.NewDB(t).Ledger(t))
	if !got.Primary || got.Version == "" || got.RoundTrip <= 0 || got.RoundTrip > time.Minute || got.Bytes <= 0 {
		t.Errorf("got %+v, want a primary that answers", got)
	}
	if got.Entries != 0 || got.Unrevoked != 0 || got.Checkpoint != (broker.Checkpoint{}) || got.Cosigned != nil || got.Sweeper.Held || got.Witnesses.Held {
		t.Errorf("got %+v, want nothing in it and nobody who leads", got)
	}
}

func TestStatusTellsOfCheckpoints(t *testing.T) {
	t.Parallel()
	l, n := testkit.NewDB(t).Ledger(t), newNotary(t)
	for range 3 {
		grow(t, l, 1)
		sealed(t, l, n)
	}
	grow(t, l, 2)
	for _, c := range []struct {
		witness string
		size    int64
	}{{"b", 1}, {"a", 1}, {"a", 3}} {
		if err := l.Cosign(t.Context(), c.witness, c.size, line); err != nil {
			t.Fatal(err)
		}
	}
	got := status(t, l)
	sizes := []int64{got.Entries, got.Checkpoint.Size}
	for _, c := range got.Cosigned {
		sizes = append(sizes, c.Size)
		if time.Since(c.Time) > time.Minute {
			t.Errorf("got a cosignature of %s", c.Time)
		}
	}
	if !slices.Equal(sizes, []int64{5, 3, 3, 1}) || got.Cosigned[0].Witness != "a" || time.Since(got.Checkpoint.Time) > time.Minute {
		t.Errorf("got %+v, want 5 entries, 3 of them in a checkpoint that a has cosigned, and b the first", got)
	}
}

// The status counts as unrevoked the credentials that raise an alarm.
func TestStatusCountsTheUnrevoked(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	age := func(of time.Duration) func(*broker.Record) {
		return func(rec *broker.Record) { rec.Time = time.Now().UTC().Add(-of) }
	}
	const moment = 5 * time.Second
	bring(t, l, "database", []broker.Status{broker.StatusRevoking}, age(broker.UnrevokedAfter+moment))
	bring(t, l, "database", []broker.Status{broker.StatusUnknown}, age(broker.UnknownAfter+moment))
	bring(t, l, "database", []broker.Status{broker.StatusRevoking}, age(0))
	bring(t, l, "database", []broker.Status{broker.StatusUnknown}, age(broker.UnknownAfter-moment))
	bring(t, l, "database", []broker.Status{broker.StatusIssued}, age(time.Minute))
	bring(t, l, "database", []broker.Status{broker.StatusRevoking, broker.StatusRevoked}, age(time.Minute))
	irrevocable := func(expires time.Time) func(*broker.Record) {
		return func(rec *broker.Record) {
			age(broker.UnknownAfter + moment)(rec)
			rec.Expires = expires
		}
	}
	lost := testkit.Dynamic("vault", irrevocable(time.Now().UTC().Add(time.Hour)))
	if _, err := l.Begin(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	unknown := to(lost, broker.StatusUnknown)
	unknown.Detail = "unfinished"
	settle(t, l, unknown)
	if got := status(t, l); got.Unrevoked != 2 {
		t.Errorf("got %d unrevoked, want 2", got.Unrevoked)
	}
}

func TestStatusFailsWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	l.Close()
	if _, err := l.Status(t.Context()); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
}
