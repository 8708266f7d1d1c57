package brevettest

import (
	_ "embed"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

//go:embed fill.sql
var fillSQL string

// Fill writes so many issuances of two trust domains, acme.test and other.test, without their entries: they are there to
// be searched among, and nothing can be asked of the ledger afterwards but that. It makes the indexes after that, as a
// restore would, and shows how far it is when they are many.
func (db *DB) Fill(t testing.TB, all int64) {
	t.Helper()
	conn := db.filler(t)
	do := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql[:min(len(sql), 100)], err)
		}
	}
	indexes := ask[struct{ Name, Definition string }](t, conn, `
		SELECT indexname, indexdef FROM pg_indexes
		WHERE schemaname = current_schema() AND tablename = 'issuances' AND indexname <> 'issuances_pkey'`)
	for _, i := range indexes {
		do("DROP INDEX " + i.Name)
	}
	db.fillIn(t, all)
	do(`INSERT INTO people (id, name, handle, groups, said_at, entry, entry_index)
		SELECT 'https://idp.test#p' || n, 'P', 'p', '{}', now(), gen_random_uuid(), 0 FROM generate_series(0, 199) AS n`)
	do(`INSERT INTO votes (request, voter, verdict, covers, time, note, entry_index)
		SELECT id, 'https://idp.test#p' || entry_index % 200, CASE status WHEN 'approved' THEN 'approve' ELSE 'deny' END, 'request', time, '', entry_index
		FROM issuances WHERE votes > 0`)
	do(`UPDATE ledger_head SET size = @all`, pgx.NamedArgs{"all": all})
	for n, i := range indexes {
		do(i.Definition)
		filled(all, "%d of %d indexes made", n+1, len(indexes))
	}
	do(`VACUUM ANALYZE issuances`)
	do(`VACUUM ANALYZE votes`)
	// A database of this size has the memory for its tables. What is timed is not the disk.
	do(`CREATE EXTENSION pg_prewarm`)
	do(`SELECT pg_prewarm(oid, 'read') FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')`)
	for _, size := range ask[struct{ Of, Size string }](t, conn, `
		SELECT relname, pg_size_pretty(pg_relation_size(c.oid))
		FROM pg_class AS c WHERE relname ~ '^issuances' AND relnamespace = current_schema()::regnamespace
		ORDER BY pg_relation_size(c.oid) DESC LIMIT 10`) {
		filled(all, "%s takes %s\n", size.Of, size.Size)
	}
}

// filler is a connection that no trigger and no foreign key holds up.
func (db *DB) filler(t testing.TB) *pgx.Conn {
	t.Helper()
	conn := Connect(t, db.AdminURL)
	for _, setting := range []string{"session_replication_role = replica", "synchronous_commit = off", "maintenance_work_mem = '512MB'"} {
		if _, err := conn.Exec(t.Context(), "SET "+setting); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// fillIn writes the issuances over several connections.
func (db *DB) fillIn(t testing.TB, all int64) {
	t.Helper()
	const chunk, connections = 50000, 3
	var next, done atomic.Int64
	var group errgroup.Group
	for range connections {
		conn := db.filler(t)
		group.Go(func() error {
			for first := next.Add(chunk) - chunk; first < all; first = next.Add(chunk) - chunk {
				beyond := min(first+chunk, all)
				if _, err := conn.Exec(t.Context(), fillSQL, pgx.NamedArgs{"all": all, "first": first, "beyond": beyond}); err != nil {
					return err
				}
				filled(all, "%d of %d issuances written", done.Add(beyond-first), all)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("filling the ledger: %v", err)
	}
}

func ask[T any](t testing.TB, conn *pgx.Conn, sql string) []T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func filled(all int64, format string, args ...any) {
	if all >= 100000 {
		fmt.Printf("\r"+format+"   ", args...)
	}
}
