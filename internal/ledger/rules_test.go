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
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
)

// The rules of an issuance were CHECKs once, and the down migration of 00026_rules.sql brings those back. A row breaks a
// rule exactly if it would have failed one of the CHECKs.
func TestRulesSayWhatTheChecksSaid(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for _, rec := range []broker.Record{allowed(withKey("k")), allowed(in(7, nil)), denied(nil), pending(nil), dynamic("database", nil)} {
		begin(t, l, rec)
	}
	conn := testkit.Connect(t, db.AdminURL)
	rows := changedRows(t, conn)
	downTo(t, db, 25)
	checks := texts(t, conn, `
		SELECT 'coalesce(' || pg_get_expr(conbin, conrelid) || ', true)' FROM pg_constraint
		WHERE conrelid = 'issuances'::regclass AND contype = 'c'`)
	if len(checks) != 32 {
		t.Fatalf("got %d CHECKs, want 32", len(checks))
	}
	if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
		t.Fatal(err)
	}
	const over = ` FROM unnest($1::jsonb[]) AS doc, LATERAL jsonb_populate_record(NULL::issuances, doc) AS i`
	broken := texts(t, conn, `SELECT DISTINCT broken_rule(i)`+over+` WHERE broken_rule(i) IS NOT NULL`, rows)
	if len(broken) != 20 {
		t.Errorf("got rows that break %d rules (%s), want 20", len(broken), strings.Join(broken, ", "))
	}
	if kept := texts(t, conn, `SELECT 'kept'`+over+` WHERE broken_rule(i) IS NULL`, rows); len(kept) < 100 || len(kept) > len(rows)-100 {
		t.Errorf("got %d of %d rows that break no rule", len(kept), len(rows))
	}
	for _, differs := range texts(t, conn, `SELECT coalesce(broken_rule(i), 'no rule') || ' by ' || doc`+over+`
		WHERE (broken_rule(i) IS NULL) <> (`+strings.Join(checks, " AND ")+`) LIMIT 5`, rows) {
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
		"text":                     {nil, "", "x", "jwt", "vault-token", "break_glass", "approved", "jwt-svid", "x#y", strings.Repeat("A", 43)},
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

// downTo reverts the migrations after a version.
func downTo(t *testing.T, db *testkit.DB, version int64) {
	t.Helper()
	all, err := migrations.Status(t.Context(), db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	for range int64(len(all)) - version {
		if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
			t.Fatal(err)
		}
	}
}
