package ledger_test

import (
	"errors"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// I15: if what a replica or a checkpoint knows of is gone or changed, at least that replica appends nothing.
func TestRolledBackDatabaseRefusesAppends(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		damage string
		// fresh is set if a replica that has just started notices it too.
		fresh bool
	}{
		"an older backup":  {`DELETE FROM checkpoints WHERE size > 5; DELETE FROM entries WHERE index >= 5; UPDATE ledger_head SET size = 5`, false},
		"entries gone":     {`DELETE FROM entries WHERE index >= 5; UPDATE ledger_head SET size = 5`, true},
		"checkpoints gone": {`DELETE FROM checkpoints`, false},
		"an entry changed": {`UPDATE entries SET leaf_hash = sha256('x') WHERE index = 3`, true},
		"an entry missing": {`DELETE FROM entries WHERE index = 3`, true},
		"another key":      {`UPDATE checkpoints SET note = replace(note, '— ', '— x') WHERE size = 11`, true},
	} {
		t.Run(name, func(t *testing.T) {
			db, n := testkit.NewDB(t), newNotary(t)
			l := db.Ledger(t)
			grow(t, l, 5)
			sealed(t, l, n)
			grow(t, l, 6)
			sealed(t, l, n)
			grow(t, l, 1) // otherwise there would be nothing to sign
			tamper(t, db, tc.damage)
			for _, replica := range []*ledger.Ledger{l, db.Ledger(t)} { // in this order, since the second may sign what l has not seen
				who, want := "a replica that saw it", true
				if replica != l {
					who, want = "a fresh one", tc.fresh
				}
				if _, err := replica.SealOnce(t.Context(), n); errors.Is(err, postgres.ErrWentBack) != want {
					t.Errorf("%s: got %v, want that it notices: %t", who, err, want)
				}
				if _, err := replica.Begin(t.Context(), denied(nil)); errors.Is(err, broker.ErrLedgerUnavailable) != want {
					t.Errorf("%s: got %v from Begin, want that it is refused: %t", who, err, want)
				}
				if err := replica.Ready(t.Context()); (err != nil) != want {
					t.Errorf("%s: got %v from Ready, want that it is not: %t", who, err, want)
				}
			}
		})
	}
}

// I15: a replica that reconnects to a database without the last entry that it has appended does not append there, even before it
// has checked a checkpoint.
func TestMissingLastEntryBlocksAppends(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	grow(t, l, 3)
	tamper(t, db, `DELETE FROM entries WHERE index = 2`, `UPDATE ledger_head SET size = 2`)
	testkit.HangUp(t, db)
	for range 2 { // the first may have been sent to a connection that was closed
		if _, err := l.Begin(t.Context(), denied(nil)); !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v from Begin, want %v", err, broker.ErrLedgerUnavailable)
		}
	}
	if got := len(db.Entries(t)); got != 2 {
		t.Errorf("got %d entries, want the 2 that are left", got)
	}
	if _, err := db.Ledger(t).Begin(t.Context(), denied(nil)); err != nil {
		t.Errorf("got %v from a replica that knows of nothing, want none", err)
	}
}

// I15: replicas that have not seen the lost entries notice an older backup by a checkpoint that was kept elsewhere.
func TestOlderBackupBlocksAppends(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		damage string
		want   bool
	}{
		"as it was":       {``, false},
		"an older backup": {`DELETE FROM checkpoints WHERE size > 5; DELETE FROM entries WHERE index >= 5; UPDATE ledger_head SET size = 5`, true},
		"nothing at all":  {`DELETE FROM checkpoints; DELETE FROM entries; UPDATE ledger_head SET size = 0`, true},
		"an entry changed": {`UPDATE entries SET leaf_hash = sha256('x') WHERE index = 3;
			DELETE FROM checkpoints`, true},
	} {
		t.Run(name, func(t *testing.T) {
			db, n := testkit.NewDB(t), newNotary(t)
			l := db.Ledger(t)
			grow(t, l, 5)
			sealed(t, l, n)
			five := testkit.LastCheckpoint(t, l, n)
			grow(t, l, 6)
			sealed(t, l, n)
			eleven := testkit.LastCheckpoint(t, l, n)
			tamper(t, db, tc.damage)
			fresh := db.Ledger(t)
			for _, c := range []audit.Checkpoint{{}, eleven, five} {
				if err := fresh.Expect(t.Context(), c); err != nil {
					t.Fatalf("Expect: %v", err)
				}
			}
			for _, when := range []string{"at once", "after a look"} {
				if _, err := fresh.Begin(t.Context(), denied(nil)); errors.Is(err, broker.ErrLedgerUnavailable) != tc.want {
					t.Errorf("%s: got %v from Begin, want that it is refused: %t", when, err, tc.want)
				}
				if err := fresh.Ready(t.Context()); (err != nil) != tc.want {
					t.Errorf("%s: got %v from Ready, want that it is not: %t", when, err, tc.want)
				}
				if _, err := fresh.SealOnce(t.Context(), n); errors.Is(err, postgres.ErrWentBack) != tc.want {
					t.Errorf("%s: got %v from SealOnce, want that it notices: %t", when, err, tc.want)
				}
				if _, _, _, err := fresh.Growth(t.Context(), 0); (err != nil) != tc.want {
					t.Errorf("%s: got %v from Growth, want that nothing is shown: %t", when, err, tc.want)
				}
			}
		})
	}
}
