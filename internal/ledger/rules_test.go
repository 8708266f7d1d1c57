package ledger_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// checks states the rules of an issuance a second time, as CHECK constraints on its columns.
var checks = []string{
	// columns
	`svid_kind IN ('x509-svid', 'jwt-svid')`,
	`credential_kind IN ('jwt', 'vault-token', 'database', 'pki', 'ssh', 'kv', 'vault', 'github', 'none')`,
	`trust_domain <> ''`, `task <> ''`, `scope <> ''`, `catalogue <> ''`, `decision_code <> ''`, `approval_group <> ''`,
	`audience <> ''`, `key_id <> ''`, `idempotency_key <> ''`, `status_detail <> ''`,
	`'' <> ALL (ARRAY[vault_path, vault_accessor, vault_lease, credential_name, actor]) AND octet_length(secret_digest) = 32`,
	`octet_length(claims_digest) = 32`, `octet_length(request_digest) = 32`,
	`jsonb_typeof(params) = 'object'`, `context ->> 'task' IS NOT DISTINCT FROM task`,
	`length(context::text) <= 4096 AND NOT jsonb_path_exists(context, '$.* ? (@.type() != "string")')`,
	`approval_quorum >= 1`,
	// the request
	`starts_with(spiffe_id, 'spiffe://' || trust_domain || '/')`,
	`(thumbprint <> '') = (svid_kind = 'x509-svid')`,
	`ttl_asked >= 0 AND ttl >= CASE decision WHEN 'deny' THEN 0 ELSE 1 END`,
	`CASE decision WHEN 'deny' THEN expires_at IS NULL ELSE coalesce(expires_at > time, false) END`,
	`CASE WHEN jkt IS NULL THEN true
		ELSE jkt ~ '^[A-Za-z0-9_-]{43}$' AND (canonical IS NULL OR coalesce(canonical::jsonb ->> 'jkt' = jkt, false)) END`,
	`num_nulls(on_behalf_of, on_behalf_groups) IN (0, 2) AND coalesce(on_behalf_of LIKE '_%#_%', true)
		AND CASE WHEN coalesce(canonical, '') = '' THEN true
			ELSE canonical::jsonb ->> 'on_behalf_of' IS NOT DISTINCT FROM on_behalf_of END`,
	// the state
	`CASE decision
		WHEN 'deny' THEN status = 'denied' AND NOT one_shot
		WHEN 'pending' THEN status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed') AND NOT one_shot
		WHEN 'allow' THEN (status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
			'released', 'expired') OR status = 'used' AND one_shot) AND (NOT one_shot OR credential_kind = 'jwt')
			AND (credential_kind <> 'none' OR status IN ('issued', 'revoked', 'released'))
		ELSE false END`,
	`(status_detail IS NOT NULL) = (status IN ('failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released'))`,
	`status NOT IN ('failed', 'unknown', 'compensated') OR idempotency_key IS NULL`,
	// the credential
	`CASE
		WHEN decision <> 'allow' THEN
			num_nonnulls(credential_kind, audience, key_id, claims_digest, vault_path) = 0 AND NOT leased AND NOT static
		WHEN credential_kind = 'jwt' THEN
			num_nulls(audience, key_id, claims_digest) = 0 AND vault_path IS NULL AND NOT leased AND NOT static
		WHEN credential_kind = 'none' THEN
			num_nonnulls(audience, key_id, claims_digest, vault_path, jkt) = 0 AND NOT leased AND NOT static
		ELSE credential_kind IS NOT NULL AND num_nonnulls(audience, key_id, claims_digest) = 0
			AND (vault_path IS NULL) = (credential_kind = 'vault-token') AND NOT (leased AND static) END`,
	`CASE
		WHEN decision <> 'allow' OR credential_kind IN ('jwt', 'none') OR status = 'intent' THEN
			num_nonnulls(vault_accessor, vault_lease, credential_name, secret_digest) = 0
		ELSE (NOT leased OR status <> 'issued' OR num_nonnulls(vault_accessor, vault_lease) > 0)
			AND (NOT static OR secret_digest IS NULL) END`,
	`CASE WHEN status_list IS NULL THEN status_index IS NULL
		ELSE (credential_kind = 'jwt' AND status_index BETWEEN 0 AND 8191) IS TRUE END`,
	`CASE WHEN parent IS NULL THEN true
		WHEN decision = 'allow' THEN credential_kind = 'jwt' AND approves IS NULL AND parent <> id
		ELSE decision = 'deny' END`,
	// the approval
	`num_nulls(approval_group, approval_quorum) = CASE decision WHEN 'pending' THEN 0 ELSE 2 END
		AND CASE WHEN break_glass IS NULL THEN true
			ELSE coalesce(break_glass = canonical::jsonb ->> 'break_glass' AND break_glass NOT IN ('', approval_group), false) END`,
	`CASE decision
		WHEN 'pending' THEN votes >= 0 AND redemptions BETWEEN 0 AND 2 AND approves IS NULL
			AND (status = 'redeemed') = (redemptions > 0) AND (redemptions > 0) = (redeemed_by IS NOT NULL)
			AND (status NOT IN ('approved', 'redeemed') OR canonical IS NOT NULL
				AND votes >= least(approval_quorum, CASE WHEN break_glass IS NOT NULL THEN 2 END))
		ELSE num_nonnulls(canonical, redeemed_by, remembered) = 0 AND votes = 0 AND redemptions = 0
			AND (approves IS NOT NULL) = (decision = 'allow' AND decision_code IN ('approved', 'break_glass'))
			AND (decision_code <> 'break_glass' OR ttl <= 1800 AND expires_at - time <= interval '30 minutes') END`,
}

// A row breaks a rule (broken_rule) exactly when it would fail one of the CHECKs, which count NULL as true.
func TestRulesAgreeWithChecks(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for _, rec := range []broker.Record{allowed(withKey("k")), allowed(in(7, nil)), denied(nil), pending(nil), dynamic("database", nil), testkit.Permit(nil)} {
		begin(t, l, rec)
	}
	conn := testkit.Connect(t, db.AdminURL)
	rows := changedRows(t, conn)
	if len(checks) != 34 {
		t.Fatalf("got %d CHECKs, want 34", len(checks))
	}
	const over = ` FROM unnest($1::jsonb[]) AS doc, LATERAL jsonb_populate_record(NULL::issuances, doc) AS i`
	broken := texts(t, conn, `SELECT DISTINCT broken_rule(i, false)`+over+` WHERE broken_rule(i, false) IS NOT NULL`, rows)
	if len(broken) != 21 {
		t.Errorf("got rows that break %d rules (%s), want 21", len(broken), strings.Join(broken, ", "))
	}
	if kept := texts(t, conn, `SELECT 'kept'`+over+` WHERE broken_rule(i, false) IS NULL`, rows); len(kept) < 100 || len(kept) > len(rows)-100 {
		t.Errorf("got %d of %d rows that break no rule", len(kept), len(rows))
	}
	for _, differs := range texts(t, conn, `SELECT coalesce(broken_rule(i, false), 'no rule') || ' by ' || doc`+over+`
		WHERE (broken_rule(i, false) IS NULL) <> (coalesce(`+strings.Join(checks, ", true) AND coalesce(")+`, true)) LIMIT 5`, rows) {
		t.Errorf("the CHECKs and the rules disagree on what breaks %s", differs)
	}
}

// changedRows returns issuances in which some columns have the values of other rows, or values that no row should have.
func changedRows(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	var all []map[string]any
	for _, text := range texts(t, conn, `SELECT to_jsonb(i)::text FROM issuances AS i`) {
		var row map[string]any
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			t.Fatal(err)
		}
		if row["canonical"] == "" { // text that is not JSON breaks more than a rule
			row["canonical"] = "{}"
		}
		all = append(all, row)
	}
	odd := map[string][]any{
		"text":                     {nil, "", "x", "jwt", "vault-token", "none", "break_glass", "approved", "jwt-svid", "x#y", strings.Repeat("A", 43)},
		"canonical":                {nil, "{}", `{"break_glass":"x"}`, `{"on_behalf_of":"x#y"}`, `{"jkt":"` + strings.Repeat("A", 43) + `"}`},
		"integer":                  {nil, -1, 0, 1, 2, 3, 8191, 8192},
		"bigint":                   {-1, 0, 1, 1800, 1801},
		"boolean":                  {true, false},
		"bytea":                    {nil, `\x00`, `\x` + strings.Repeat("00", 32)},
		"uuid":                     {nil, all[0]["id"], all[1]["id"]},
		"timestamp with time zone": {all[0]["time"], "2020-01-01T00:00:00Z", "2126-01-01T00:00:00Z"},
		"jsonb":                    {map[string]any{}, []any{}},
		"ARRAY":                    {nil, []any{}, []any{"x"}},
	}
	for _, status := range texts(t, conn, `SELECT unnest(regexp_matches(pg_get_functiondef('may_move'::regproc), '''([a-z]+)''', 'g'))`) {
		odd["text"] = append(odd["text"], status)
	}
	kinds := map[string]string{}
	for _, column := range texts(t, conn, `
		SELECT column_name || ':' || data_type || ':' || is_nullable FROM information_schema.columns
		WHERE table_name = 'issuances' AND table_schema = current_schema()`) {
		name, kind, _ := strings.Cut(column, ":")
		kinds[name] = kind
	}
	columns := append(slices.Sorted(maps.Keys(kinds)), slices.Repeat([]string{"status", "status_detail"}, 5)...)
	random := rand.New(rand.NewPCG(3, 26)) // the same on each run
	var rows []string
	for range 20_000 {
		row := maps.Clone(all[random.IntN(len(all))])
		for range 1 + random.IntN(3) {
			name := columns[random.IntN(len(columns))]
			kind, nullable, _ := strings.Cut(kinds[name], ":")
			if name == "canonical" {
				kind = name
			}
			values := append(slices.Clone(odd[kind]), all[random.IntN(len(all))][name])
			if value := values[random.IntN(len(values))]; value != nil || nullable == "YES" {
				row[name] = value
			}
		}
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(text))
	}
	return rows
}

func texts(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}
