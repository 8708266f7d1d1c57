package tamper_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/mod/sumdb/note"
)

var entries = flag.Int64("entries", 1_000_000, "how many entries the benchmark verifies")

// BenchmarkVerify measures the verification of a large ledger, including the reading.
func BenchmarkVerify(b *testing.B) {
	w := grown(b, *entries)
	cfg := audit.Config{Keys: note.VerifierList(w.log.verifier)}
	for b.Loop() {
		tx, err := w.conn.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		var most uint64
		var stats runtime.MemStats
		next := time.Now()
		cfg.Progress = func(done, of int64) {
			if now := time.Now(); now.After(next) {
				runtime.ReadMemStats(&stats)
				most, next = max(most, stats.Sys-stats.HeapReleased), now.Add(time.Second)
				fmt.Fprintf(os.Stderr, "%d of %d\n", done, of)
			}
		}
		report, err := audit.Verify(b.Context(), snapshot.Of(tx).Items(b.Context()), cfg)
		if err != nil || !report.Whole() || report.Sealed < *entries {
			b.Fatalf("got %s and %v", told(report.Findings), err)
		}
		_ = tx.Rollback(b.Context())
		b.ReportMetric(float64(report.Entries), "entries")
		b.ReportMetric(float64(most)/(1<<20), "MiB")
	}
}

// grown returns a ledger of that many entries. The real ledger makes the first ones; the others are copies under other ids.
func grown(b *testing.B, size int64) *world {
	b.Helper()
	db := testkit.NewDB(b)
	w := &world{
		t: b, l: db.Ledger(b), url: db.AdminURL, conn: testkit.Connect(b, db.AdminURL), log: newLog(b, "log.test"),
		begun: time.Now().UTC().Truncate(time.Second).Add(-time.Minute), digest: "sha256:c0ffee", keys: map[string]*testkit.Authenticator{},
	}
	for n := 0; w.log.size(b, w.conn) < worldSize; n++ {
		if n%kinds != 0 && n%kinds != 6 && n%kinds != 9 { // keep the kinds that concern one request only
			w.story(n)
		}
	}
	first := w.log.size(b, w.conn)
	copies := (size + first - 1) / first
	w = w.copy()
	var prefixes []string // of the ids, which come from the same minute
	w.must(w.conn.QueryRow(b.Context(), `SELECT array_agg(DISTINCT left(id::text, 8)) FROM entries`).Scan(&prefixes))
	renamed := func(text string) string {
		for i, prefix := range prefixes {
			text = fmt.Sprintf(`replace(%s, '%s-', lpad(to_hex(n * %d + %d), 8, '0') || '-')`, text, prefix, len(prefixes), i)
		}
		return text
	}
	for _, sql := range []string{
		`CREATE INDEX ON entries (index)`, `CREATE INDEX ON issuances (entry_index)`,
		fmt.Sprintf(`
			INSERT INTO entries SELECT e.index + n * %d, `+renamed("e.id::text")+`::uuid, e.time, e.kind, m.body, sha256('\x00'::bytea || m.body)
			FROM generate_series(1, %d - 1) AS n, entries AS e,
				LATERAL (SELECT convert_to(`+renamed("convert_from(e.body, 'UTF8')")+`, 'UTF8') AS body) AS m`, first, copies),
		fmt.Sprintf(`
			INSERT INTO issuances SELECT r.*
			FROM generate_series(1, %[2]d - 1) AS n, issuances AS i, LATERAL jsonb_populate_record(NULL::issuances,
				`+renamed("to_jsonb(i)::text")+`::jsonb || jsonb_build_object('entry_index', i.entry_index + n * %[1]d)) AS r`, first, copies),
		fmt.Sprintf(`
			INSERT INTO uses SELECT r.*
			FROM generate_series(1, %[2]d - 1) AS n, uses AS u, LATERAL jsonb_populate_record(NULL::uses,
				`+renamed("to_jsonb(u)::text")+`::jsonb
					|| jsonb_build_object('began', u.began + n * %[1]d, 'entry_index', u.entry_index + n * %[1]d)) AS r`, first, copies),
		fmt.Sprintf(`UPDATE ledger_head SET size = %d`, first*copies), `ANALYZE entries`, `ANALYZE issuances`,
	} {
		fmt.Fprintf(os.Stderr, "%s: %.40s\n", time.Now().Format(time.TimeOnly), strings.TrimSpace(sql))
		_, err := w.conn.Exec(b.Context(), sql)
		w.must(err)
	}
	w.log.sealUpTo(b, w.conn, 1)
	return w
}
