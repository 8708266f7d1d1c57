package ledger_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// A permit is the record itself: it begins as issued, describes no credential, is live until somebody ends it, and its holder can report
// how often it was used.
func TestPermitIsRecorded(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec, other := testkit.Permit(withKey("k")), testkit.Permit(nil)
	begin(t, l, rec, other)
	want := viewOf(rec, 0)
	if diff := cmp.Diff(want, *get(t, l, rec.ID), sameView); diff != "" {
		t.Errorf("issued (-want +got):\n%s", diff)
	}
	alive := func() []string {
		ids, err := l.AliveAmong(t.Context(), sandbox, []string{rec.ID, other.ID})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return ids
	}
	if got := alive(); !slices.Equal(got, []string{rec.ID, other.ID}) {
		t.Errorf("got %v alive, want both", got)
	}
	if state, err := l.TokenState(t.Context(), rec.ID, [32]byte{}); err != nil || state.Active {
		t.Errorf("as a token: got %+v, %v, want it inactive", state, err)
	}
	settle(t, l, to(rec, broker.StatusRevoked))
	if got := alive(); !slices.Equal(got, []string{other.ID}) {
		t.Errorf("got %v alive, want the other one", got)
	}
	if _, err := l.Report(t.Context(), used(rec, 200)); err != nil {
		t.Errorf("reporting the use: %v", err)
	}
	db.Check(t)
}

// The owner of the database can write what the broker never would. An auditor sees entries that no permit can have, and rows that differ
// from their entries.
func TestForgedPermitsAreDetected(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	permit, token, login := testkit.Permit(nil), allowed(nil), dynamic("database", nil)
	begin(t, l, permit, token, login)
	owner := testkit.Connect(t, db.AdminURL)
	var body string
	if err := owner.QueryRow(t.Context(), `SELECT convert_from(body, 'UTF8') FROM entries WHERE id = $1`, permit.ID).Scan(&body); err != nil {
		t.Fatal(err)
	}
	const intent = `"intent":{"kind":"none"}`
	if strings.Count(body, intent) != 1 {
		t.Fatalf("the entry of a permit is %s", body)
	}
	body = strings.ReplaceAll(body, permit.ID, uuid.Must(uuid.NewV7()).String())
	for name, change := range map[string][2]string{
		"begun as an intent":   {`"status":"issued"`, `"status":"intent"`},
		"for an audience":      {intent, `"intent":{"audience":"https://git.test","kind":"none"}`},
		"with a key":           {intent, `"intent":{"key_id":"key-1","kind":"none"}`},
		"with claims":          {intent, `"intent":{"claims_digest":"` + strings.Repeat("0", 64) + `","kind":"none"}`},
		"for one call":         {intent, `"intent":{"kind":"none","one_shot":true}`},
		"leased":               {intent, `"intent":{"grant":{"leased":true},"kind":"none"}`},
		"with a path":          {intent, `"intent":{"grant":{"path":"x"},"kind":"none"}`},
		"derived from a token": {`"request":{`, `"parent":"` + token.ID + `","request":{`},
	} {
		forged := strings.Replace(body, change[0], change[1], 1)
		if forged == body {
			t.Fatalf("%s: the body has no %s", name, change[0])
		}
		report := verifyWith(t, db, forged)
		if !slices.ContainsFunc(report.Findings, func(f audit.Finding) bool { return f.Code == audit.Impossible && f.Index == 3 }) {
			t.Errorf("%s: got %+v, want it impossible", name, report.Findings)
		}
	}
	if report := verifyWith(t, db, body); slices.ContainsFunc(report.Findings, func(f audit.Finding) bool { return f.Code != audit.ProjectionMissing }) {
		t.Errorf("what can be: got %+v, want only its row missing", report.Findings)
	}

	exec(t, owner, `ALTER TABLE issuances DISABLE TRIGGER USER`)
	for of, row := range map[string]string{
		token.ID:  `credential_kind = 'none', audience = NULL, key_id = NULL, claims_digest = NULL`,
		permit.ID: `status = 'revoked', status_detail = 'revoked'`,
	} {
		tx, err := owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exec(t, owner, `UPDATE issuances SET `+row+` WHERE id = $1`, of)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var where []string
	for _, f := range testkit.Findings(t, db.AdminURL) {
		where = append(where, f.Where)
	}
	for _, column := range []string{"issuances.credential_kind", "issuances.audience", "issuances.status"} {
		if !slices.Contains(where, column) {
			t.Errorf("got findings about %v, want one about %s", where, column)
		}
	}
}
