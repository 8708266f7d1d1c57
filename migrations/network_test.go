package migrations_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/retention"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// write writes a file into a folder of the test.
func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func certificatePEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func keyPEM(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// authority returns an authority, and the file that sslrootcert names.
func authority(t *testing.T) (ca *x509.Certificate, key crypto.Signer, file string) {
	t.Helper()
	ca, key = testkit.SelfSigned(t)
	return ca, key, write(t, "ca.pem", certificatePEM(ca))
}

// judge is what ParseURL must say about a URL, with and without InsecureNetwork.
func judge(t *testing.T, databaseURL, exposed string) {
	t.Helper()
	_, err := migrations.ParseURL(databaseURL)
	hosts, hostsErr := migrations.InsecureHosts(databaseURL)
	if _, err := migrations.ParseURL(databaseURL, migrations.InsecureNetwork); err != nil || hostsErr != nil {
		t.Errorf("%s: got %v and %v with InsecureNetwork", databaseURL, err, hostsErr)
	}
	if exposed == "" {
		if err != nil || len(hosts) > 0 {
			t.Errorf("%s: got %v, want it accepted", databaseURL, err)
		}
		return
	}
	if !errors.Is(err, migrations.ErrNetwork) {
		t.Errorf("%s: got %v, want ErrNetwork", databaseURL, err)
		return
	}
	for _, part := range []string{fmt.Sprintf("%q", exposed), "sslmode=verify-full", "postgres.insecure_network", "--insecure-network"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want %s in it", databaseURL, err, part)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%s: the error shows the password: %v", databaseURL, err)
	}
	if !slices.Equal(hosts, []string{exposed}) {
		t.Errorf("%s: got the hosts %v, want %s", databaseURL, hosts, exposed)
	}
}

// T5: a URL must not allow a connection that somebody on the network can read or answer.
func TestURLOverAnUnprotectedNetworkIsRefused(t *testing.T) {
	_, _, ca := authority(t)
	for databaseURL, exposed := range map[string]string{
		"postgres://u:hunter2@db.example/brevet":                                                  "db.example",
		"postgres://u:hunter2@10.1.2.3/brevet":                                                    "10.1.2.3",
		"postgres://u:hunter2@[2001:db8::1]/brevet":                                               "2001:db8::1",
		"postgres://u:hunter2@0.0.0.0/brevet":                                                     "0.0.0.0",
		"postgres://u:hunter2@localhost.evil.example/brevet":                                      "localhost.evil.example",
		"host=db.example user=u password=hunter2":                                                 "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=disable":                                  "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=allow":                                    "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=prefer&sslrootcert=" + ca:                 "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=require":                                  "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=require&sslrootcert=" + ca:                "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=verify-ca&sslrootcert=" + ca:              "db.example",
		"postgres://u:hunter2@db.example/brevet?sslnegotiation=direct":                            "db.example",
		"postgres://u:hunter2@127.0.0.1,db.example/brevet":                                        "db.example",
		"postgres://u:hunter2@/brevet?host=/run/postgresql,db.example":                            "db.example",
		"postgres://u:hunter2@db.example/brevet?sslmode=verify-full":                              "",
		"postgres://u:hunter2@db.example/brevet?sslmode=verify-full&sslrootcert=" + ca:            "",
		"postgres://u:hunter2@db.example/brevet?sslmode=verify-full&sslsni=0&sslrootcert=" + ca:   "",
		"postgres://u:hunter2@10.1.2.3/brevet?sslmode=verify-full&sslrootcert=" + ca:              "",
		"postgres://u:hunter2@a.example,b.example/brevet?sslmode=verify-full&sslrootcert=" + ca:   "",
		"postgres://u:hunter2@db.example/brevet?sslrootcert=system":                               "",
		"postgres://u:hunter2@/brevet?host=/run/postgresql":                                       "",
		"postgres://u:hunter2@localhost/brevet":                                                   "",
		"postgres://u:hunter2@127.0.0.1,127.8.0.1,[::1]/brevet?sslmode=disable":                   "",
		"postgres://u:hunter2@127.0.0.1,db.example/brevet?sslmode=verify-full&sslrootcert=" + ca:  "",
		"postgres://u:hunter2@/brevet?host=/run/postgresql,db.example&sslmode=verify-full":        "",
		"postgres://u:hunter2@LocalHost/brevet?sslmode=require":                                   "",
		"host=/run/postgresql user=u password=hunter2 sslmode=disable":                            "",
		"postgres://u:hunter2@db.example/brevet?sslmode=verify-full&sslnegotiation=direct&port=1": "",
	} {
		judge(t, databaseURL, exposed)
	}
}

// A URL need not have everything: the environment and a service file count as well.
func TestEnvironmentAndServiceFileAreJudgedWithTheURL(t *testing.T) {
	t.Setenv("PGHOST", "db.example")
	judge(t, "postgres:///brevet?user=u", "db.example")
	judge(t, "postgres://127.0.0.1/brevet", "")
	t.Setenv("PGSSLMODE", "verify-full")
	judge(t, "postgres:///brevet?user=u", "")
	judge(t, "postgres:///brevet?user=u&sslmode=require", "db.example")
	t.Setenv("PGSSLMODE", "disable")
	judge(t, "postgres://other.example/brevet", "other.example")
	judge(t, "postgres://other.example/brevet?sslmode=verify-full", "")
	t.Setenv("PGSERVICEFILE", write(t, "services", []byte("[main]\nhost=service.example\nsslmode=prefer\n[safe]\nhost=service.example\nsslmode=verify-full\n")))
	judge(t, "postgres:///brevet?service=main", "service.example")
	judge(t, "postgres:///brevet?service=safe", "")
}

// count listens on loopback and counts connections.
func count(t *testing.T) (port string, connections *atomic.Int64) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, connections
}

// 0.0.0.0 is not a loopback address, but a connection to it arrives on this machine. So the test would see a connection.
func TestNothingConnectsOverAnUnprotectedNetwork(t *testing.T) {
	port, connections := count(t)
	u, good := "postgres://u:hunter2@0.0.0.0:"+port+"/brevet", testkit.NewDB(t).BrokerURL
	quiet := slog.New(slog.DiscardHandler)
	connect := map[string]func(ctx context.Context, options ...migrations.URLOption) error{
		"Up":   func(ctx context.Context, o ...migrations.URLOption) error { return migrations.Up(ctx, u, nil, o...) },
		"Down": func(ctx context.Context, o ...migrations.URLOption) error { return migrations.Down(ctx, u, o...) },
		"Status": func(ctx context.Context, o ...migrations.URLOption) error {
			_, err := migrations.Status(ctx, u, o...)
			return err
		},
		"EnsureLogin": func(ctx context.Context, o ...migrations.URLOption) error {
			return migrations.EnsureLogin(ctx, u, "x", migrations.BrokerRole, "x", o...)
		},
		"the ledger": func(ctx context.Context, o ...migrations.URLOption) error {
			_, err := ledger.Open(ctx, ledger.Config{URL: u, URLOptions: o, Log: quiet})
			return err
		},
		"the outbox": func(ctx context.Context, o ...migrations.URLOption) error {
			box, err := ledger.OpenOutbox(ctx, ledger.Config{URL: u, URLOptions: o, Log: quiet})
			if err == nil {
				defer box.Close()
				err = box.Subscribe(ctx, "x")
			}
			return err
		},
		"the history": func(ctx context.Context, o ...migrations.URLOption) error {
			_, err := ledger.OpenHistory(ctx, u, time.Now(), 1, o...)
			return err
		},
		"a snapshot": func(ctx context.Context, o ...migrations.URLOption) error {
			_, err := snapshot.Open(ctx, u, o...)
			return err
		},
		"the pruner": func(ctx context.Context, o ...migrations.URLOption) error {
			_, err := retention.Open(ctx, u, o...)
			return err
		},
	}
	for name, do := range connect {
		if err := do(t.Context()); !errors.Is(err, migrations.ErrNetwork) {
			t.Errorf("%s: got %v, want ErrNetwork", name, err)
		}
	}
	if _, err := ledger.Open(t.Context(), ledger.Config{URL: good, AuditURL: u, Log: quiet}); !errors.Is(err, migrations.ErrNetwork) {
		t.Errorf("the auditors' URL: got %v, want ErrNetwork", err)
	}
	if got := connections.Load(); got != 0 {
		t.Fatalf("got %d connections, want none", got)
	}
	for name, do := range connect {
		before := connections.Load()
		if err := do(t.Context(), migrations.InsecureNetwork); err == nil || errors.Is(err, migrations.ErrNetwork) {
			t.Errorf("%s with InsecureNetwork: got %v, want that the server hangs up", name, err)
		}
		if connections.Load() == before {
			t.Errorf("%s with InsecureNetwork does not connect", name)
		}
	}
}

func TestLocalhostIsThisMachineWhateverTheResolverSays(t *testing.T) {
	for name, tc := range map[string]struct {
		host, want string
		found      []string
	}{
		"elsewhere":        {"localhost", "", []string{"192.0.2.1"}},
		"both":             {"localhost", "127.0.0.1 ::1", []string{"192.0.2.1", "127.0.0.1", "::1"}},
		"in capitals":      {"LOCALHOST", "", []string{"192.0.2.1"}},
		"of another host":  {"db.example", "192.0.2.1", []string{"192.0.2.1"}},
		"with a port":      {"localhost", "", []string{"192.0.2.1:5432"}},
		"without a result": {"localhost", "", nil},
	} {
		cfg := pgconn.Config{LookupFunc: func(context.Context, string) ([]string, error) { return tc.found, nil }}
		migrations.KeepLocalhost(&cfg)
		got, err := cfg.LookupFunc(t.Context(), tc.host)
		if strings.Join(got, " ") != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: got %v, %v, want %q", name, got, err, tc.want)
		}
	}
}

// T5: no URL makes the client accept a server that need not prove that it knows the password.
func TestSCRAMIsRequired(t *testing.T) {
	t.Setenv("PGPASSFILE", "/nonexistent") // the developer's own has no say
	for databaseURL, want := range map[string]struct{ auth, binding string }{
		"postgres://u:hunter2@127.0.0.1/d?sslmode=disable":                                     {"scram-sha-256", "prefer"},
		"postgres://u:hunter2@/d?host=/run/postgresql":                                         {"scram-sha-256", "prefer"},
		"postgres://u@/d?host=/run/postgresql":                                                 {"scram-sha-256,none", "prefer"},
		"postgres://u:hunter2@db.example/d?sslmode=verify-full":                                {"scram-sha-256", "require"},
		"postgres://u:hunter2@db.example/d?sslmode=verify-full&channel_binding=prefer":         {"scram-sha-256", "require"},
		"postgres://u:hunter2@db.example/d?sslmode=verify-full&channel_binding=disable":        {"scram-sha-256", "disable"},
		"postgres://u:hunter2@db.example/d?sslmode=verify-full&require_auth=none":              {"none", "prefer"},
		"postgres://u@db.example/d?sslmode=verify-full":                                        {"scram-sha-256,none", "prefer"},
		"postgres://u:hunter2@/d?host=/run/postgresql,db.example&sslmode=verify-full":          {"scram-sha-256", "prefer"},
		"postgres://u:hunter2@localhost/d?require_auth=scram-sha-256":                          {"scram-sha-256", "prefer"},
		"postgres://u:hunter2@localhost/d?require_auth=password":                               {},
		"postgres://u:hunter2@localhost/d?require_auth=scram-sha-256,md5":                      {},
		"postgres://u:hunter2@localhost/d?require_auth=!md5":                                   {},
		"postgres://u:hunter2@db.example/d?sslmode=verify-full&require_auth=scram-sha-256,gss": {},
	} {
		cfg, err := migrations.ParseURL(databaseURL)
		if want.auth == "" {
			if !errors.Is(err, migrations.ErrPasswordMethod) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: got %v, want ErrPasswordMethod", databaseURL, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", databaseURL, err)
			continue
		}
		if got := cfg.ConnConfig; got.RequireAuth != want.auth || got.ChannelBinding != want.binding {
			t.Errorf("%s: got %s and channel binding %s, want %+v", databaseURL, got.RequireAuth, got.ChannelBinding, want)
		}
	}
	t.Setenv("PGREQUIREAUTH", "md5")
	if _, err := migrations.ParseURL("postgres://u:hunter2@localhost/d"); !errors.Is(err, migrations.ErrPasswordMethod) {
		t.Errorf("PGREQUIREAUTH=md5: got %v, want ErrPasswordMethod", err)
	}
}

// T5: a server that asks for the password in clear or as MD5 does not get it.
func TestServerThatAsksForThePasswordDoesNotGetIt(t *testing.T) {
	for name, question := range map[string]pgproto3.BackendMessage{
		"in clear": &pgproto3.AuthenticationCleartextPassword{},
		"as MD5":   &pgproto3.AuthenticationMD5Password{Salt: [4]byte{1, 2, 3, 4}},
		"not":      &pgproto3.AuthenticationOk{},
	} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		answer := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				answer <- err
				return
			}
			defer func() { _ = conn.Close() }()
			if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				answer <- err
				return
			}
			back := pgproto3.NewBackend(conn, conn)
			if _, err := back.ReceiveStartupMessage(); err != nil {
				answer <- err
				return
			}
			back.Send(question)
			if err := back.Flush(); err != nil {
				answer <- err
				return
			}
			_, err = back.Receive()
			answer <- err
		}()
		cfg, err := migrations.ParseURL("postgres://u:hunter2@" + l.Addr().String() + "/d?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig); migrations.Refusal(err) == "" {
			t.Errorf("%s: got %v, want that the client refuses", name, err)
		}
		if err := <-answer; err == nil {
			t.Errorf("%s: the client answered", name)
		}
	}
}

// server is the PostgreSQL of this process, changed for one test: it serves TLS, and asks some users for their passwords in other
// ways than SCRAM.
type server struct {
	conn       *pgx.Conn
	port, name string
	ca         string // the file for sslrootcert
}

// put writes a file into the data folder as the server's own user.
func (s server) put(t *testing.T, name, content string) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), `CREATE TEMP TABLE IF NOT EXISTS file_lines (n serial, line text)`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Exec(t.Context(), `TRUNCATE file_lines`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Exec(t.Context(),
		`INSERT INTO file_lines (line) SELECT line FROM regexp_split_to_table($1, E'\n') WITH ORDINALITY AS t (line, n) ORDER BY n`, content); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.Exec(t.Context(), fmt.Sprintf(
		`COPY (SELECT line FROM file_lines ORDER BY n) TO PROGRAM 'umask 077 && cat > %s'`, name)); err != nil {
		t.Fatal(err)
	}
}

// url returns the URL of a user. Its name is looked up as 127.0.0.1 by login.
func (s server) url(user, host, query string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(s.name+"_"+user, "hunter2"), Host: net.JoinHostPort(host, s.port), Path: "/postgres", RawQuery: query,
	}
	return u.String()
}

func login(t *testing.T, databaseURL string, options ...migrations.URLOption) (*pgx.Conn, error) {
	t.Helper()
	cfg, err := migrations.ParseURL(databaseURL, options...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	}
	return conn, err
}

func newServer(t *testing.T) server {
	t.Helper()
	pg := testkit.Devstack(t).Postgres
	_, port, _ := net.SplitHostPort(pg.Addr())
	s := server{testkit.Connect(t, pg.TCPURL()), port, "t_" + strings.ToLower(rand.Text()[:8]), ""}
	exec := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := s.conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	var access string
	if err := s.conn.QueryRow(t.Context(), `SELECT pg_read_file('pg_hba.conf')`).Scan(&access); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for user, line := range map[string]string{
		"tls": "hostssl all %s 127.0.0.1/32 scram-sha-256", "md5": "host all %s 127.0.0.1/32 md5",
		"clear": "host all %s 127.0.0.1/32 password", "trust": "host all %s 127.0.0.1/32 trust",
	} {
		encryption := "scram-sha-256"
		if user == "md5" {
			encryption = "md5"
		}
		exec("SET password_encryption = '"+encryption+"'", "CREATE ROLE "+s.name+"_"+user+" LOGIN PASSWORD 'hunter2'")
		lines.WriteString(fmt.Sprintf(line, s.name+"_"+user) + "\n")
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, sql := range []string{
			"ALTER SYSTEM RESET ssl", "ALTER SYSTEM RESET ssl_cert_file", "ALTER SYSTEM RESET ssl_key_file", "SELECT pg_reload_conf()",
			fmt.Sprintf("DROP ROLE %[1]s_tls, %[1]s_md5, %[1]s_clear, %[1]s_trust", s.name),
		} {
			if _, err := s.conn.Exec(ctx, sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	})
	s.put(t, "pg_hba.conf", lines.String()+access)
	ca, caKey, file := authority(t)
	cert, key := testkit.Certificate(t, &x509.Certificate{
		DNSNames: []string{"db.example"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	s.ca = file
	s.put(t, "test-tls.pem", string(certificatePEM(cert)))
	s.put(t, "test-tls.key", string(keyPEM(t, key)))
	exec("SELECT pg_reload_conf()")
	return s
}

// serveTLS switches TLS on, and waits until the server has read its settings again.
func (s server) serveTLS(t *testing.T) {
	t.Helper()
	for _, sql := range []string{
		"ALTER SYSTEM SET ssl_cert_file = 'test-tls.pem'", "ALTER SYSTEM SET ssl_key_file = 'test-tls.key'", "ALTER SYSTEM SET ssl = 'on'",
		"SELECT pg_reload_conf()",
	} {
		if _, err := s.conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := login(t, s.url("tls", "db.example", "sslmode=verify-full&sslrootcert="+s.ca))
		if err == nil {
			_ = conn.Close(t.Context())
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not serve TLS: %v", err)
		}
	}
}

// T5: the client refuses a server without TLS, with another name, and with the certificate of another authority.
func TestServerProvesWhoItIs(t *testing.T) {
	s := newServer(t)
	verified := "sslmode=verify-full&sslrootcert=" + s.ca
	if _, err := login(t, s.url("tls", "db.example", verified)); !strings.Contains(migrations.Refusal(err), "has no TLS") {
		t.Errorf("a server without TLS: got %v, %q", err, migrations.Refusal(err))
	}
	s.serveTLS(t)
	conn, err := login(t, s.url("tls", "db.example", verified))
	if err != nil {
		t.Fatalf("the right name: %v", err)
	}
	var encrypted bool
	if err := conn.QueryRow(t.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted); err != nil || !encrypted {
		t.Errorf("the right name: got TLS %t, %v", encrypted, err)
	}
	if got := conn.Config().ChannelBinding; got != "require" {
		t.Errorf("the right name: got channel binding %s, want require", got)
	}
	_, err = login(t, s.url("tls", "other.example", verified))
	if wrong, ok := errors.AsType[x509.HostnameError](err); !ok || wrong.Host != "other.example" {
		t.Errorf("the wrong name: got %v, want a HostnameError", err)
	}
	_, _, another := authority(t)
	_, err = login(t, s.url("tls", "db.example", "sslmode=verify-full&sslrootcert="+another))
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("another authority: got %v, want a CertificateVerificationError", err)
	}
	for _, mode := range []string{"require", "prefer"} {
		if _, err := migrations.ParseURL(s.url("tls", "db.example", "sslmode="+mode)); !errors.Is(err, migrations.ErrNetwork) {
			t.Errorf("%s: got %v, want ErrNetwork", mode, err)
		}
		if _, err := login(t, s.url("tls", "db.example", "sslmode="+mode), migrations.InsecureNetwork); err != nil {
			t.Errorf("%s with InsecureNetwork: %v", mode, err)
		}
	}
}

// The password is right in each case, and the server would accept it.
func TestServerThatDoesNotUseSCRAMIsRefused(t *testing.T) {
	s := newServer(t)
	s.serveTLS(t)
	for _, user := range []string{"md5", "clear", "trust"} {
		for host, query := range map[string]string{"127.0.0.1": "sslmode=disable", "db.example": "sslmode=verify-full&sslrootcert=" + s.ca} {
			if _, err := login(t, s.url(user, host, query)); !strings.Contains(migrations.Refusal(err), "scram-sha-256 in pg_hba.conf") &&
				!strings.Contains(migrations.Refusal(err), "cannot bind SCRAM") {
				t.Errorf("%s at %s: got %v, %q", user, host, err, migrations.Refusal(err))
			}
		}
		plain, err := pgx.Connect(t.Context(), s.url(user, "127.0.0.1", "sslmode=disable"))
		if err != nil {
			t.Fatalf("%s: the server refuses the password: %v", user, err)
		}
		_ = plain.Close(t.Context())
	}
	if err := migrations.Up(t.Context(), s.url("md5", "127.0.0.1", "sslmode=disable"), nil); err == nil || !strings.Contains(err.Error(), "Set scram-sha-256 in pg_hba.conf") {
		t.Errorf("Up: got %v, want what to do", err)
	}
	_, err := ledger.Open(t.Context(), ledger.Config{URL: s.url("clear", "127.0.0.1", "sslmode=disable"), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "Set scram-sha-256 in pg_hba.conf") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the ledger: got %v, want what to do", err)
	}
	trusted := strings.Replace(s.url("trust", "127.0.0.1", "sslmode=disable"), ":hunter2", "", 1)
	if _, err := login(t, trusted); err != nil {
		t.Errorf("a login without a password: %v", err)
	}
}
