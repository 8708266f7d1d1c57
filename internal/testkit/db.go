// Package testkit is the test harness: real servers, a separate database for each test, a wired broker, and a checker of
// the ledger's guarantees.
//
// It must never skip a test whose servers are missing, and never leave a server running.
package testkit

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shared is the dev stack of this test process. It starts with the first test that needs it.
var shared struct {
	sync.Once
	stack *devstack.Stack
	dir   string
	err   error
}

// Devstack returns the PostgreSQL and Vault of this test process. They end in Main.
func Devstack(t testing.TB) *devstack.Stack {
	t.Helper()
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp(memory(), "brevet-test-"); shared.err != nil {
			return
		}
		shared.stack, shared.err = devstack.Start(context.Background(), devstack.Config{
			Dir: shared.dir, VaultAudit: true, CloudEngines: true, Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
		})
	})
	if shared.err != nil {
		t.Fatalf("starting PostgreSQL and Vault: %v", shared.err)
	}
	return shared.stack
}

// memory returns a folder in memory for the servers' files, which makes fsync cheap without turning it off. It returns "",
// the default folder for temporary files, if there is none with room for several packages that run in parallel.
func memory() string {
	const dir, room = "/dev/shm", 8 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}

// Main runs the tests of a package and then stops the servers. Call it from TestMain.
func Main(m *testing.M) int {
	// Tests wait for servers more than they compute, so at least four run in parallel, even on a single processor. The
	// command line is parsed later and takes precedence.
	if !flag.Parsed() {
		if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
			fmt.Fprintln(os.Stderr, "setting -parallel:", err)
			return 1
		}
	}
	code := m.Run()
	if shared.stack != nil {
		if err := shared.stack.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "ending the servers:", err)
			code = 1
		}
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// DB is a migrated database that belongs to one test.
type DB struct {
	// AdminURL has all rights, BrokerURL has the broker's, AuditorURL an auditor's.
	AdminURL, BrokerURL, AuditorURL string
	// entries is the pool that Entries reads with, unless nil. A test may read often, and a login takes longer than a read.
	entries *pgxpool.Pool
}

// template is a migrated database without rows. Copying it takes a tenth of the time that the migrations take.
var template struct {
	sync.Once
	err error
}

const templateName = "template_brevet"

// NewDB creates a migrated database and drops it when the test ends.
func NewDB(t testing.TB) *DB {
	t.Helper()
	template.Do(func() { template.err = makeTemplate(context.Background(), Devstack(t).Postgres.TCPURL()) })
	if template.err != nil {
		t.Fatalf("migrating: %v", template.err)
	}
	name := newName()
	db := &DB{AdminURL: at(t, name, migrations.Schema)}
	server := Devstack(t).Postgres.TCPURL()
	t.Cleanup(func() {
		run(t, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)", "DROP ROLE IF EXISTS "+name+"_broker, "+name+"_auditor")
	})
	run(t, server, "CREATE DATABASE "+name+" TEMPLATE "+templateName)
	db.BrokerURL = db.login(t, name+"_broker", migrations.BrokerRole)
	db.AuditorURL = db.login(t, name+"_auditor", migrations.AuditorRole)
	db.entries = newPool(t, db.AdminURL)
	return db
}

// newDBOn creates a migrated database on a server that ends with the test.
func newDBOn(t testing.TB, server *devstack.Postgres) *DB {
	t.Helper()
	name := newName()
	run(t, server.TCPURL(), "CREATE DATABASE "+name)
	u := mustParse(t, server.TCPURL())
	u.Path = "/" + name
	if err := migrations.Up(t.Context(), u.String(), nil); err != nil {
		t.Fatalf("migrating: %v", err)
	}
	query := u.Query()
	query.Set("search_path", migrations.Schema)
	u.RawQuery = query.Encode()
	db := &DB{AdminURL: u.String()}
	db.BrokerURL = db.login(t, name+"_broker", migrations.BrokerRole)
	db.AuditorURL = db.login(t, name+"_auditor", migrations.AuditorRole)
	return db
}

// newPool creates a pool of one connection, which is opened at the first use. It closes with the test.
func newPool(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // a test may change the schema under a prepared statement
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func makeTemplate(ctx context.Context, server string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+templateName); err != nil {
		return err
	}
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	u.Path = "/" + templateName
	return migrations.Up(ctx, u.String(), nil)
}

// SmallPartitions gives a schema with an empty ledger the given number of partitions, with 256 entries each.
func (db *DB) SmallPartitions(t testing.TB, many int) {
	t.Helper()
	conn := Connect(t, db.AdminURL)
	for _, sql := range []string{
		`ALTER TABLE entries DETACH PARTITION entries_0`, `DROP TABLE entries_0`,
		fmt.Sprintf(`SELECT add_partition(256) FROM generate_series(1, %d)`, many),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// AsVersion returns a URL of the database over which the server reports another version (server_version_num). A schema
// that precedes pg_catalog in the search path overrides current_setting.
func (db *DB) AsVersion(t testing.TB, databaseURL string, version int) string {
	t.Helper()
	run(t, db.AdminURL, "CREATE SCHEMA disguise", "GRANT USAGE ON SCHEMA disguise TO PUBLIC", fmt.Sprintf(`
		CREATE FUNCTION disguise.current_setting(name text) RETURNS text STABLE LANGUAGE sql AS $$
			SELECT CASE name WHEN 'server_version_num' THEN '%d' ELSE pg_catalog.current_setting(name) END
		$$`, version))
	u := mustParse(t, databaseURL)
	query := u.Query()
	query.Set("search_path", query.Get("search_path")+",disguise,pg_catalog")
	u.RawQuery = query.Encode()
	return u.String()
}

// EmptyDB names a schema that does not exist yet, and drops it when the test ends.
func EmptyDB(t testing.TB) *DB {
	t.Helper()
	server, schema := mustParse(t, Devstack(t).Postgres.TCPURL()), newName()
	db := &DB{AdminURL: at(t, strings.TrimPrefix(server.Path, "/"), schema)}
	t.Cleanup(func() {
		run(t, server.String(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE", "DROP ROLE IF EXISTS "+schema+"_broker, "+schema+"_auditor")
	})
	return db
}

func newName() string { return "t_" + strings.ToLower(rand.Text()[:12]) }

// at returns an admin's URL of a schema in a database.
func at(t testing.TB, database, schema string) string {
	t.Helper()
	u := mustParse(t, Devstack(t).Postgres.TCPURL())
	query := u.Query()
	query.Set("search_path", schema)
	u.Path, u.RawQuery = "/"+database, query.Encode()
	return u.String()
}

func (db *DB) login(t testing.TB, user, group string) string {
	t.Helper()
	password := rand.Text()
	if err := migrations.EnsureLogin(t.Context(), db.AdminURL, user, group, password); err != nil {
		t.Fatalf("making the user %s: %v", user, err)
	}
	u := mustParse(t, db.AdminURL)
	u.User = url.UserPassword(user, password)
	return u.String()
}

// run executes statements. It also works after the test has ended.
func run(t testing.TB, databaseURL string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Errorf("connecting: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// Ledger opens a ledger on the database as the broker. It closes with the test.
func (db *DB) Ledger(t testing.TB) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: db.BrokerURL, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		FlushTimeout: 30 * time.Second, // for slow machines
	})
	if err != nil {
		t.Fatalf("opening the ledger: %v", err)
	}
	t.Cleanup(l.Close)
	return l
}

// Connect opens a connection that closes with the test.
func Connect(t testing.TB, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

func mustParse(t testing.TB, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Folder returns the folder where the servers of this test process keep their files and logs.
func Folder(t testing.TB) string {
	t.Helper()
	Devstack(t)
	return shared.dir
}
