package upgrade_test

import (
	"context"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// balance checks the credentials that callers got against the record, and the record against its invariants. lost is how many
// calls were cut: for these, a credential may or may not exist.
func (w *world) balance(t *testing.T, lost int) {
	t.Helper()
	conn := testkit.Connect(t, w.owner(t))
	rows, err := conn.Query(t.Context(), `
		SELECT id::text, credential_kind FROM issuances
		WHERE decision = 'allow' AND status IN ('issued', 'revoking', 'revoked', 'released', 'expired', 'used')`)
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]string{}
	var id, kind string
	if _, err := pgx.ForEachRow(rows, []any{&id, &kind}, func() error {
		recorded[id] = kind
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for id, kind := range w.books.handed {
		if recorded[id] != kind {
			t.Errorf("a %s was handed out as %s, of which the record says %q", kind, id, recorded[id])
		}
	}
	for id, kind := range recorded {
		if _, found := w.books.handed[id]; !found {
			lost--
			t.Logf("the record has a %s, %s, that nobody was given", kind, id)
		}
	}
	if lost < 0 {
		t.Errorf("the record has %d credentials more than were handed out or cut off", -lost)
	}
	t.Logf("%d credentials handed out, %d recorded, %d of them alive", len(w.books.handed), len(recorded), len(w.books.alive))
	testkit.CheckLedger(t, w.owner(t))
	testkit.CheckStates(t, w.owner(t), 5*time.Second)
}

// alive checks that both replicas report the right state of every token.
func (w *world) alive(t *testing.T) error {
	t.Helper()
	for i := range w.replicas {
		sandbox, err := w.proved("spiffe://acme.test/agents/crossing", w.direct(i))
		if err != nil {
			return err
		}
		p := w.party(t, sandbox, w.direct(i))
		for _, token := range w.books.alive {
			if token.Kind == "jwt" {
				err = p.introspect(token, true)
			}
			if err != nil {
				return err
			}
		}
		for _, token := range w.books.over {
			if token.Kind == "jwt" {
				err = p.introspect(token, false)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// loginsGo waits until the target database has no login left. All delivered logins were released. For a call that was cut, Vault
// ends the unrenewed login within half a minute.
func (w *world) loginsGo(t *testing.T) {
	t.Helper()
	conn := testkit.Connect(t, w.owner(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for left := 1; left > 0; <-tick.C {
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_roles WHERE rolname LIKE 'v-%'`).Scan(&left); err != nil {
			t.Fatalf("%d logins are left: %v", left, err)
		}
	}
}
