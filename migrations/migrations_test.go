package migrations_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

func applied(t *testing.T, databaseURL string) (done, all int) {
	t.Helper()
	status, err := migrations.Status(t.Context(), databaseURL)
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	for i, m := range status {
		if m.Version != int64(i+1) || !strings.HasSuffix(m.Name, ".sql") || m.Applied == m.AppliedAt.IsZero() {
			t.Errorf("got %+v at place %d", m, i)
		}
		if m.Applied {
			done++
		}
	}
	return done, len(status)
}

func TestUpDownUp(t *testing.T) {
	db := testkit.EmptyDB(t)
	var told []string
	if err := migrations.Up(t.Context(), db.AdminURL, func(line string) { told = append(told, line) }); err != nil {
		t.Fatalf("Up: %v", err)
	}
	done, all := applied(t, db.AdminURL)
	if done != all || all == 0 || len(told) != all {
		t.Fatalf("got %d of %d applied, and was told %q", done, all, told)
	}
	conn := testkit.Connect(t, db.AdminURL)
	first := testkit.Schema(t, conn)
	if len(first) < 100 {
		t.Fatalf("got a dump of %d lines: it does not see the schema", len(first))
	}
	for n := all; n > 0; n-- {
		if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
			t.Fatalf("Down from %d: %v", n, err)
		}
		if done, _ := applied(t, db.AdminURL); done != n-1 {
			t.Errorf("got %d applied after taking back %d", done, n)
		}
	}
	if err := migrations.Down(t.Context(), db.AdminURL); !errors.Is(err, migrations.ErrNothingApplied) {
		t.Errorf("Down on nothing: got %v, want ErrNothingApplied", err)
	}
	for _, line := range testkit.Schema(t, conn) {
		if !strings.Contains(line, "goose") && !strings.HasPrefix(line, "schema") {
			t.Errorf("left after all was taken back: %s", line)
		}
	}
	if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
		t.Fatalf("Up again: %v", err)
	}
	if diff := cmp.Diff(first, testkit.Schema(t, conn)); diff != "" {
		t.Errorf("up, down, up made another schema (-first +second):\n%s", diff)
	}
}

// What the ledger records is permanent: a migration is not taken back once the ledger has an entry of its topic.
func TestDownKeepsEntries(t *testing.T) {
	for kind, stays := range map[string]int{
		"call.refused": 1, "ledger.pruned": 1, "request.denied": 2, "issuance.intent": 2, "task.end": 2, "quarantine.add": 2, "credentials.revoke": 2,
		"approval.vote": 3, "person.seen": 3, "passkey.registered": 3, "catalogue.applied": 4, "issuance.reported": 5, "calls.recorded": 5,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := testkit.NewDB(t)
			conn := testkit.Connect(t, db.AdminURL)
			if _, err := conn.Exec(t.Context(), `ALTER TABLE entries DISABLE TRIGGER entries_follow`); err != nil { // the bodies say too little
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `
				WITH head AS (UPDATE ledger_head SET size = 1),
					said AS (SELECT id, convert_to(jsonb_build_object('kind', $1::text, 'id', id)::text, 'UTF8') AS body FROM gen_random_uuid() AS id)
				INSERT INTO entries (index, id, time, kind, body, leaf_hash)
				SELECT 0, id, now(), $1, body, sha256('\x00'::bytea || body) FROM said`, kind); err != nil {
				t.Fatal(err)
			}
			var err error
			for range 10 {
				if err = migrations.Down(t.Context(), db.AdminURL); err != nil {
					break
				}
			}
			var refused *pgconn.PgError
			if done, _ := applied(t, db.AdminURL); done != stays || !errors.As(err, &refused) || refused.Code != "23514" {
				t.Errorf("got %d applied and %v, want %d and a violated check", done, err, stays)
			}
		})
	}
}

// A migration that finds a table in use gives way, whatever else it has locked: a broker that holds the one table and needs the
// other one continues, and is not ended for a deadlock.
func TestUpYieldsToARunningBroker(t *testing.T) {
	db := testkit.NewDB(t)
	for done := 5; done >= 5; done, _ = applied(t, db.AdminURL) { // migration 5 indexes issuances, then votes
		if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
			t.Fatal(err)
		}
	}
	conn := testkit.Connect(t, db.AdminURL)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE votes IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	waits, migrated := make(chan string, 100), make(chan error, 1)
	go func() { migrated <- migrations.Up(t.Context(), db.AdminURL, func(line string) { waits <- line }) }()
	holds(t, testkit.Connect(t, db.AdminURL), "issuances")
	if _, err := tx.Exec(t.Context(), `LOCK TABLE issuances IN ROW EXCLUSIVE MODE`); err != nil {
		t.Errorf("locking what the migration has locked: %v", err)
	}
	if line := <-waits; !strings.Contains(line, "trying again") {
		t.Errorf("got %q of a migration that cannot go on", line)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("Up: %v", err)
	}
	if done, all := applied(t, db.AdminURL); done != all {
		t.Errorf("got %d of %d applied", done, all)
	}
}

// holds blocks until a session holds the lock on a table that excludes all writers.
func holds(t *testing.T, conn *pgx.Conn, table string) {
	t.Helper()
	for held := false; !held; {
		if err := conn.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND mode = 'ShareLock' AND granted)`, table).Scan(&held); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUpAtOnce(t *testing.T) {
	same := testkit.EmptyDB(t)
	all := []*testkit.DB{same, same, same, testkit.EmptyDB(t), testkit.EmptyDB(t), testkit.EmptyDB(t)}
	var wg sync.WaitGroup
	for _, db := range all {
		wg.Go(func() {
			if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
				t.Errorf("Up: %v", err)
			}
		})
	}
	wg.Wait()
	var dumps [][]string
	for _, db := range all[2:] {
		lines := testkit.Schema(t, testkit.Connect(t, db.AdminURL))
		schema := schemaOf(t, db.AdminURL)
		for i := range lines {
			lines[i] = strings.ReplaceAll(lines[i], schema, "SCHEMA")
		}
		dumps = append(dumps, lines)
	}
	for _, other := range dumps[1:] {
		if diff := cmp.Diff(dumps[0], other); diff != "" {
			t.Errorf("two schemas differ:\n%s", diff)
		}
	}
}

// Each replica may migrate when it starts. Nobody creates goose's table beside another: if two did, one would see the other's sequence and
// choose another name.
func TestUpAtOnceOnAnEmptySchema(t *testing.T) {
	for range 20 {
		db := testkit.EmptyDB(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
					t.Errorf("Up: %v", err)
				}
				if i%4 > 0 {
					return
				}
				// A replica that has migrated may be the one that starts to serve.
				if done, all := applied(t, db.AdminURL); done != all {
					t.Errorf("got %d of %d applied", done, all)
				}
			})
			wg.Go(func() { applied(t, db.AdminURL) })
		}
		wg.Wait()
		var sequence string
		if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
			SELECT relname FROM pg_class WHERE oid = pg_get_serial_sequence('goose_db_version', 'id')::regclass`).Scan(&sequence); err != nil {
			t.Fatal(err)
		}
		if sequence != "goose_db_version_id_seq" {
			t.Errorf("got %s: two sessions created goose's table", sequence)
		}
	}
}

// Each Down takes back one migration, whatever else happens, and a schema that does not exist has none.
func TestDownAtOnce(t *testing.T) {
	db := testkit.EmptyDB(t)
	if err := migrations.Down(t.Context(), db.AdminURL); !errors.Is(err, migrations.ErrNothingApplied) {
		t.Errorf("Down without a schema: got %v, want ErrNothingApplied", err)
	}
	if done, _ := applied(t, db.AdminURL); done != 0 {
		t.Errorf("got %d applied without a schema", done)
	}
	if err := migrations.Up(t.Context(), db.AdminURL, nil); err != nil {
		t.Fatal(err)
	}
	_, all := applied(t, db.AdminURL)
	var wg sync.WaitGroup
	for range all {
		wg.Go(func() {
			if err := migrations.Down(t.Context(), db.AdminURL); err != nil {
				t.Errorf("Down: %v", err)
			}
			applied(t, db.AdminURL)
		})
	}
	wg.Wait()
	if done, _ := applied(t, db.AdminURL); done != 0 {
		t.Errorf("got %d applied after as many were taken back", done)
	}
}

func schemaOf(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("search_path")
}

func TestCheckVersion(t *testing.T) {
	for version, fit := range map[int]bool{
		13_00_22: false, 14_00_00: true, 15_00_00: false, 15_00_15: false, 15_00_16: true, 16_00_11: false, 16_00_12: true,
		17_00_07: false, 17_00_08: true, 18_00_00: false, 18_00_01: false, 18_00_02: true, 19_00_00: true,
	} {
		if err := migrations.CheckVersion(version); fit != (err == nil) || !fit && !errors.Is(err, migrations.ErrServer) {
			t.Errorf("%d: got %v, want that it is fit: %t", version, err, fit)
		}
	}
}

func TestUpChecksServer(t *testing.T) {
	db := testkit.NewDB(t)
	err := migrations.Up(t.Context(), db.AsVersion(t, db.AdminURL, 17_00_05), nil)
	const want = "in 17.5, MERGE can hide rows from triggers: update it to 17.8 or later"
	if !errors.Is(err, migrations.ErrServer) || !strings.Contains(err.Error(), want) {
		t.Errorf("migrating: got %v, want %q", err, want)
	}
}

func TestCheck(t *testing.T) {
	db := testkit.NewDB(t)
	pool, err := pgxpool.New(t.Context(), db.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Errorf("current: got %v", err)
	}
	admin := testkit.Connect(t, db.AdminURL)
	for _, tc := range []struct {
		name, sql string
		want      error
	}{
		{"newer", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`, nil},
		{"older", `DELETE FROM goose_db_version WHERE version_id > 1`, migrations.ErrOutdated},
		{"never migrated", `DROP TABLE goose_db_version`, migrations.ErrOutdated},
	} {
		if _, err := admin.Exec(t.Context(), tc.sql); err != nil {
			t.Fatal(err)
		}
		err := migrations.Check(t.Context(), pool)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
		if err != nil && !strings.Contains(err.Error(), "brevet migrate") {
			t.Errorf("%s: %q does not say what to do", tc.name, err)
		}
	}
}

func TestEnsureLogin(t *testing.T) {
	db := testkit.NewDB(t)
	user := schemaOf(t, db.AdminURL) + `_"login`
	admin := testkit.Connect(t, db.AdminURL)
	defer func() {
		if _, err := admin.Exec(t.Context(), `DROP ROLE `+pgx.Identifier{user}.Sanitize()); err != nil {
			t.Error(err)
		}
	}()
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{`first 'one' \ "`, "second"} {
		if err := migrations.EnsureLogin(t.Context(), db.AdminURL, user, migrations.AuditorRole, password); err != nil {
			t.Fatalf("EnsureLogin: %v", err)
		}
		u.User = url.UserPassword(user, password)
		conn := testkit.Connect(t, u.String())
		var stored string
		var super, auditor, broker bool
		if err := admin.QueryRow(t.Context(), `SELECT rolpassword FROM pg_authid WHERE rolname = $1`, user).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(stored, "SCRAM-SHA-256$4096:") {
			t.Errorf("got the stored password %q", stored)
		}
		if err := conn.QueryRow(t.Context(), `
			SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication,
				pg_has_role('brevet_auditor', 'MEMBER'), pg_has_role('brevet_broker', 'MEMBER')
			FROM pg_roles WHERE rolname = current_user`).Scan(&super, &auditor, &broker); err != nil {
			t.Fatal(err)
		}
		if super || !auditor || broker {
			t.Errorf("got powerful %t, auditor %t, broker %t, want an auditor and nothing else", super, auditor, broker)
		}
	}
	u.User = url.UserPassword(user, `first 'one' \ "`)
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the password that was replaced still opens the door")
	}
}

// Replicas that bootstrap at once set the same login, also from databases that share no lock.
func TestEnsureLoginAtOnce(t *testing.T) {
	databases := []*testkit.DB{testkit.NewDB(t), testkit.NewDB(t)}
	user := schemaOf(t, testkit.EmptyDB(t).AdminURL) + "_broker" // EmptyDB drops the role
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 10 {
				db := databases[i%len(databases)]
				if err := migrations.EnsureLogin(t.Context(), db.AdminURL, user, migrations.BrokerRole, "the same"); err != nil {
					t.Errorf("EnsureLogin: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestEnsureLoginRefuses(t *testing.T) {
	db := testkit.NewDB(t)
	for _, tc := range []struct {
		user, password string
		want           error
	}{
		{"postgres", "x", migrations.ErrPrivileged},
		{"nobody_yet", "", migrations.ErrPassword},
		{"nobody_yet", "pässword", migrations.ErrPassword},
		{"nobody_yet", "two\nlines", migrations.ErrPassword},
	} {
		if err := migrations.EnsureLogin(t.Context(), db.AdminURL, tc.user, migrations.BrokerRole, tc.password); !errors.Is(err, tc.want) {
			t.Errorf("%s with %q: got %v, want %v", tc.user, tc.password, err, tc.want)
		}
	}
}

func TestURLStaysOutOfErrors(t *testing.T) {
	ctx := t.Context()
	for _, databaseURL := range []string{"postgres://brevet:hunter2@[/", "postgres://brevet:hunter2@127.0.0.1:1/brevet", "hunter2 = ="} {
		_, statusErr := migrations.Status(ctx, databaseURL)
		for name, err := range map[string]error{
			"Up": migrations.Up(ctx, databaseURL, nil), "Down": migrations.Down(ctx, databaseURL), "Status": statusErr,
			"EnsureLogin": migrations.EnsureLogin(ctx, databaseURL, "u", "g", "hunter2"),
		} {
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
				t.Errorf("%s of %q: got %v", name, databaseURL, err)
			}
		}
	}
}

func TestParseURLHasADefaultSchema(t *testing.T) {
	for databaseURL, want := range map[string]string{
		"postgres://127.0.0.1/db":                   migrations.Schema,
		"postgres://127.0.0.1/db?search_path=other": "other",
	} {
		cfg, err := migrations.ParseURL(databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.ConnConfig.RuntimeParams["search_path"]; got != want {
			t.Errorf("%s: got the search_path %q, want %q", databaseURL, got, want)
		}
	}
}
