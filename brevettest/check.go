package brevettest

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// Entry is one entry of the ledger, as an auditor reads it.
type Entry struct {
	Index int64
	Kind  string
	ID    string
	Body  map[string]any
}

// Entries reads the whole ledger, in order.
func (db *DB) Entries(t testing.TB) []Entry {
	t.Helper()
	rows, err := Connect(t, db.AdminURL).Query(t.Context(),
		`SELECT index, kind, id::text, convert_from(body, 'UTF8')::jsonb FROM entries ORDER BY index`)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// Check is CheckLedger on this schema.
func (db *DB) Check(t testing.TB) {
	t.Helper()
	CheckLedger(t, db.AdminURL)
}

// CheckLedger holds a ledger to its promises: a gapless index from 0, leaf hashes of the very bytes, nothing begun that
// an earlier command forbids, and a current state that is exactly what the entries say, column by column.
func CheckLedger(t testing.TB, adminURL string) {
	t.Helper()
	// One snapshot, because others may be appending.
	conn, err := Connect(t, adminURL).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Rollback(t.Context()) }()
	want := replay(t, conn)
	compare(t, conn, want.issuances, `
		SELECT id::text, to_jsonb(i) - '{id,time,status_time,expires_at}'::text[] || jsonb_build_object(
			'time', extract(epoch FROM time)::text, 'status_time', extract(epoch FROM status_time)::text,
			'expires_at', extract(epoch FROM expires_at)::text)
		FROM issuances AS i ORDER BY entry_index`)
	compare(t, conn, want.tasks, `
		SELECT spiffe_id || ' ' || task, to_jsonb(e) - '{spiffe_id,task,ends_at,since}'::text[] || jsonb_build_object(
			'ends_at', extract(epoch FROM ends_at)::text, 'since', extract(epoch FROM since)::text)
		FROM task_ends AS e ORDER BY entry_index`)
	compare(t, conn, want.quarantines, `
		SELECT spiffe_id, to_jsonb(q) - '{spiffe_id,since}'::text[] || jsonb_build_object(
			'since', extract(epoch FROM since)::text)
		FROM quarantines AS q ORDER BY entry_index`)
	compare(t, conn, want.people, `
		SELECT id, to_jsonb(p) - '{id,said_at}'::text[] || jsonb_build_object(
			'said_at', extract(epoch FROM said_at)::text)
		FROM people AS p ORDER BY entry_index`)
	compare(t, conn, want.votes, `
		SELECT request || ' ' || voter || ' ' || verdict,
			to_jsonb(v) - '{request,voter,verdict,time}'::text[] || jsonb_build_object('time', extract(epoch FROM time)::text)
		FROM votes AS v ORDER BY entry_index`)
	want.catalogues.compare(t, conn)
}

// CheckStates holds a ledger to finishing what it began: by the database's clock, no request may have been in a state
// that is not final, and that somebody has to bring on, for longer than age.
func CheckStates(t testing.TB, adminURL string, age time.Duration) {
	t.Helper()
	rows, err := Connect(t, adminURL).Query(t.Context(), `
		SELECT format('%s (%s) has been %s for %s', id, credential_kind, status, now() - status_time)
		FROM issuances WHERE status IN ('intent', 'unknown', 'revoking') AND status_time < now() - $1::interval
		ORDER BY status_time`, age)
	if err != nil {
		t.Fatal(err)
	}
	stuck, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range stuck {
		t.Errorf("request %s, want %s at most", line, age)
	}
}

// compare holds a projection to what was replayed, by key.
func compare(t testing.TB, conn pgx.Tx, want projection, sql string) {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	var key string
	var got map[string]any
	_, err = pgx.ForEachRow(rows, []any{&key, &got}, func() error {
		if diff := cmp.Diff(want[key], got); diff != "" {
			t.Errorf("the row of %s differs from its entries (-entries +table):\n%s", key, diff)
		}
		delete(want, key)
		got = nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key := range want {
		t.Errorf("%s has entries and no row", key)
	}
}

// projection is the rows of a table by their key, without it, as Postgres writes them in JSON.
type projection map[string]map[string]any

// state is what the entries up to some index amount to.
type state struct {
	issuances, tasks, quarantines, people, votes projection
	catalogues                                   *catalogues
}

// replay rebuilds the current state from the entries' bodies alone, and checks the entries on the way.
func replay(t testing.TB, conn pgx.Tx) state {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT index, body, leaf_hash FROM entries ORDER BY index`)
	if err != nil {
		t.Fatal(err)
	}
	now := state{projection{}, projection{}, projection{}, projection{}, projection{}, &catalogues{changes: projection{}}}
	var index, next int64
	var raw, leaf []byte
	_, err = pgx.ForEachRow(rows, []any{&index, &raw, &leaf}, func() error {
		if index != next {
			t.Errorf("got index %d, want %d", index, next)
		}
		if want := tlog.RecordHash(raw); !bytes.Equal(leaf, want[:]) {
			t.Errorf("entry %d: leaf hash %x, want %x", index, leaf, want)
		}
		next = index + 1
		var body entryBody
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Fatalf("entry %d: %v", index, err)
		}
		body.applyTo(t, now, index)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	if err := conn.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		t.Fatal(err)
	}
	if size != next {
		t.Errorf("the head counts %d entries, there are %d", size, next)
	}
	return now
}
