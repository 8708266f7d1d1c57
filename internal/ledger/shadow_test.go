package ledger_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Objects that a session creates do not replace those that the triggers and functions of the schema use.
func TestShadowingObjectsAreIgnored(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := bring(t, l, "database", []broker.Status{broker.StatusIssued, broker.StatusRevoking, broker.StatusRevoked}, nil)
	issued := allowed(nil)
	begin(t, l, issued)
	admin, conn := testkit.Connect(t, db.AdminURL), testkit.Connect(t, db.BrokerURL)
	var schema, login string
	if err := conn.QueryRow(t.Context(), `SELECT current_schema(), current_user`).Scan(&schema, &login); err != nil {
		t.Fatal(err)
	}
	own := pgx.Identifier{schema + "_own"}.Sanitize()
	exec(t, admin, `CREATE SCHEMA `+own+` AUTHORIZATION `+pgx.Identifier{login}.Sanitize())
	defer exec(t, admin, `DROP SCHEMA `+own+` CASCADE`)
	exec(t, conn, `SET search_path = `+own+`, `+schema)
	exec(t, conn, `CREATE FUNCTION may_move(text, text, text, boolean, boolean) RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	exec(t, conn, `CREATE FUNCTION broken_rule(`+schema+`.issuances, boolean) RETURNS text LANGUAGE sql AS 'SELECT NULL'`)
	exec(t, conn, `CREATE TEMP TABLE ledger_head AS SELECT 78 AS size`)
	exec(t, conn, `CREATE TEMP TABLE entries AS SELECT 76::bigint AS index`)
	exec(t, conn, `CREATE TEMP TABLE quarantines AS SELECT * FROM `+schema+`.quarantines`)

	if got := refusedBy(t, conn, moveSQL, rec.ID, "released"); got != violation {
		t.Errorf("a move that there is not: got %q, want %q", got, violation)
	}
	for ttl, want := range map[int]string{60: "", 0: violation} {
		got := refusedBy(t, conn, `
			WITH head AS (
				UPDATE `+schema+`.ledger_head SET size = size + 1 RETURNING size - 1 AS index
			), made AS (
				SELECT e.time, n.id, convert_to((convert_from(e.body, 'UTF8')::jsonb || jsonb_build_object('id', n.id)
					|| jsonb_build_object('decision', convert_from(e.body, 'UTF8')::jsonb -> 'decision' || jsonb_build_object('ttl', $2::int)))::text, 'UTF8') AS body
				FROM `+schema+`.entries AS e, gen_random_uuid() AS n (id) WHERE e.id = $1
			)
			INSERT INTO `+schema+`.entries (index, id, time, kind, body, leaf_hash)
			SELECT head.index, made.id, made.time, 'issuance.intent', made.body, sha256('\x00'::bytea || made.body) FROM head, made`, issued.ID, ttl)
		if got != want {
			t.Errorf("an issuance for %d seconds: got %q, want %q", ttl, got, want)
		}
	}
	id := uuid.Must(uuid.NewV7()).String()
	body := fmt.Appendf(nil, `{"id":%q,"kind":"call.refused"}`, id)
	leaf := sha256.Sum256(append([]byte{0}, body...))
	got := refusedBy(t, conn, `INSERT INTO `+schema+`.entries (index, id, time, kind, body, leaf_hash)
		VALUES (77, $1, now(), 'call.refused', $2, $3)`, id, body, leaf[:])
	if got != violation {
		t.Errorf("an entry ahead of the head: got %q, want %q", got, violation)
	}
	if got := refusedBy(t, conn, `UPDATE `+schema+`.ledger_head SET size = 77`); got != violation {
		t.Errorf("a head ahead of the entries: got %q, want %q", got, violation)
	}
	announce(t, l, quarantine(sandbox))
	var verdict *string
	if err := conn.QueryRow(t.Context(), `SELECT verdicts[1] FROM `+schema+`.admit(
		ARRAY[$1], '{NULL}', '{t}', '{s}', '{NULL}', '{NULL}', '{}', '{}', '{}', '{}', '{}')`, sandbox).Scan(&verdict); err != nil {
		t.Fatal(err)
	}
	if verdict == nil || *verdict != "quarantined" {
		t.Errorf("admit with a quarantines table of one's own: got %v, want quarantined", verdict)
	}
	exec(t, conn, `DISCARD TEMP`)
	db.Check(t)
}

// Every function of the schema resolves names in that schema first and in the session's temporary one last, or resolved them
// when it was created.
func TestFunctionsHaveTheirOwnSearchPath(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	var functions, fixed int
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
		SELECT count(*), count(*) FILTER (WHERE proconfig @> ARRAY['search_path=' || current_schema() || ', pg_temp'] OR prosqlbody IS NOT NULL
			OR proname = 'keep_rules') -- see TestShadowingObjectsAreIgnored
		FROM pg_proc WHERE pronamespace = current_schema()::regnamespace`).Scan(&functions, &fixed); err != nil {
		t.Fatal(err)
	}
	if functions != fixed || functions < 8 {
		t.Errorf("got %d of %d functions that always find the same", fixed, functions)
	}
}
