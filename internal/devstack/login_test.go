package devstack_test

import (
	"context"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/jackc/pgx/v5"
)

// login is a login of the database role reporting, as its holder can use it.
type login struct {
	name, lease string
	config      *pgx.ConnConfig
}

func newLogin(t *testing.T, stack *devstack.Stack) login {
	t.Helper()
	secret, err := client(t, stack.Vault).Logical().ReadWithContext(t.Context(), "database/creds/reporting")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(stack.Postgres.TargetURL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password = secret.Data["username"].(string), secret.Data["password"].(string)
	return login{cfg.User, secret.LeaseID, cfg}
}

func (l login) connect(t *testing.T, statements ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), l.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return conn
}

// No login can delay its own revocation or that of another login, or keep others from getting a login. Once Vault reports a
// login as revoked it is useless, whether or not its role could be dropped.
func TestDatabaseLoginCannotDelayRevocation(t *testing.T) {
	stack := shared(t)
	if err := stack.PrepareEngines(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		own, his  func(victim, other login) []string // statements of the login to be revoked, and of another one
		stays     bool
		elsewhere string
	}{
		{name: "nothing is held"},
		{name: "another grants it something", stays: true, his: func(victim, _ login) []string {
			return []string{"BEGIN", "CREATE TEMP TABLE x (i int)", `GRANT SELECT ON x TO "` + victim.name + `"`}
		}},
		{name: "another pretends to grant on the table", his: func(_, other login) []string {
			return []string{"BEGIN", `GRANT SELECT ON orders TO "` + other.name + `"`}
		}},
		{name: "another holds the group", his: func(login, login) []string {
			return []string{"BEGIN", "SET ROLE reporting_reader", "ALTER ROLE reporting_reader PASSWORD 'mine'", "DROP OWNED BY reporting_reader"}
		}},
		{name: "it holds its own row", own: func(victim, _ login) []string {
			return []string{"BEGIN", `ALTER ROLE "` + victim.name + `" PASSWORD 'mine'`}
		}},
		{name: "it owns something", own: func(login, login) []string { return []string{"SELECT lo_create(0)"} }},
		{
			name: "it owns something in another database", stays: true, elsewhere: "postgres",
			own: func(login, login) []string { return []string{"SELECT lo_create(0)"} },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			victim, other := newLogin(t, stack), newLogin(t, stack)
			reader := victim.connect(t)
			if tc.elsewhere != "" {
				victim.config.Database = tc.elsewhere
			}
			if tc.own != nil {
				victim.connect(t, tc.own(victim, other)...)
			}
			if tc.his != nil {
				other.connect(t, tc.his(victim, other)...)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			begin := time.Now()
			if _, err := client(t, stack.Vault).Logical().WriteWithContext(ctx, "sys/leases/revoke",
				map[string]any{"lease_id": victim.lease, "sync": true}); err != nil {
				t.Errorf("revoking: %v", err)
			}
			t.Logf("revoked in %v", time.Since(begin).Round(time.Millisecond))
			victim.isDead(t, stack, reader, tc.stays)
			newLogin(t, stack).connect(t, "SELECT FROM orders")
		})
	}
}

func (l login) isDead(t *testing.T, stack *devstack.Stack, reader *pgx.Conn, stays bool) {
	t.Helper()
	if _, err := reader.Exec(t.Context(), "SELECT FROM orders"); err == nil {
		t.Error("the session goes on after the login was revoked")
	}
	if again, err := pgx.ConnectConfig(t.Context(), l.config); err == nil {
		_ = again.Close(t.Context())
		t.Error("the login works after it was revoked")
	}
	admin, err := pgx.Connect(t.Context(), stack.Postgres.TargetURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	var roles, useful int
	if err := admin.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE rolcanlogin
		OR has_table_privilege(oid, 'orders', 'SELECT')) FROM pg_roles WHERE rolname = $1`, l.name).Scan(&roles, &useful); err != nil {
		t.Fatal(err)
	}
	if useful != 0 || (roles != 0) != stays {
		t.Errorf("got %d roles, %d of use; want a role to stay: %t", roles, useful, stays)
	}
}

// A login that reconnects as fast as it can, each time to lock its own row, is ended as well.
func TestReconnectingDatabaseLoginIsRevoked(t *testing.T) {
	stack := shared(t)
	if err := stack.PrepareEngines(t.Context()); err != nil {
		t.Fatal(err)
	}
	victim := newLogin(t, stack)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				conn, err := pgx.ConnectConfig(ctx, victim.config)
				if err != nil {
					continue
				}
				// The statement sets the password to its current value.
				_, _ = conn.Exec(ctx, `BEGIN; ALTER ROLE "`+victim.name+`" PASSWORD '`+victim.config.Password+`'; SELECT pg_sleep(30)`)
				_ = conn.Close(context.WithoutCancel(ctx))
			}
		}()
	}
	within(t, 20*time.Second, "a session holds the row", func() bool { return victim.sessions(t, stack) > 0 })
	write(t, stack.Vault, "sys/leases/revoke", map[string]any{"lease_id": victim.lease, "sync": true})
	if n := victim.sessions(t, stack); n != 0 {
		t.Errorf("got %d sessions after the login was revoked", n)
	}
	stop()
	for range 4 {
		<-done
	}
}

func (l login) sessions(t *testing.T, stack *devstack.Stack) int {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), stack.Postgres.TargetURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	var n int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename = $1`, l.name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
