package testkit

import (
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/jackc/pgx/v5"
)

// Entry is one ledger entry, as an auditor reads it.
type Entry struct {
	Index int64
	Kind  string
	ID    string
	Body  map[string]any
}

// Entries reads the whole ledger, in order.
func (db *DB) Entries(t testing.TB) []Entry {
	t.Helper()
	pool := db.entries
	if pool == nil {
		pool = newPool(t, db.AdminURL)
	}
	rows, err := pool.Query(t.Context(), `SELECT index, kind, id::text, convert_from(body, 'UTF8')::jsonb FROM entries ORDER BY index`)
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

// CheckLedger verifies a ledger as an auditor without its keys would, and reports each finding as a test error.
func CheckLedger(t testing.TB, adminURL string) {
	t.Helper()
	for _, f := range Findings(t, adminURL) {
		t.Errorf("%s at entry %d: %s %s", f.Code, f.Index, f.Where, f.What)
	}
}

// Findings verifies a ledger as CheckLedger does, and returns the findings.
func Findings(t testing.TB, adminURL string) []audit.Finding {
	t.Helper()
	whole, err := snapshot.Open(t.Context(), adminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close(t.Context())
	report, err := audit.Verify(t.Context(), whole.Items(t.Context()), audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return report.Findings
}

// CheckStates checks that the ledger finishes what it began. By the database's clock, no request may have been in an
// unfinished state (intent, unknown or revoking) for longer than age.
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
