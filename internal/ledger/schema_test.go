package ledger_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// T3: no role can change what was recorded, nor can the owner of the tables.
func TestDatabaseRolesHaveOnlyTheirPrivileges(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	begin(t, l, allowed(limitedBy(limit("x", 1, time.Hour))), denied(nil))
	announce(t, l, announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: "over"}),
		announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: sandbox + "/x"}))
	openOutbox(t, db, standings)
	if err := l.UseProof(t.Context(), dpop.Proof{Digest: sha256.Sum256([]byte("used")), Until: time.Now()}); err != nil {
		t.Fatal(err)
	}
	exec(t, testkit.Connect(t, db.BrokerURL), `INSERT INTO replicas VALUES (gen_random_uuid(), 1, 1)`)
	as := map[string]*pgx.Conn{
		"broker":  testkit.Connect(t, db.BrokerURL),
		"auditor": testkit.Connect(t, db.AuditorURL),
		"owner":   testkit.Connect(t, db.AdminURL),
	}
	const nothing = " WHERE false" // Postgres checks rights before it reads rows
	for _, tc := range []struct {
		who, sql, want string
	}{
		{"broker", `SELECT FROM entries, issuances, ledger_head, deployment, goose_db_version`, ""},
		{"broker", `UPDATE entries SET body = body` + nothing, noRight},
		{"broker", `DELETE FROM entries` + nothing, noRight},
		{"broker", `TRUNCATE entries CASCADE`, noRight},
		{"broker", `INSERT INTO issuances SELECT * FROM issuances` + nothing, noRight},
		{"broker", `DELETE FROM issuances` + nothing, noRight},
		{"broker", `TRUNCATE issuances`, noRight},
		{"broker", `UPDATE issuances SET spiffe_id = 'spiffe://acme.test/x'` + nothing, noRight},
		{"broker", `UPDATE issuances SET entry_index = 7` + nothing, noRight},
		{"broker", `UPDATE issuances SET expires_at = now()` + nothing, noRight},
		{"broker", `UPDATE issuances SET decision = 'allow'` + nothing, noRight},
		{"broker", `UPDATE issuances SET status = status, status_detail = NULL, status_time = now(), idempotency_key = NULL` + nothing, ""},
		{"broker", `INSERT INTO ledger_head (size) VALUES (0)`, noRight},
		{"broker", `DELETE FROM ledger_head`, noRight},
		{"broker", `UPDATE ledger_head SET only_row = true` + nothing, noRight},
		{"broker", `UPDATE ledger_head SET size = 0`, violation},
		{"broker", `UPDATE ledger_head SET size = size + 5`, violation},
		{"broker", `UPDATE ledger_head SET size = 9223372036854775807`, violation},
		{"broker", `UPDATE ledger_head SET size = size`, ""},
		{"broker", `UPDATE deployment SET cursor_key = cursor_key`, noRight},
		{"broker", `UPDATE deployment SET created_at = created_at`, noRight},
		{"broker", `UPDATE deployment SET bootstrap_ended_at = clock_timestamp()`, ""},
		{"broker", `UPDATE deployment SET bootstrap_ended_at = clock_timestamp() + interval '1 s'`, violation},
		{"broker", `UPDATE deployment SET bootstrap_ended_at = clock_timestamp() - interval '1 s'`, violation},
		{"broker", `DELETE FROM deployment`, noRight},
		{"owner", `UPDATE deployment SET created_at = clock_timestamp()`, violation},
		{"owner", `DELETE FROM deployment`, noRight},
		{"owner", `TRUNCATE deployment`, noRight},
		{"broker", `UPDATE goose_db_version SET version_id = 0`, noRight},
		{"broker", `ALTER TABLE entries DISABLE TRIGGER ALL`, noRight},
		{"broker", `DROP TABLE issuances`, noRight},
		{"broker", `CREATE TABLE mine (x int)`, noRight},
		{"broker", `DELETE FROM rate_limits` + nothing, ""},
		{"broker", `UPDATE rate_limits SET key = 'x'` + nothing, noRight},
		{"broker", `UPDATE rate_limits SET tat = now()` + nothing, ""},
		{"broker", `DELETE FROM rate_limits`, noRight}, // one of them is in use
		{"broker", `SELECT FROM dpop_seen`, ""},
		{"broker", `INSERT INTO dpop_seen VALUES (sha256('x'), now())`, ""},
		{"broker", `INSERT INTO dpop_seen VALUES (sha256('used'), now())`, notUnique},
		{"broker", `INSERT INTO dpop_seen VALUES ('x', now())`, violation},
		{"broker", `UPDATE dpop_seen SET until = now()` + nothing, noRight},
		{"broker", `DELETE FROM dpop_seen`, noRight}, // a proof could be used again
		{"broker", `TRUNCATE dpop_seen`, noRight},
		{"auditor", `SELECT FROM dpop_seen`, noRight},
		{"broker", `UPDATE issuances SET jkt = 'x'` + nothing, noRight},
		{"broker", `UPDATE issuances SET status_index = 1` + nothing, noRight},
		{"broker", `UPDATE issuances SET vault_accessor = 'x', vault_lease = 'x', credential_name = 'x', secret_digest = '', actor = 'x'` + nothing, ""},
		{"broker", `UPDATE issuances SET leased = true` + nothing, noRight},
		{"broker", `UPDATE issuances SET static = true` + nothing, noRight},
		{"broker", `UPDATE issuances SET vault_path = 'x'` + nothing, noRight},
		{"broker", `SELECT FROM task_ends, quarantines, sweeper_term`, ""},
		{"broker", `UPDATE task_ends SET ends_at = now(), ended = true, since = now(), command = command, entry_index = 1` + nothing, ""},
		{"broker", `UPDATE task_ends SET task = 'x'` + nothing, noRight},
		{"broker", `UPDATE task_ends SET ended = false`, noRight},
		{"broker", `UPDATE task_ends SET ends_at = ends_at + interval '1 s'`, noRight},
		{"broker", `UPDATE task_ends SET ends_at = ends_at - interval '1 s'`, ""},
		{"broker", `DELETE FROM task_ends` + nothing, noRight},
		{"broker", `TRUNCATE task_ends`, noRight},
		{"broker", `INSERT INTO task_ends VALUES ('spiffe://acme.test/x', 't', now(), true, now(), gen_random_uuid(), 1)`, noParent},
		{"broker", `INSERT INTO task_ends SELECT 'acme', 't', now(), true, now(), command, entry_index FROM task_ends`, violation},
		{"broker", `INSERT INTO quarantines VALUES ('spiffe://acme.test/x', now(), NULL, '', gen_random_uuid(), 1)`, noParent},
		{"broker", `INSERT INTO quarantines SELECT 'spiffe://acme.test/', now(), NULL, '', command, entry_index FROM quarantines`, violation},
		{"broker", `UPDATE quarantines SET reason = 'x'` + nothing, noRight},
		{"broker", `TRUNCATE quarantines`, noRight},
		{"broker", `DELETE FROM quarantines`, ""},
		{"broker", `UPDATE sweeper_term SET term = term + 1`, ""},
		{"broker", `UPDATE sweeper_term SET term = term`, noRight},
		{"broker", `UPDATE sweeper_term SET term = term + 2`, noRight},
		{"broker", `UPDATE sweeper_term SET only_row = false` + nothing, noRight},
		{"broker", `INSERT INTO sweeper_term VALUES (true, 1)`, noRight},
		{"broker", `DELETE FROM sweeper_term`, noRight},
		{"broker", `UPDATE issuances SET canonical = 'x'` + nothing, noRight},
		{"broker", `UPDATE issuances SET on_behalf_of = NULL` + nothing, noRight},
		{"broker", `UPDATE issuances SET on_behalf_groups = NULL` + nothing, noRight},
		{"broker", `UPDATE issuances SET approves = id` + nothing, noRight},
		{"broker", `UPDATE issuances SET votes = 1, redemptions = 1, redeemed_by = id` + nothing, ""},
		{"broker", `INSERT INTO people VALUES ('x', 'x', 'x', '{}', now(), gen_random_uuid(), 1)`, violation},
		{"broker", `UPDATE people SET id = 'x'` + nothing, noRight},
		{"broker", `DELETE FROM people` + nothing, noRight},
		{"broker", `TRUNCATE people CASCADE`, noRight},
		{"broker", `UPDATE votes SET verdict = 'approve'` + nothing, noRight},
		{"broker", `DELETE FROM votes` + nothing, noRight},
		{"broker", `TRUNCATE votes`, noRight},
		{"broker", `SELECT FROM uses`, ""},
		{"broker", `INSERT INTO uses VALUES (gen_random_uuid(), 1, 0, NULL, now(), 1)`, noParent},
		{"broker", `UPDATE uses SET calls = 1` + nothing, noRight},
		{"broker", `DELETE FROM uses` + nothing, noRight},
		{"broker", `TRUNCATE uses`, noRight},
		{"owner", `UPDATE uses SET calls = 1` + nothing, noRight},
		{"owner", `DELETE FROM uses` + nothing, noRight},
		{"owner", `TRUNCATE uses`, noRight},
		{"auditor", `SELECT FROM uses, audit_usage`, ""},
		{"auditor", `INSERT INTO uses SELECT * FROM uses` + nothing, noRight},
		{"broker", `SELECT FROM call_reports`, ""},
		{"broker", `INSERT INTO call_reports VALUES (gen_random_uuid(), 'x', 'x', 'x', gen_random_uuid(), 1, now(), now(), true, now(), 1)`, violation},
		{"broker", `UPDATE call_reports SET final = true` + nothing, noRight},
		{"broker", `DELETE FROM call_reports` + nothing, noRight},
		{"broker", `TRUNCATE call_reports`, noRight},
		{"owner", `UPDATE call_reports SET final = true` + nothing, noRight},
		{"owner", `DELETE FROM call_reports` + nothing, noRight},
		{"owner", `TRUNCATE call_reports`, noRight},
		{"auditor", `SELECT FROM call_reports, audit_calls`, ""},
		{"auditor", `INSERT INTO call_reports SELECT * FROM call_reports` + nothing, noRight},
		{"auditor", `SELECT may_report_calls(gen_random_uuid())`, noRight},
		{"auditor", `SELECT may_report(gen_random_uuid(), 'x')`, noRight},
		{"auditor", `SELECT reportable(gen_random_uuid(), 'x')`, noRight},
		{"broker", `UPDATE catalogues SET names = '{}'` + nothing, noRight},
		{"broker", `DELETE FROM catalogues` + nothing, noRight},
		{"broker", `TRUNCATE catalogues CASCADE`, noRight},
		{"broker", `INSERT INTO catalogues VALUES ('sha256:00', '{a.yaml}', '{x}')`, violation},
		{"broker", `INSERT INTO catalogues VALUES (catalogue_digest('{a.yaml}', '{x}'), '{a.yaml}', '{x}')`, ""},
		{"broker", `INSERT INTO catalogues VALUES (catalogue_digest('{a.yaml}', '{x}'), '{a.yaml}', '{y}')`, violation},
		{"broker", `INSERT INTO catalogues VALUES (catalogue_digest('{a.yaml}', '{x}'), '{b.yaml}', '{x}')`, violation},
		{"broker", `INSERT INTO catalogues VALUES (catalogue_digest('{a.yaml}', '{x}'), '{a.yaml,b.yaml}', '{x}')`, violation},
		{"broker", `INSERT INTO catalogues VALUES ('sha256:', '{}', '{}')`, violation},
		{"broker", `INSERT INTO catalogue_changes SELECT gen_random_uuid(), 'applied', 'x', NULL, 1, NULL, NULL, NULL, '', now(), 1`, noParent},
		{"broker", `UPDATE catalogue_changes SET actor = 'x'` + nothing, noRight},
		{"broker", `DELETE FROM catalogue_changes` + nothing, noRight},
		{"broker", `TRUNCATE catalogue_changes CASCADE`, noRight},
		{"broker", `UPDATE catalogue_head SET version = 1`, violation},
		{"broker", `UPDATE catalogue_head SET version = version`, violation},
		{"broker", `UPDATE catalogue_head SET only_row = true` + nothing, noRight},
		{"broker", `INSERT INTO catalogue_head VALUES (true, 0)`, noRight},
		{"broker", `DELETE FROM catalogue_head`, noRight},
		{"auditor", `SELECT FROM catalogues, catalogue_changes, catalogue_head`, ""},
		{"auditor", `INSERT INTO catalogues SELECT * FROM catalogues` + nothing, noRight},
		{"auditor", `INSERT INTO catalogue_changes SELECT * FROM catalogue_changes` + nothing, noRight},
		{"auditor", `UPDATE catalogue_head SET version = 0`, noRight},
		{"auditor", `SELECT may_change_catalogue('', '{}')`, noRight},
		{"owner", `UPDATE catalogues SET names = '{}'` + nothing, noRight},
		{"owner", `DELETE FROM catalogue_changes` + nothing, noRight},
		{"owner", `DELETE FROM catalogue_head`, noRight},
		{"broker", `SELECT FROM webhooks, webhook_notices`, ""},
		{"broker", `INSERT INTO webhooks (name, next) VALUES ('a b', 0)`, violation},
		{"broker", `INSERT INTO webhooks (name, next) VALUES ('a', -1)`, violation},
		{"broker", `UPDATE webhooks SET next = next, holder = NULL, held_until = now()` + nothing, ""},
		{"broker", `UPDATE webhooks SET next = next - 1`, noRight},
		{"broker", `UPDATE webhooks SET name = 'x'` + nothing, noRight},
		{"broker", `DELETE FROM webhooks` + nothing, noRight},
		{"broker", `TRUNCATE webhooks CASCADE`, noRight},
		{"broker", `INSERT INTO webhook_notices VALUES ('one', 999999, 'approval.waiting', now())`, noParent},
		{"broker", `INSERT INTO webhook_notices VALUES ('two', 0, 'approval.waiting', now())`, noParent},
		{"broker", `INSERT INTO webhook_notices VALUES ('one', 0, 'x', now())`, violation},
		{"broker", `UPDATE webhook_notices SET due = now(), attempts = 1` + nothing, ""},
		{"broker", `UPDATE webhook_notices SET kind = 'approval.decided'` + nothing, noRight},
		{"broker", `DELETE FROM webhook_notices` + nothing, ""},
		{"broker", `TRUNCATE webhook_notices`, noRight},
		{"owner", `UPDATE webhooks SET next = next - 1`, noRight},
		{"auditor", `SELECT FROM webhooks, webhook_notices`, ""},
		{"auditor", `DELETE FROM webhook_notices` + nothing, noRight},
		{"auditor", `UPDATE webhooks SET next = next` + nothing, noRight},
		{"auditor", `SELECT FROM people, votes, passkeys`, ""},
		{"broker", `UPDATE passkeys SET removed_at = now(), removed_index = 1` + nothing, ""},
		{"broker", `UPDATE passkeys SET public_key = 'x'` + nothing, noRight},
		{"broker", `UPDATE passkeys SET person = 'x'` + nothing, noRight},
		{"broker", `UPDATE passkeys SET entry_index = 1` + nothing, noRight},
		{"broker", `DELETE FROM passkeys` + nothing, noRight},
		{"broker", `TRUNCATE passkeys`, noRight},
		{"owner", `DELETE FROM passkeys` + nothing, noRight},
		{"owner", `TRUNCATE passkeys`, noRight},
		{"auditor", `INSERT INTO passkeys SELECT * FROM passkeys` + nothing, noRight},
		{"auditor", `SELECT may_register('x', 'x')`, noRight},
		{"auditor", `SELECT may_register('x', 'x', 'x')`, noRight},
		{"auditor", `SELECT may_unregister('x', gen_random_uuid())`, noRight},
		{"broker", `UPDATE votes SET assertion = 'x'` + nothing, noRight},
		{"auditor", `INSERT INTO votes SELECT * FROM votes` + nothing, noRight},
		{"auditor", `SELECT redeemable(gen_random_uuid(), 'x', 'approved')`, noRight},
		{"auditor", `SELECT approved_by(gen_random_uuid())`, noRight},
		{"auditor", `SELECT broken_rule(NULL, false)`, noRight},
		{"broker", `UPDATE issuances SET break_glass = 'x'` + nothing, noRight},
		{"owner", `DELETE FROM votes` + nothing, noRight},
		{"owner", `UPDATE votes SET verdict = 'approve'` + nothing, noRight},
		{"owner", `DELETE FROM people` + nothing, noRight},
		{"auditor", `SELECT FROM task_ends, quarantines`, ""},
		{"auditor", `DELETE FROM quarantines` + nothing, noRight},
		{"auditor", `INSERT INTO quarantines SELECT * FROM quarantines` + nothing, noRight},
		{"auditor", `UPDATE task_ends SET ended = true` + nothing, noRight},
		{"auditor", `SELECT FROM sweeper_term`, noRight},
		{"auditor", `SELECT may_move('', '', '', true, true)`, noRight},
		{"owner", `UPDATE task_ends SET ended = false`, noRight},
		{"owner", `UPDATE task_ends SET task = 'x'`, noRight},
		{"owner", `DELETE FROM task_ends`, noRight},
		{"owner", `UPDATE quarantines SET reason = 'x'`, noRight},
		{"owner", `UPDATE sweeper_term SET term = 0`, noRight},
		{"owner", `DELETE FROM sweeper_term`, noRight},
		{"auditor", `SELECT FROM rate_limits`, noRight},
		{"broker", `INSERT INTO replicas VALUES (gen_random_uuid(), 1, 1)`, ""},
		{"broker", `INSERT INTO replicas VALUES (gen_random_uuid(), -1, 1)`, violation},
		{"broker", `INSERT INTO replicas SELECT gen_random_uuid(), size + 1, 1 FROM ledger_head`, violation},
		{"broker", `UPDATE replicas SET id = gen_random_uuid()` + nothing, noRight},
		{"broker", `UPDATE replicas SET seen = seen + 1, beat = beat + 1`, ""},
		{"broker", `UPDATE replicas SET seen = seen - 1, beat = beat + 1`, violation},
		{"broker", `UPDATE replicas SET seen = seen + 1`, violation},
		{"broker", `UPDATE replicas SET beat = beat - 1`, violation},
		{"broker", `TRUNCATE replicas`, noRight},
		{"auditor", `SELECT FROM replicas`, noRight},
		{"broker", `INSERT INTO sessions VALUES (sha256('x'), 'x', now())`, ""},
		{"broker", `INSERT INTO sessions VALUES ('x', 'x', now())`, violation},
		{"broker", `INSERT INTO sessions VALUES (sha256('y'), decode(repeat('00', 65537), 'hex'), now())`, violation},
		{"broker", `UPDATE sessions SET id = sha256('z')`, noRight},
		{"broker", `TRUNCATE sessions`, noRight},
		{"auditor", `SELECT FROM sessions`, noRight},
		{"auditor", `SELECT FROM entries, issuances, ledger_head, goose_db_version`, ""},
		{"auditor", `SELECT FROM deployment`, noRight},
		{"auditor", `INSERT INTO entries SELECT * FROM entries` + nothing, noRight},
		{"auditor", `UPDATE entries SET body = body` + nothing, noRight},
		{"auditor", `DELETE FROM entries` + nothing, noRight},
		{"auditor", `INSERT INTO issuances SELECT * FROM issuances` + nothing, noRight},
		{"auditor", `UPDATE issuances SET status = 'failed'` + nothing, noRight},
		{"auditor", `DELETE FROM issuances` + nothing, noRight},
		{"auditor", `UPDATE ledger_head SET size = size`, noRight},
		{"auditor", `SELECT admit('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')`, noRight},
		{"owner", `UPDATE entries SET body = body` + nothing, noRight},
		{"owner", `DELETE FROM entries` + nothing, noRight},
		{"owner", `TRUNCATE entries CASCADE`, noRight},
		{"owner", `DELETE FROM issuances` + nothing, noRight},
		{"owner", `TRUNCATE issuances CASCADE`, noRight},
		{"owner", `DELETE FROM ledger_head`, noRight},
		{"owner", `UPDATE ledger_head SET size = 0`, violation},
	} {
		if got := refusedBy(t, as[tc.who], tc.sql); got != tc.want {
			t.Errorf("%s: %s: got %q, want %q", tc.who, tc.sql, got, tc.want)
		}
	}
	db.Check(t)
}

func TestEntryColumnsMatchTheBody(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	conn := testkit.Connect(t, db.BrokerURL)
	const id, other = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"
	body := func(kind, id string) []byte { return fmt.Appendf(nil, `{"id":%q,"kind":%q}`, id, kind) }
	leaf := func(body []byte) []byte {
		sum := sha256.Sum256(append([]byte{0}, body...))
		return sum[:]
	}
	good := body("call.refused", id)
	huge := fmt.Appendf(nil, `{"id":%q,"kind":"call.refused","x":%q}`, id, strings.Repeat("x", 64<<10))
	for _, tc := range []struct {
		name  string
		index int
		id    any
		kind  string
		body  []byte
		leaf  []byte
		want  string
	}{
		{"as it should be", 0, id, "call.refused", good, leaf(good), ""},
		{"an index ahead of the head", 1, id, "call.refused", good, leaf(good), violation},
		{"a negative index", -1, id, "call.refused", good, leaf(good), violation},
		{"no id", 0, nil, "call.refused", good, leaf(good), isNull},
		{"an unknown kind", 0, id, "call.me", body("call.me", id), leaf(body("call.me", id)), violation},
		{"another kind than the body's", 0, id, "request.denied", good, leaf(good), violation},
		{"another id than the body's", 0, other, "call.refused", good, leaf(good), violation},
		{"a request with another id than the body's", 0, other, "request.denied", body("request.denied", id), leaf(body("request.denied", id)), violation},
		{"a request whose body describes none", 0, id, "request.denied", body("request.denied", id), leaf(body("request.denied", id)), violation},
		{"a body that names nothing", 0, id, "call.refused", []byte("{}"), leaf([]byte("{}")), violation},
		{"a hash without its prefix", 0, id, "call.refused", good, func() []byte { s := sha256.Sum256(good); return s[:] }(), violation},
		{"the hash of another body", 0, id, "call.refused", good, leaf([]byte("{}")), violation},
		{"no hash", 0, id, "call.refused", good, []byte{}, violation},
		{"an oversized body", 0, id, "call.refused", huge, leaf(huge), violation},
	} {
		got := refusedBy(t, conn, `
			WITH head AS (UPDATE ledger_head SET size = size + 1)
			INSERT INTO entries (index, id, time, kind, body, leaf_hash) VALUES ($1, $2, now(), $3, $4, $5)`,
			tc.index, tc.id, tc.kind, tc.body, tc.leaf)
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	// The head is not advanced. The broker's own role cannot get ahead of it, which would stop every later append.
	for _, index := range []int{0, 1, 77} {
		got := refusedBy(t, conn, `INSERT INTO entries (index, id, time, kind, body, leaf_hash) VALUES ($1, $2, now(), $3, $4, $5)`,
			index, id, "call.refused", good, leaf(good))
		if got != violation {
			t.Errorf("index %d and the head where it was: got %q, want %q", index, got, violation)
		}
	}
}

// No row can be inserted with a state that no request can have.
func TestDatabaseRefusesImpossibleRows(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	recs := map[string]broker.Record{
		"allow": allowed(withKey("k")), "deny": denied(nil), "pending": pending(nil), "intent": dynamic("database", nil),
		"listed": allowed(in(7, nil)), "permit": testkit.Permit(nil),
	}
	for _, rec := range recs {
		begin(t, l, rec)
	}
	conn := testkit.Connect(t, db.AdminURL) // the broker cannot insert an issuance at all
	for _, tc := range []struct{ of, change, want string }{
		{"allow", `{}`, ""},
		{"deny", `{}`, ""},
		{"pending", `{}`, ""},
		{"allow", `{"status": "denied"}`, violation},
		{"allow", `{"status": "pending"}`, violation},
		{"allow", `{"status": "revoked", "status_detail": "x"}`, violation},
		{"allow", `{"status": "expired"}`, violation},
		{"allow", `{"status": "used"}`, violation},
		{"allow", `{"one_shot": true}`, ""},
		{"intent", `{"one_shot": true}`, violation}, // a login is not one-shot
		{"deny", `{"one_shot": true}`, violation},
		{"allow", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": 8191}`, ""},
		{"allow", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": 8192}`, violation},
		{"allow", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": -1}`, violation},
		{"allow", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc"}`, violation},
		{"allow", `{"status_index": 1}`, violation},
		{"listed", `{}`, notUnique},
		{"listed", `{"status_index": 8}`, ""},
		{"intent", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": 1}`, violation}, // a login has no list
		{"deny", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": 1}`, violation},
		{"allow", `{"status": "intent"}`, violation}, // a JWT has no such status
		{"allow", `{"actor": "spiffe://acme.test/admin"}`, violation},
		{"allow", `{"vault_path": "x"}`, violation},
		{"allow", `{"leased": true}`, violation},
		{"allow", `{"static": true}`, violation},
		{"allow", `{"vault_accessor": "x"}`, violation},
		{"deny", `{"vault_path": "x"}`, violation},
		{"pending", `{"leased": true}`, violation},
		{"intent", `{}`, ""},
		{"intent", `{"status": "issued"}`, violation},
		{"intent", `{"status": "unknown", "status_detail": "x"}`, violation},
		{"intent", `{"vault_path": null}`, violation},
		{"intent", `{"vault_path": ""}`, violation},
		{"intent", `{"credential_kind": "vault-token"}`, violation}, // it has a path
		{"intent", `{"credential_kind": "vault-token", "vault_path": null}`, ""},
		{"intent", `{"credential_kind": null}`, violation},
		{"intent", `{"audience": "x"}`, violation},
		{"intent", `{"key_id": "x"}`, violation},
		{"intent", `{"static": true}`, violation}, // it is leased too
		{"intent", `{"vault_accessor": "x"}`, violation},
		{"intent", `{"vault_lease": "x"}`, violation},
		{"intent", `{"credential_name": "x"}`, violation},
		{"intent", `{"leased": null}`, isNull},
		// A permit is for no credential, so it has nothing that describes one.
		{"permit", `{}`, ""},
		{"permit", `{"status": "intent"}`, violation},
		{"permit", `{"status": "failed", "status_detail": "x"}`, violation},
		{"permit", `{"audience": "x"}`, violation},
		{"permit", `{"key_id": "x"}`, violation},
		{"permit", `{"claims_digest": "\\x0000000000000000000000000000000000000000000000000000000000000000"}`, violation},
		{"permit", `{"vault_path": "x"}`, violation},
		{"permit", `{"vault_accessor": "x"}`, violation},
		{"permit", `{"vault_lease": "x"}`, violation},
		{"permit", `{"credential_name": "x"}`, violation},
		{"permit", `{"secret_digest": "\\x0000000000000000000000000000000000000000000000000000000000000000"}`, violation},
		{"permit", `{"leased": true}`, violation},
		{"permit", `{"static": true}`, violation},
		{"permit", `{"one_shot": true}`, violation},
		{"permit", `{"status_list": "5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc", "status_index": 1}`, violation},
		{"permit", `{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}`, violation},
		{"permit", `{"parent": "` + recs["allow"].ID + `"}`, violation},
		{"allow", `{"parent": "` + recs["permit"].ID + `"}`, violation}, // a token comes from a token
		{"allow", `{"credential_kind": "none"}`, violation},             // it has an audience
		{"intent", `{"credential_kind": "none"}`, violation},            // it has a path
		{"deny", `{"status": "issued"}`, violation},
		{"deny", `{"status": "failed", "status_detail": "x"}`, violation},
		{"pending", `{"status": "issued"}`, violation},
		{"deny", `{"decision": "maybe"}`, violation},
		{"allow", `{"status": "failed"}`, violation}, // without a code
		{"allow", `{"status_detail": "x"}`, violation},
		{"allow", `{"status": "failed", "status_detail": "x", "idempotency_key": "k2"}`, violation},
		{"allow", `{"key_id": null}`, violation},
		{"allow", `{"audience": ""}`, violation},
		{"allow", `{"claims_digest": null}`, violation},
		{"allow", `{"claims_digest": "\\x00"}`, violation},
		{"allow", `{"credential_kind": "password"}`, violation},
		{"deny", `{"key_id": "x"}`, violation},
		{"pending", `{"audience": "x"}`, violation},
		{"allow", `{"expires_at": null}`, violation},
		{"allow", `{"expires_at": "2026-03-01T00:00:00Z"}`, violation}, // before it began
		{"pending", `{"expires_at": null}`, violation},
		{"deny", `{"expires_at": "2030-01-01T00:00:00Z"}`, violation},
		{"allow", `{"ttl": 0}`, violation},
		{"pending", `{"ttl": 0}`, violation},
		{"deny", `{"ttl": -1}`, violation},
		{"allow", `{"ttl_asked": -1}`, violation},
		{"pending", `{"approval_quorum": 0}`, violation},
		{"pending", `{"approval_group": null}`, violation},
		{"allow", `{"approval_group": "x", "approval_quorum": 1}`, violation},
		{"pending", `{"break_glass": "leads", "canonical": "{\"break_glass\":\"leads\"}"}`, ""},
		{"pending", `{"break_glass": "leads", "canonical": "{}"}`, violation}, // people were not shown it
		{"pending", `{"break_glass": "leads", "canonical": "{\"break_glass\":\"others\"}"}`, violation},
		{"pending", `{"break_glass": "oncall", "canonical": "{\"break_glass\":\"oncall\"}"}`, violation}, // the group asked to approve
		{"pending", `{"break_glass": "", "canonical": "{\"break_glass\":\"\"}"}`, violation},
		{"allow", `{"break_glass": "leads"}`, violation},
		{"allow", `{"decision_code": "break_glass"}`, violation}, // redeems no request
		{"allow", `{"trust_domain": "other.test"}`, violation},
		{"allow", `{"trust_domain": "acme"}`, violation},
		{"allow", `{"spiffe_id": "https://acme.test/x"}`, violation},
		{"allow", `{"svid_kind": "x"}`, violation},
		{"allow", `{"svid_kind": "jwt-svid"}`, violation}, // it has a thumbprint
		{"allow", `{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}`, ""},
		{"allow", `{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4"}`, violation},
		{"allow", `{"jkt": ""}`, violation},
		{"pending", `{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I", "canonical": "{}"}`, violation}, // people were not shown it
		{"allow", `{"on_behalf_of": "https://idp.test#bob", "on_behalf_groups": ["dev"]}`, ""},
		{"allow", `{"on_behalf_of": "https://idp.test#bob", "on_behalf_groups": []}`, ""},
		{"allow", `{"on_behalf_of": "https://idp.test#bob"}`, violation},
		{"allow", `{"on_behalf_groups": []}`, violation},
		{"allow", `{"on_behalf_of": "bob", "on_behalf_groups": []}`, violation},
		{"allow", `{"on_behalf_of": "#bob", "on_behalf_groups": []}`, violation},
		{"pending", `{"on_behalf_of": "https://idp.test#bob", "on_behalf_groups": [], "canonical": "{\"on_behalf_of\":\"https://idp.test#bob\"}"}`, ""},
		{"pending", `{"on_behalf_of": "https://idp.test#bob", "on_behalf_groups": [], "canonical": "{}"}`, violation}, // not shown
		{"pending", `{"canonical": "{\"on_behalf_of\":\"https://idp.test#bob\"}"}`, violation},                        // Bob could vote then
		{"allow", `{"params": []}`, violation},
		{"allow", `{"request_digest": "\\x"}`, violation},
		{"allow", `{"scope": null}`, isNull},
		{"allow", `{"idempotency_key": "k"}`, notUnique},
		{"allow", `{"idempotency_key": ""}`, violation},
	} {
		got := refusedBy(t, conn, `
			INSERT INTO issuances SELECT (jsonb_populate_record(i,
				jsonb_build_object('id', gen_random_uuid(), 'entry_index', 1000, 'idempotency_key', null) || $2::jsonb)).*
			FROM issuances AS i WHERE id = $1`, recs[tc.of].ID, tc.change)
		if got != tc.want {
			t.Errorf("%s with %s: got %q, want %q", tc.of, tc.change, got, tc.want)
		}
	}
	// This holds for any statement that inserts a row, even if another part of it inserts nothing.
	got := refusedBy(t, conn, merging(t, conn), recs["allow"].ID, `{"entry_index": 1000, "ttl": 0}`)
	if got != violation {
		t.Errorf("by MERGE: got %q, want %q", got, violation)
	}
}

// merging returns a statement that inserts a changed copy of an issuance, and whose other part inserts nothing. Some
// versions of PostgreSQL pass only that part to a trigger for statements.
func merging(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	columns := texts(t, conn, `
		SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = 'issuances'::regclass AND attnum > 0 AND NOT attisdropped`)
	return `
		WITH nothing AS (INSERT INTO issuances SELECT * FROM issuances WHERE false)
		MERGE INTO issuances AS i
		USING (SELECT (jsonb_populate_record(i, jsonb_build_object('id', gen_random_uuid(), 'idempotency_key', NULL) || $2::jsonb)).*
			FROM issuances AS i WHERE id = $1) AS odd ON false
		WHEN NOT MATCHED THEN INSERT (` + strings.Join(columns, ", ") + `) VALUES (odd.` + strings.Join(columns, ", odd.") + `)`
}

// No row can become such a state either, whichever columns may change. PostgreSQL's message names the rule.
func TestUpdatesObeyTheRules(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := dynamic("database", nil)
	begin(t, l, rec)
	conn := testkit.Connect(t, db.AdminURL)
	exec(t, conn, `DROP TRIGGER issuances_only_forward ON issuances`)
	for _, tc := range []struct{ change, want string }{
		{`status = 'issued', vault_lease = 'x'`, ""},
		{`status = 'issued'`, "issuances_minted"},
		{`status = 'issued', vault_lease = ''`, "issuances_texts"},
		{`status = 'issued', vault_lease = 'x', secret_digest = ''`, "issuances_digests"},
		{`status = 'revoked', vault_lease = 'x'`, "issuances_detail"},
		{`status = 'denied'`, "issuances_state"},
		{`votes = 1`, "issuances_votes"},
	} {
		_, err := conn.Exec(t.Context(), `BEGIN; UPDATE issuances SET `+tc.change+`; ROLLBACK`)
		var refused *pgconn.PgError
		got := ""
		if errors.As(err, &refused) && refused.Code == violation {
			got = refused.ConstraintName
		}
		if got != tc.want || (err == nil) != (tc.want == "") {
			t.Errorf("%s: got %q (%v), want %q", tc.change, got, err, tc.want)
		}
		exec(t, conn, `ROLLBACK`)
	}
}

// T3: no login runs code as the owner of the database through a function that has the owner's rights.
func TestFunctionsOfTheOwnerAreClosed(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	begin(t, db.Ledger(t), allowed(nil))
	admin := testkit.Connect(t, db.AdminURL)
	for who, want := range map[string]string{"brevet_auditor": "", "brevet_broker": "extend_entries, tidy_terms"} {
		got := strings.Join(texts(t, admin, `
			SELECT proname FROM pg_proc
			WHERE prosecdef AND pronamespace = current_schema()::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')
			ORDER BY proname`, who), ", ")
		if got != want {
			t.Errorf("%s may call %q, want %q", who, got, want)
		}
	}
	for _, url := range []string{db.AuditorURL, db.BrokerURL} {
		conn := testkit.Connect(t, url)
		exec(t, conn, `CREATE TEMP TABLE fake (LIKE entries)`)
		const follow = `CREATE TRIGGER x AFTER INSERT ON fake REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION follow_entries()`
		if got := refusedBy(t, conn, follow); got != noRight {
			t.Errorf("a trigger on a table of one's own: got %q, want %q", got, noRight)
		}
		exec(t, admin, `GRANT EXECUTE ON FUNCTION follow_entries TO PUBLIC`) // as if it had been forgotten
		exec(t, conn, follow)
		got := refusedBy(t, conn, `
			INSERT INTO fake SELECT 0, id, now(), 'call.refused', body, sha256('\x00'::bytea || body)
			FROM gen_random_uuid() AS id, LATERAL (SELECT convert_to(json_build_object('id', id, 'kind', 'call.refused')::text, 'UTF8') AS body) AS b`)
		if got != noRight {
			t.Errorf("rows of a table of one's own: got %q, want %q", got, noRight)
		}
		exec(t, admin, `REVOKE EXECUTE ON FUNCTION follow_entries FROM PUBLIC`)
	}
}

// An issuance has an entry, because only the trigger that follows entries inserts it.
func TestOnlyAnEntryMakesAnIssuance(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	rec := allowed(nil)
	begin(t, db.Ledger(t), rec)
	conn := testkit.Connect(t, db.BrokerURL)
	got := refusedBy(t, conn, `
		INSERT INTO issuances SELECT (jsonb_populate_record(i, jsonb_build_object('id', gen_random_uuid(), 'entry_index', 9))).*
		FROM issuances AS i WHERE id = $1`, rec.ID)
	if got != noRight {
		t.Errorf("got %q, want %q", got, noRight)
	}
	if got := refusedBy(t, conn, merging(t, conn), rec.ID, `{"entry_index": 9}`); got != noRight {
		t.Errorf("by MERGE: got %q, want %q", got, noRight)
	}
}
