package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
)

// ends checks that all ledgers of a schema give the same answer, and returns when the bootstrap admin ends.
func ends(t *testing.T, wantOn bool, all ...*ledger.Ledger) time.Time {
	t.Helper()
	var first time.Time
	for i, l := range all {
		end, on, err := l.Bootstrap(t.Context())
		if err != nil || on != wantOn {
			t.Errorf("got %t and %v, want %t", on, err, wantOn)
		}
		if i == 0 {
			first = end
		}
		if !end.Equal(first) {
			t.Errorf("got the end %s, and elsewhere %s", first, end)
		}
	}
	return first
}

func TestBootstrapEndsOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	here, there := db.Ledger(t), db.Ledger(t)
	if left := time.Until(ends(t, true, here, there)); left <= 0 || left > time.Hour {
		t.Errorf("got %s until the end, want an hour at most", left)
	}
	if err := here.EndBootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := ends(t, false, here, there)
	if err := there.EndBootstrap(t.Context()); err != nil {
		t.Errorf("ending it twice: got %v", err)
	}
	if again := ends(t, false, here, there, db.Ledger(t)); !again.Equal(ended) || time.Until(ended) > 0 {
		t.Errorf("got the end %s, then %s", ended, again)
	}
	conn := testkit.Connect(t, db.BrokerURL)
	for _, value := range []string{"NULL", "clock_timestamp()", "'infinity'"} {
		if got := refusedBy(t, conn, `UPDATE deployment SET bootstrap_ended_at = `+value); got != violation {
			t.Errorf("%s after the end: got %q, want %s", value, got, violation)
		}
	}
}

func TestBootstrapEndsByItself(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	owner := testkit.Connect(t, db.AdminURL)
	for age, on := range map[string]bool{"59 minutes": true, "1 hour": false, "1 year": false} {
		if _, err := owner.Exec(t.Context(), `
			ALTER TABLE deployment DISABLE TRIGGER USER;
			UPDATE deployment SET created_at = clock_timestamp() - interval '`+age+`', bootstrap_ended_at = NULL;
			ALTER TABLE deployment ENABLE TRIGGER USER`); err != nil {
			t.Fatal(err)
		}
		end := ends(t, on, l)
		if on {
			continue
		}
		if err := l.EndBootstrap(t.Context()); err != nil || !ends(t, on, l).Equal(end) {
			t.Errorf("%s: ending what is over: got %v, or another end", age, err)
		}
	}
}

// A clock that goes back, as after a failover, does not restart the bootstrap admin's time once any replica has seen its
// end.
func TestBootstrapDoesNotRestart(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(*ledger.Ledger) error{
		"told":  func(l *ledger.Ledger) error { _, _, err := l.Bootstrap(t.Context()); return err },
		"ended": func(l *ledger.Ledger) error { return l.EndBootstrap(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			db := testkit.NewDB(t)
			l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
			moves := func(set string) {
				t.Helper()
				if _, err := owner.Exec(t.Context(), `
					ALTER TABLE deployment DISABLE TRIGGER USER;
					UPDATE deployment SET `+set+`;
					ALTER TABLE deployment ENABLE TRIGGER USER`); err != nil {
					t.Fatal(err)
				}
			}
			moves(`created_at = clock_timestamp() - interval '61 minutes'`)
			if err := see(l); err != nil {
				t.Fatal(err)
			}
			moves(`created_at = created_at + interval '3 minutes', bootstrap_ended_at = bootstrap_ended_at + interval '3 minutes'`)
			ends(t, false, l, db.Ledger(t))
		})
	}
}

// A database without entries is as old as its first migration, also when the deployment is made again.
func TestBootstrapBeginsWithFirstMigration(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	for isApplied(t, db, 6) {
		if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
			t.Fatal(err)
		}
	}
	var first time.Time
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
		UPDATE goose_db_version SET tstamp = now() - interval '1 day' WHERE version_id = 1 RETURNING tstamp::timestamptz`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
		t.Fatal(err)
	}
	if end, want := ends(t, false, db.Ledger(t)), first.Add(time.Hour); !end.Equal(want) {
		t.Errorf("got the end %s, want %s", end, want)
	}
}

// A database with entries is at least as old as these, so that migrating again makes nobody an admin.
func TestBootstrapBeginsWithFirstEntry(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	for isApplied(t, db, 6) {
		if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
			t.Fatal(err)
		}
	}
	first := start.Add(-time.Hour).Truncate(time.Microsecond)
	if _, err := testkit.Connect(t, db.AdminURL).Exec(t.Context(), `
		WITH head AS (UPDATE ledger_head SET size = 1),
			refusal AS (SELECT id, convert_to(jsonb_build_object('kind', 'call.refused', 'id', id)::text, 'UTF8') AS body
				FROM gen_random_uuid() AS id)
		INSERT INTO entries (index, id, time, kind, body, leaf_hash)
		SELECT 0, id, $1, 'call.refused', body, sha256('\x00'::bytea || body) FROM refusal`, first); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
		t.Fatal(err)
	}
	if end, want := ends(t, false, db.Ledger(t)), first.Add(time.Hour); !end.Equal(want) {
		t.Errorf("got the end %s, want %s", end, want)
	}
}

// isApplied reports whether the schema has a migration.
func isApplied(t *testing.T, db *testkit.DB, version int64) bool {
	t.Helper()
	all, err := migrations.Status(t.Context(), db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(m migrations.Migration) bool { return m.Applied && m.Version == version })
}
