package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The holder of a credential can report once how often it was used. No one can report on a credential that nobody holds.
func TestUsesAreReportedOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for name, rec := range map[string]broker.Record{
		"a token":                        allowed(nil),
		"one that has ended by its time": allowed(ago(time.Hour, 30*time.Minute)),
		"one that ended early":           allowed(nil),
		"a login":                        dynamic(scopes.KindDatabase, nil),
		"a login that is being revoked":  dynamic(scopes.KindDatabase, nil),
		"a stored secret":                dynamic(scopes.KindKV, nil),
	} {
		begin(t, l, rec)
		if rec.Intent.Kind != scopes.KindJWT {
			settle(t, l, to(rec, broker.StatusIssued))
		}
		switch name {
		case "one that ended early":
			settle(t, l, to(rec, broker.StatusReleased))
		case "a login that is being revoked":
			settle(t, l, to(rec, broker.StatusRevoking))
		}
		stranger := used(rec, 7)
		stranger.Holder.Workload.ID = spiffeid.RequireFromString(sandbox + "/b")
		if _, err := l.Report(t.Context(), stranger); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s: somebody else tells of it: got %v, want ErrNotFound", name, err)
		}
		want := used(rec, 2)
		want.Time, want.LastUsed = want.Time.Truncate(time.Microsecond), want.LastUsed.Truncate(time.Microsecond)
		for _, use := range []broker.Use{used(rec, 2), used(rec, 2), used(rec, 0), used(rec, 9)} {
			got, err := l.Report(t.Context(), use)
			if diff := gocmp.Diff(want, got, gocmp.Comparer(func(x, y spiffeid.ID) bool { return x == y })); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
			}
		}
		if _, err := l.Report(t.Context(), stranger); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s: somebody else reads what is told of it: got %v, want ErrNotFound", name, err)
		}
	}
	begun, failed := dynamic(scopes.KindDatabase, nil), allowed(nil)
	undelivered := dynamic(scopes.KindDatabase, nil)
	none := map[string]broker.Record{
		"one that never was": allowed(nil), "a denial": denied(nil), "what waits for people": pending(nil), "an intent": begun, "a failure": failed,
		"one that ended long ago": allowed(ago(3*time.Hour, 61*time.Minute)), "what was revoked before it was issued": undelivered,
	}
	for name, rec := range none {
		if name != "one that never was" {
			begin(t, l, rec)
		}
	}
	settle(t, l, to(failed, broker.StatusFailed), to(undelivered, broker.StatusRevoking), to(undelivered, broker.StatusRevoked))
	for name, rec := range none {
		if _, err := l.Report(t.Context(), used(rec, 1)); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", name, err)
		}
	}
	db.Check(t)
}

// If many reports come at once, to two replicas, one of them is recorded, and all callers get it.
func TestOneReportCounts(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	rec := allowed(nil)
	begin(t, replicas[0], rec)
	said := make([]int64, 20)
	var group sync.WaitGroup
	for n := range said {
		group.Go(func() {
			got, err := replicas[n%2].Report(t.Context(), used(rec, int64(n)))
			if err != nil {
				t.Errorf("Report: %v", err)
			}
			said[n] = got.Calls
		})
	}
	group.Wait()
	reports := slices.DeleteFunc(db.Entries(t), func(e testkit.Entry) bool { return e.Kind != "issuance.reported" })
	if len(reports) != 1 || len(slices.Compact(said)) != 1 {
		t.Errorf("got %v of %d entries, want one", said, len(reports))
	}
	db.Check(t)
}

// The tables accept only reports that fit the records, whoever writes them.
func TestDatabaseRefusesInvalidReports(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec, reported, denial, late := allowed(nil), allowed(nil), denied(nil), allowed(ago(3*time.Hour, 61*time.Minute))
	begin(t, l, rec, reported, denial, late)
	if _, err := l.Report(t.Context(), used(reported, 1)); err != nil {
		t.Fatal(err)
	}
	conn := testkit.Connect(t, db.BrokerURL)
	for name, tc := range map[string]struct {
		of       broker.Record
		doc, row string
		want     string
	}{
		"what is so":             {rec, `{}`, `{}`, ""},
		"no use":                 {rec, `{"calls": 0, "last_used_at": null}`, `{"calls": 0, "last_used_at": null}`, ""},
		"another number":         {rec, `{}`, `{"calls": 3}`, violation},
		"another time":           {rec, `{}`, `{"time": "2026-01-01T00:00:00Z"}`, violation},
		"another use":            {rec, `{}`, `{"last_used_at": "` + start.Add(time.Second).Format(time.RFC3339Nano) + `"}`, violation},
		"another place":          {rec, `{}`, `{"began": 1}`, notUnique},
		"a place of nothing":     {rec, `{}`, `{"began": 77}`, violation},
		"less than nothing":      {rec, `{"calls": -1}`, `{"calls": -1}`, violation},
		"too much":               {rec, `{"calls": 1000000001}`, `{"calls": 1000000001}`, violation},
		"used and never":         {rec, `{"last_used_at": null}`, `{"last_used_at": null}`, violation},
		"never and then":         {rec, `{"calls": 0}`, `{"calls": 0}`, violation},
		"before it was issued":   {rec, `{"last_used_at": "2026-01-01T00:00:00Z"}`, `{"last_used_at": "2026-01-01T00:00:00Z"}`, violation},
		"after it was said":      {rec, `{"last_used_at": "2096-01-01T00:00:00Z"}`, `{"last_used_at": "2096-01-01T00:00:00Z"}`, violation},
		"by somebody else":       {rec, `{"actor": {"spiffe_id": "spiffe://acme.test/x"}}`, `{}`, violation},
		"by nobody":              {rec, `{"actor": null}`, `{}`, violation},
		"twice":                  {reported, `{}`, `{}`, notUnique},
		"of what was not issued": {denial, `{}`, `{}`, violation},
		"of what ended long ago": {late, `{}`, `{}`, violation},
		"of another":             {rec, `{}`, `{"issuance": "` + late.ID + `"}`, violation},
		"of nothing":             {rec, `{}`, `{"issuance": "` + uuid.NewString() + `"}`, noParent},
	} {
		at := rec.Time.Add(time.Minute)
		if tc.of.ID == late.ID {
			at = tc.of.Time.Add(time.Minute)
		}
		got := refusedBy(t, conn, `
			WITH head AS (
				UPDATE ledger_head SET size = size + 1 RETURNING size - 1 AS index
			), said AS (
				SELECT i.*, jsonb_build_object('id', i.id, 'kind', 'issuance.reported', 'actor', jsonb_build_object('spiffe_id', i.spiffe_id),
					'calls', 2, 'last_used_at', $2::timestamptz) AS doc
				FROM issuances AS i WHERE i.id = $1
			), body AS (
				SELECT convert_to((doc || $3::jsonb)::text, 'UTF8') AS body FROM said
			), appended AS (
				INSERT INTO entries (index, id, time, kind, body, leaf_hash)
				SELECT head.index, $1, $2, 'issuance.reported', body, sha256('\x00'::bytea || body) FROM head, body
			)
			INSERT INTO uses SELECT (jsonb_populate_record(NULL::uses, jsonb_build_object('issuance', said.id, 'began', said.entry_index,
				'calls', 2, 'last_used_at', $2::timestamptz, 'time', $2::timestamptz, 'entry_index', head.index) || $4::jsonb)).*
			FROM said, head`, tc.of.ID, at, tc.doc, tc.row)
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	db.Check(t)
}

// The owner of the database can append what the broker never would. An auditor sees that no holder can have made such a
// report.
func TestForgedUseReportIsDetected(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec, reported, denial, failed := allowed(nil), allowed(nil), denied(nil), allowed(nil)
	begin(t, l, rec, reported, denial, failed)
	settle(t, l, to(failed, broker.StatusFailed))
	if _, err := l.Report(t.Context(), used(reported, 1)); err != nil {
		t.Fatal(err)
	}
	const body = `{"actor":{"spiffe_id":%q},"calls":%d,"id":%q,"kind":"issuance.reported"%s,"time":"2096-01-01T00:00:00Z","version":1}`
	at := func(text string) string { return `,"last_used_at":"` + text + `"` }
	const later = "2095-01-01T00:00:00Z"
	for name, text := range map[string]string{
		"of nothing":             fmt.Sprintf(body, sandbox, 1, uuid.NewString(), at(later)),
		"of what was not issued": fmt.Sprintf(body, sandbox, 1, denial.ID, at(later)),
		"of a failure":           fmt.Sprintf(body, sandbox, 1, failed.ID, at(later)),
		"of somebody else's":     fmt.Sprintf(body, sandbox+"/x", 1, rec.ID, at(later)),
		"again":                  fmt.Sprintf(body, sandbox, 1, reported.ID, at(later)),
		"less than nothing":      fmt.Sprintf(body, sandbox, -1, rec.ID, at(later)),
		"too much":               fmt.Sprintf(body, sandbox, 1_000_000_001, rec.ID, at(later)),
		"never and then":         fmt.Sprintf(body, sandbox, 0, rec.ID, at(later)),
		"used and never":         fmt.Sprintf(body, sandbox, 1, rec.ID, ""),
		"before it was issued":   fmt.Sprintf(body, sandbox, 1, rec.ID, at("2026-01-01T00:00:00Z")),
		"after the report":       fmt.Sprintf(body, sandbox, 1, rec.ID, at("2097-01-01T00:00:00Z")),
	} {
		report := verifyWith(t, db, text)
		if len(report.Findings) != 1 || report.Findings[0].Code != audit.Impossible || report.Findings[0].Index != 6 {
			t.Errorf("%s: got %+v, want it impossible", name, report.Findings)
		}
	}
	if report := verifyWith(t, db, fmt.Sprintf(body, sandbox, 1, rec.ID, at(later))); len(report.Findings) != 1 || report.Findings[0].Where != "uses" {
		t.Errorf("what can be: got %+v, want its row missing", report.Findings)
	}
}

// verifyWith returns an auditor's report on a ledger that ends with an entry, which is rolled back afterwards.
func verifyWith(t *testing.T, db *testkit.DB, body string) audit.Report {
	t.Helper()
	tx, err := testkit.Connect(t, db.AdminURL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `
		WITH head AS (UPDATE ledger_head SET size = size + 1 RETURNING size - 1 AS index)
		INSERT INTO entries (index, id, time, kind, body, leaf_hash)
		SELECT index, ($1::text::jsonb ->> 'id')::uuid, ($1::text::jsonb ->> 'time')::timestamptz, $1::text::jsonb ->> 'kind', convert_to($1::text, 'UTF8'),
			sha256('\x00'::bytea || convert_to($1::text, 'UTF8'))
		FROM head`, body); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Verify(t.Context(), snapshot.Of(tx).Items(t.Context()), audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}
