package ledger_test

import (
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
)

// TestRecordKeepsTheRequestContext checks that every field of the request context is read back, and that no row differs from its
// entry: the verifier finds a changed field, and the schema refuses a task that the context does not have.
func TestRecordKeepsTheRequestContext(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := allowed(func(rec *broker.Record) {
		for _, field := range rec.Request.Fields() {
			rec.Request.Set(field.Name, "a-"+field.Name)
		}
	})
	begin(t, l, rec)
	got, err := l.Get(t.Context(), rec.ID, everything)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rec.Request.RequestContext, got.RequestContext); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	db.Check(t)
	owner := testkit.Connect(t, db.AdminURL)
	exec(t, owner, `ALTER TABLE issuances DISABLE TRIGGER issuances_only_forward`)
	if got := refusedBy(t, owner, `UPDATE issuances SET context = '{"task":"another"}'`); got != violation {
		t.Errorf("another task in the context: got %q, want %q", got, violation)
	}
	exec(t, owner, `UPDATE issuances SET context = context || '{"added":"later"}'`)
	if found := testkit.Findings(t, db.AdminURL); len(found) != 1 || found[0].Where != "issuances.context" {
		t.Errorf("got the findings %v, want one about the context", found)
	}
}
