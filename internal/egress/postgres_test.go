package egress_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// database gives the sandbox access to PostgreSQL through the gateway, and returns the directory of its socket.
func (w *world) database(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l := listen(t, "unix", filepath.Join(dir, ".s.PGSQL.5432"))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.gateway.ServePostgres(ctx, l, w.sandbox) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serving PostgreSQL: %v", err)
		}
	})
	return dir
}

func connect(t *testing.T, config string) (*pgx.Conn, error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), config)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	}
	return conn, err
}

// A sandbox uses a database as usual, without a password.
func TestDatabases(t *testing.T) {
	w := newWorld(t)
	dir := w.database(t)
	psql := exec.CommandContext(t.Context(), "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", dir, "-d", "target", "-U", "anybody")
	psql.Stdin = strings.NewReader(`SELECT session_user LIKE 'v-%', count(*) > 0 FROM orders;
PREPARE one AS SELECT $1::int + 1; EXECUTE one(41);
CREATE TEMP TABLE t (a int); COPY t FROM stdin;
1
2
\.
COPY t TO stdout;
\c
SELECT 'again';`)
	if out, err := psql.CombinedOutput(); err != nil || string(out) != "t|t\n42\n1\n2\nagain\n" {
		t.Errorf("psql: got %q, %v", out, err)
	}
	conn, err := connect(t, "host="+dir+" dbname=target user=host.login.use application_name=agent")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var sum int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('application_name'), $1::int + 1", 1).Scan(&name, &sum); err != nil || name != "agent" || sum != 2 {
		t.Errorf("pgx: got %q %d, %v", name, sum, err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TEMP TABLE t (a int)"); err != nil {
		t.Fatal(err)
	}
	rows := pgx.CopyFromSlice(100_000, func(i int) ([]any, error) { return []any{i}, nil })
	if n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"t"}, []string{"a"}, rows); err != nil || n != 100_000 {
		t.Errorf("pgx: copied %d, %v", n, err)
	}
	// A cancelled query ends, and the session continues.
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)")
		ended <- err
	}()
	late := time.After(patience)
	for cancelled := false; !cancelled; {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-ended:
			cancelled = true
		case <-time.After(100 * time.Millisecond): // the query may not have started when it was cancelled
		case <-late:
			t.Fatalf("waited %s for the end of a query that is cancelled", patience)
		}
	}
	if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "57014" {
		t.Errorf("got %v, want it cancelled", err)
	}
	if n := w.issued(t, "host.login.use"); n != 1 {
		t.Errorf("got %d logins, want one for all", n)
	}
	w.wantLog(t, `msg="egress session"`, "scope=host.login.use", "database=target", "issuance=")
}

// T12: a cancel counts as the connection to the database that it is. One too many is dropped, and the query goes on.
func TestCancelsArePaced(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.perSecond, w.now = 1, func() time.Time { return now } // so that exactly 2 connections pass
	w.open(t)
	conn, err := connect(t, "host="+w.database(t)+" dbname=target user=a")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil { // the second connection
		t.Fatal(err)
	}
	_ = conn.Ping(t.Context()) // the cancel may meet it
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(2)")
		ended <- err
	}()
	for sent := 0; ; sent++ {
		select {
		case err := <-ended:
			if err != nil || sent < 10 {
				t.Errorf("got %v after %d cancels, want the query to end by itself", err, sent)
			}
			return
		default:
			if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// When the task ends, its sessions are closed within a second, and no new one opens.
func TestDatabaseSessionsCloseWhenTheTaskEnds(t *testing.T) {
	w := newWorld(t)
	config := "host=" + w.database(t) + " dbname=target user=a"
	conn, err := connect(t, config)
	if err != nil {
		t.Fatal(err)
	}
	w.endTask(t)
	stop := w.stopwatch(t)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)")
		ended <- err
	}()
	// New connections at that moment learn the reason, whether the gateway or the database learns of the end first.
	refused := make(chan error, 10)
	for range cap(refused) {
		go func() {
			_, err := connect(t, config)
			refused <- err
		}()
	}
	for range cap(refused) {
		err := <-refused
		if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "28000" {
			t.Errorf("got %v, want no session", err)
		}
	}
	within(t, "the end of the open session", ended)
	stop("the end of the session, and refusals")
}

// The gateway does not read SQL. So a session can give its role another password, and whoever knows it logs in without the gateway,
// as docs/egress.md and SECURITY.md say. The end of the task ends that too: its sessions and the role.
func TestChangedDatabasePasswordEndsWithTheTask(t *testing.T) {
	w := newWorld(t)
	conn, err := connect(t, "host="+w.database(t)+" dbname=target user=a")
	if err != nil {
		t.Fatal(err)
	}
	var role string
	if err := conn.QueryRow(t.Context(), "SELECT session_user").Scan(&role); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "ALTER ROLE CURRENT_USER PASSWORD 'mine'"); err != nil {
		t.Fatalf("got %v: if a session cannot change its password, the documents say too little for the gateway", err)
	}
	host, port, _ := net.SplitHostPort(w.server(t))
	direct := "host=" + host + " port=" + port + " dbname=target sslmode=disable password=mine user=" + role
	around, err := connect(t, direct)
	if err != nil {
		t.Fatalf("got %v, want a login without the gateway", err)
	}
	w.endTask(t)
	for what, next := range map[string]func() error{
		"the session": func() error { return around.Ping(t.Context()) },
		"the login":   func() error { _, err := connect(t, direct); return err },
	} {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); next() == nil; <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("waited %s for the end of %s without the gateway", patience, what)
			}
		}
	}
}

// A session without a rule is refused with an error of the protocol. Other data ends the connection.
func TestDatabaseSessionWithoutARuleIsRefused(t *testing.T) {
	w := newWorld(t)
	dir := w.database(t)
	for config, want := range map[string]string{
		"dbname=postgres user=a":                       "No egress rule allows this call",
		"dbname=target user=a replication=database":    "No egress rule allows this call",
		"dbname=elsewhere user=a":                      "Address not allowed",
		"dbname=target user=a options='-c nonsense=1'": "unrecognized configuration parameter",
		"dbname=gone user=a":                           `database "gone" does not exist`,
		// The gateway requires TLS and a certificate for the host's name.
		"dbname=secured user=a":  `database "secured" does not exist`,
		"dbname=insecure user=a": "No response from the host",
	} {
		_, err := connect(t, "host="+dir+" "+config)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "password") {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}
	_, err := connect(t, "host="+dir+" dbname=insecure user=a")
	if e := new(pgconn.PgError); !errors.As(err, &e) || !strings.HasPrefix(e.Detail, "the host's certificate is for another host name") {
		t.Errorf("got %v, want the kind of error in the detail", err)
	}
	if n := w.front.secured.Load(); n != 1 {
		t.Errorf("got %d logins over TLS, want 1", n)
	}
	for name, packet := range map[string][]byte{
		"no protocol":             []byte("GET / HTTP/1.1\r\n\r\n"),
		"no end of encryption":    repeated(packetOf(80877103), 5),
		"a cancel of nothing":     packetOf(80877102, 1, 2),
		"a size that is too much": {0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0},
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(dir, ".s.PGSQL.5432"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(packet)
		_ = conn.SetDeadline(time.Now().Add(patience))
		if answer, err := io.ReadAll(conn); strings.Trim(string(answer), "N") != "" || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %q, %v, want the end", name, answer, err)
		}
		_ = conn.Close()
	}
}

// front is a PostgreSQL that accepts TLS connections only, with the host's certificate.
type front struct {
	net.Listener
	secured atomic.Int32
}

func newFront(t testing.TB, certificates []tls.Certificate) *front {
	t.Helper()
	f := &front{Listener: listen(t, "tcp", "127.0.0.1:0")}
	database := testkit.Devstack(t).Postgres.Addr()
	var all sync.WaitGroup
	t.Cleanup(func() { _ = f.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := f.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.pass(t, conn, database, certificates) })
		}
	})
	return f
}

func (f *front) pass(t testing.TB, conn net.Conn, database string, certificates []tls.Certificate) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	asked := make([]byte, 8)
	if _, err := io.ReadFull(conn, asked); err != nil || binary.BigEndian.Uint32(asked[4:]) != 80877103 {
		return
	}
	_, _ = conn.Write([]byte("S"))
	secured := tls.Server(conn, &tls.Config{Certificates: certificates, MinVersion: tls.VersionTLS12})
	if secured.HandshakeContext(t.Context()) != nil {
		return
	}
	f.secured.Add(1)
	out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", database)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	go func() { _, _ = io.Copy(out, secured) }()
	_, _ = io.Copy(secured, out)
}

// packetOf returns a startup packet: the body with its length before it.
func packetOf(words ...uint32) []byte {
	packet := binary.BigEndian.AppendUint32(nil, uint32(4+4*len(words)))
	for _, word := range words {
		packet = binary.BigEndian.AppendUint32(packet, word)
	}
	return packet
}

func repeated(packet []byte, n int) []byte {
	var all []byte
	for range n {
		all = append(all, packet...)
	}
	return all
}
