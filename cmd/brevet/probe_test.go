package main

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/probe"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var probed = []string{"probe", "--scope", "github.issues.read", "--param", "repo=acme/api"}

// TestProbe checks that a sound deployment passes all checks, and that its record identifies the pass.
func TestProbe(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	pages := consoleOf(t, s)
	began := time.Now()
	got := brevet(t, s.env, append(probed, "--console", pages)...)
	got.want(t, 0, "✓  a call without authentication gets 401", "✓  the console answers a form of another site with 403", " passed, 0 failed, 0 inconclusive")
	if took := time.Since(began); took > 10*10*time.Second { // includes the start of the program
		t.Errorf("it took %s", took)
	}
	got = brevet(t, s.env, append(probed, "-o", "json")...)
	got.want(t, 0)
	report := readReport(t, got.out)
	if report.Result != probe.Held || len(report.Checks) != 23 || strings.Contains(got.out, "eyJ") {
		t.Errorf("got %s", got.out)
	}
	marks := objects(t, brevet(t, s.as("auditor"), "audit", "list", "--task", probe.Task, "-o", "json").out)
	for _, mark := range marks {
		if mark["reason"] != probe.Reason {
			t.Errorf("got the record %v, want the reason %q", mark, probe.Reason)
		}
	}
	if len(marks) != 6 { // two issued and one denied, in two passes
		t.Errorf("got %d records", len(marks))
	}
	alive := brevet(t, s.as("auditor"), "audit", "list", "--task", probe.Task, "--status", "issued", "-o", "json")
	if alive.code != 0 || alive.out != "" {
		t.Errorf("left alive: %+v", alive)
	}
	brevet(t, s.env, "probe", "--scope", "github.repo.delete", "--param", "repo=acme/api").want(t, 1,
		"✗  the prober's own SVID gets the scope", "403 Denied by policy", "Run brevet request to see why", "? ")
	brevet(t, s.env, "probe", "--scope", "github.issues.write", "--param", "repo=acme/api").want(t, 1, "the scope requires approval")
	brevet(t, s.env, "probe", "--scope", "reports.orders.read").want(t, 1, "the credential is not a JWT")
	s.stop(t, syscall.SIGTERM)
	brevet(t, s.env, probed...).want(t, exitUntold, "the checks could not run", "start the SPIFFE agent")
}

func consoleOf(t *testing.T, s *session) string {
	t.Helper()
	cfg, err := app.Load(s.dir + "/brevet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Console.URL
}

func readReport(t *testing.T, text string) probe.Report {
	t.Helper()
	var report probe.Report
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return report
}

// TestProbeFindsEachVulnerability probes a server with every hole that there is a check for. Each check finds its own.
func TestProbeFindsEachVulnerability(t *testing.T) {
	t.Parallel()
	f := newFake(t, &tls.Config{MinVersion: tls.VersionTLS10, ClientAuth: tls.RequestClientCert}, openToAll(`{"active":true}`, http.StatusOK))
	got := f.probe(t, "--foreign-issuance", "one", "--console", strings.Replace(f.url, "https://127.0.0.1", "http://localhost", 1))
	f.sees(t, got, 1, func(name string) probe.Outcome {
		if name == "issues" || name == "active" || name == "released" {
			return probe.Held
		}
		return probe.Broken
	})
}

// TestProbeDistinguishesTLSAlerts checks that a server that requires a certificate over a TLS version accepts that
// version. An alert about something else does not show that a version is refused.
func TestProbeDistinguishesTLSAlerts(t *testing.T) {
	t.Parallel()
	cfg := &tls.Config{MinVersion: tls.VersionTLS10, ClientAuth: tls.RequestClientCert}
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		switch slices.Max(hello.SupportedVersions) {
		case tls.VersionTLS11:
			return nil, errors.New("no") // sends an alert that is not about the version
		case tls.VersionTLS12:
			wants := cfg.Clone()
			wants.GetConfigForClient, wants.ClientAuth = nil, tls.RequireAnyClientCert
			return wants, nil
		}
		return nil, nil //nolint:nilnil // as it is
	}
	f := newFake(t, cfg, openToAll(`{"active":true}`, http.StatusOK))
	for _, check := range readReport(t, f.probe(t).out).Checks {
		want := map[string]probe.Outcome{"tls_1_1": probe.Untold, "tls_1_2": probe.Broken}[check.Name]
		if want != "" && check.Result != want {
			t.Errorf("%s: got %s (%s), want %s", check.Name, check.Result, check.Saw, want)
		}
		if check.Name == "foreign_issuance" {
			t.Errorf("got %s, and no issuance was named", check.Result)
		}
	}
}

// TestProbeReportsRequiredCallsThatFail checks that the probe reports calls that fail although they must work.
func TestProbeReportsRequiredCallsThatFail(t *testing.T) {
	t.Parallel()
	f := newFake(t, &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert}, openToAll(`{"active":false}`, http.StatusForbidden))
	got := f.probe(t)
	f.sees(t, got, 1, func(name string) probe.Outcome {
		switch name {
		case "issues", "prolonged", "dead", "expired", "tls_1_1", "tls_1_2":
			return probe.Held
		}
		return probe.Broken // including "active" and "released"
	})
}

// TestProbeOfAFailingServerIsInconclusive checks that a failing server is reported as inconclusive, and not as open.
func TestProbeOfAFailingServerIsInconclusive(t *testing.T) {
	t.Parallel()
	f := newFake(t, &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	f.closed = true
	got := f.probe(t)
	f.sees(t, got, exitUntold, func(name string) probe.Outcome {
		switch name {
		case "plain_http", "tls_1_1", "tls_1_2":
			return probe.Held
		}
		return probe.Untold
	})
	f.stop()
	got = f.probe(t)
	if report := readReport(t, got.out); got.code != exitUntold || report.Result != probe.Untold || report.Error == "" || len(report.Checks) != 0 {
		t.Errorf("got %+v", got)
	}
	f.env = append(f.env, "--server-id", "spiffe://acme.example/other")
	if got := f.probe(t); got.code != exitUntold {
		t.Errorf("got %+v of a server that is another", got)
	}
}

// fake is a server that a prober takes for the broker. It serves every caller.
type fake struct {
	url    string
	env    []string
	closed bool // refuses HTTP without TLS
	stop   func()
}

func newFake(t *testing.T, cfg *tls.Config, handler http.Handler) *fake {
	t.Helper()
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString(local.Domain)})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := issuer.ServeWorkload(t.TempDir()+"/s", spiffeid.RequireFromString(researcher))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	svid, err := issuer.X509SVID(spiffeid.RequireFromString("spiffe://" + local.Domain + "/brevet"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{svid.Certificates[0].Raw}, PrivateKey: svid.PrivateKey}}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{url: "https://" + listener.Addr().String()}
	f.env = []string{"--server", f.url, "--server-id", "spiffe://" + local.Domain + "/brevet", "--workload-api", endpoint.Addr()}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(eitherListener{listener, cfg, f})
	}()
	f.stop = sync.OnceFunc(func() { _ = srv.Close(); <-ended })
	t.Cleanup(f.stop)
	return f
}

func (f *fake) probe(t *testing.T, more ...string) result {
	t.Helper()
	return inProcess(t, append(append(append([]string(nil), probed...), append(f.env, "-o", "json")...), more...)...)
}

func (f *fake) sees(t *testing.T, got result, code int, want func(name string) probe.Outcome) {
	t.Helper()
	report := readReport(t, got.out)
	if got.code != code || len(report.Checks) < 20 {
		t.Fatalf("got %+v", got)
	}
	for _, check := range report.Checks {
		if check.Result != want(check.Name) {
			t.Errorf("%s: got %s (%s), want %s", check.Name, check.Result, check.Saw, want(check.Name))
		}
		if (check.Result == probe.Broken) != (check.Means != "") {
			t.Errorf("%s is %s, and means %q", check.Name, check.Result, check.Means)
		}
	}
}

// openToAll returns a handler that issues tokens to every caller. It responds to introspection and releases as given, and
// accepts everything else.
func openToAll(introspection string, released int) http.Handler {
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1}`)) + ".c2ln"
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/tokens", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the client may fail to write it, before it reads the response
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":"one","kind":"jwt","token":%q,"token_type":"Bearer","ttl":1}`, token)
	})
	mux.HandleFunc("/oauth2/introspect", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, introspection) })
	mux.HandleFunc("/v1/issuances/one/release", func(w http.ResponseWriter, _ *http.Request) {
		var body any = struct{}{}
		w.Header().Set("Content-Type", "application/json")
		if released >= http.StatusBadRequest {
			w.Header().Set("Content-Type", "application/problem+json")
			body = openapi.Problem{Code: openapi.CodeNotAllowed, Type: openapi.CodeNotAllowed.Type(), Status: released}
		}
		w.WriteHeader(released)
		_ = json.NewEncoder(w).Encode(body)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	return mux
}

// eitherListener accepts HTTP with and without TLS on one port.
type eitherListener struct {
	net.Listener
	cfg *tls.Config
	f   *fake
}

func (l eitherListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &eitherConn{Conn: conn, by: l}, err
}

type eitherConn struct {
	net.Conn
	by    eitherListener
	once  sync.Once
	inner net.Conn
}

func (c *eitherConn) Read(p []byte) (int, error) {
	c.once.Do(func() {
		in := bufio.NewReader(c.Conn)
		c.inner = readFirst{c.Conn, in}
		if first, _ := in.Peek(1); c.by.f.closed || len(first) == 1 && first[0] == 0x16 {
			c.inner = tls.Server(c.inner, c.by.cfg)
		}
	})
	return c.inner.Read(p)
}

func (c *eitherConn) Write(p []byte) (int, error) { return c.inner.Write(p) }

type readFirst struct {
	net.Conn
	in *bufio.Reader
}

func (c readFirst) Read(p []byte) (int, error) { return c.in.Read(p) }
