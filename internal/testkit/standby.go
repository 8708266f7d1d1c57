package testkit

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// Pair is a primary and its synchronous standby, which belong to one test. A commit waits until the standby has it on its disk.
type Pair struct {
	Primary, Standby *devstack.Postgres
	// DB is a migrated database. Its URLs name both servers, and connect to the one that takes writes.
	DB *DB
}

// NewPair starts both servers. They end with the test.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	stack, err := devstack.Start(t.Context(), devstack.Config{Dir: t.TempDir(), WithoutVault: true})
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := stack.Close(); err != nil {
			t.Errorf("ending PostgreSQL: %v", err)
		}
	})
	p := &Pair{Primary: stack.Postgres, DB: newDBOn(t, stack.Postgres)}
	if p.Standby, err = p.Primary.Standby(t.Context(), t.TempDir()); err != nil {
		t.Fatalf("starting a standby: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Standby.Stop(); err != nil {
			t.Errorf("ending the standby: %v", err)
		}
	})
	// The standby calls itself walreceiver, and the primary waits for it once it streams.
	run(t, p.Primary.TCPURL(), `ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (walreceiver)'`, `SELECT pg_reload_conf()`)
	conn := Connect(t, p.Primary.TCPURL())
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began, synchronous := time.Now(), false; !synchronous; <-tick.C {
		row := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
		if err := row.Scan(&synchronous); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the standby is not synchronous after a minute")
		}
	}
	for _, address := range []*string{&p.DB.AdminURL, &p.DB.BrokerURL, &p.DB.AuditorURL} {
		*address = p.toBoth(t, *address)
	}
	return p
}

// toBoth returns the URL with both servers as its hosts.
func (p *Pair) toBoth(t testing.TB, address string) string {
	t.Helper()
	u := mustParse(t, address)
	query := u.Query()
	query.Set("target_session_attrs", "read-write")
	query.Set("connect_timeout", strconv.Itoa(2)) // seconds
	u.Host, u.RawQuery = strings.Join([]string{p.Primary.Addr(), p.Standby.Addr()}, ","), query.Encode()
	return u.String()
}
