package egress_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == firstProcess {
		os.Exit(confined())
	}
	os.Exit(testkit.Main(m))
}

const (
	agent = "spiffe://acme.test/agents/a"
	admin = "spiffe://acme.test/admin"
	eyes  = "spiffe://acme.test/auditor"
	task  = "triage-1"
	// canary is the key that no sandbox may see.
	canary = "CANARY-4f9c81d07ab2"
	// The AWS key that signs calls.
	awsKey     = "AKIACANARY52C19D77E0"
	awsSecret  = "CANARY/secret+7d0b1c52e94f/ab"
	awsSession = "CANARY//session+e55a0b31c8d7=="
	password   = "of-this-gateway"
)

// host is a third-party server. It records the calls that reach it, and the path says how it responds.
type host struct {
	*httptest.Server
	mux   *http.ServeMux
	quiet bool // whether it records no calls
	mu    sync.Mutex
	calls []*http.Request
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := prepareHost()
	h.start(t)
	return h
}

func prepareHost() *host {
	mux := http.NewServeMux()
	h := &host{mux: mux}
	mux.HandleFunc("/key/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("X-Key"))
		w.Header().Set("Set-Cookie", "session=of-the-host")
		_ = json.NewEncoder(w).Encode(r.Header)
	})
	mux.HandleFunc("/key/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere.test/?key="+r.Header.Get("X-Key"), http.StatusFound)
	})
	mux.HandleFunc("/key/body", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%d %s", n, hex.EncodeToString(sum.Sum(nil)))
	})
	mux.HandleFunc("/key/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/key/socket", func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, buf)
	})
	for _, path := range []string{"/s3/", "/lambda/"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%d %s", len(body), body)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if !h.quiet {
			h.calls = append(h.calls, r)
		}
		h.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	h.EnableHTTP2 = true
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	return h
}

func (h *host) start(t testing.TB) {
	t.Helper()
	h.StartTLS()
	t.Cleanup(h.Close)
}

// taken returns the calls since it last ran.
func (h *host) taken() []*http.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// name returns the name by which the catalogue and callers know the host.
func (h *host) name() string {
	_, port, _ := net.SplitHostPort(h.Listener.Addr().String())
	return "example.com:" + port // the name in httptest's certificate
}

// catalogueFor returns a catalogue with one scope for each way to send a credential.
func catalogueFor(host, database string, secured int) []scopes.File {
	const scope = `  - name: %s
    title: Call
    authority: %s
    resource: host:all
    ttl: {default: 5m, max: 15m}
    credential: %s
    egress: [{hosts: ['%s'], methods: [GET, POST, PUT], paths: [%s]%s}]
`
	const logins = `  - name: %s
    title: Log in
    authority: read
    resource: host:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: database, mount: database, role: reporting}
    egress: [{hosts: ['%[3]s'], databases: %[2]s}]
`
	kv, keys, jwt := "{kind: kv, path: secret/data/egress}", "{kind: kv, path: secret/data/egress-aws}", "{kind: jwt, audience: https://example.com}"
	text := "scopes:\n" +
		fmt.Sprintf(scope, "host.key.use", "read", kv, host, "/key/**", ", send: {as: header, name: x-key, field: key}") +
		fmt.Sprintf(scope, "host.basic.use", "read", kv, host, "/basic", ", send: {as: basic, user: bot, field: key}") +
		fmt.Sprintf(scope, "host.query.use", "read", kv, host, "/query", ", send: {as: query, name: key, field: key}") +
		fmt.Sprintf(scope, "host.bearer.use", "read", kv, host, "/bearer", ", send: {as: bearer, field: key}") +
		fmt.Sprintf(scope, "host.s3.use", "read", keys, host, "/s3/**", ", send: {as: aws, service: s3, region: eu-central-1}") +
		fmt.Sprintf(scope, "host.lambda.use", "read", keys, host, "/lambda/**", ", send: {as: aws, service: lambda, region: eu-central-1}") +
		fmt.Sprintf(scope, "host.copy.use", "draft", kv, host, "/bearer", ", headers: [x-select-copy], send: {as: basic, user: bot, field: key}") +
		fmt.Sprintf(scope, "host.token.use", "read", jwt, host, "/token", "") +
		fmt.Sprintf(scope, "host.bound.use", "read", "{kind: jwt, audience: https://example.com, bind: dpop}", host, "/bound", "") +
		fmt.Sprintf(scope, "host.lost.use", "read", kv, host, "/lost", ", send: {as: bearer, field: none}") +
		fmt.Sprintf(scope, "host.approved.use", "write", "{kind: jwt, audience: https://example.com}\n    approval: {group: oncall}", host, "/approved", "") +
		fmt.Sprintf(scope, "host.inner.use", "read", jwt, "inner.test", "/**", "") +
		fmt.Sprintf(scope, "host.rebound.use", "read", jwt, "rebound.test"+host[strings.Index(host, ":"):], "/**", "") +
		fmt.Sprintf(scope, "host.unlisted.use", "read", jwt, host, "/unlisted", "") +
		fmt.Sprintf(scope, "host.refused.use", "delete", jwt, host, "/refused", "") +
		fmt.Sprintf(logins, "host.login.use", "['target', gone]", database) +
		fmt.Sprintf(logins, "host.secured.use", "[secured]", fmt.Sprintf("example.com:%d", secured)) +
		fmt.Sprintf(logins, "host.insecure.use", "[insecure]", fmt.Sprintf("another.test:%d", secured)) +
		fmt.Sprintf(logins, "host.nowhere.use", "[elsewhere]", "inner.test:5432") +
		`  - name: host.repo.read
    title: Read
    authority: read
    params:
      repo: {type: string, pattern: '[a-z]+/[a-z]+', max_length: 40}
      env: {type: enum, values: [dev, prod]}
    resource: host:{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://example.com}
    egress: [{hosts: ['` + host + `'], methods: [GET], paths: ['/repos/{repo}/issues']}]
`
	return []scopes.File{{Name: "scopes.yaml", Data: []byte(text)}, {Name: "policies.cedar", Data: []byte(`
@id("agents") permit (principal in Path::"spiffe://acme.test/agents", action, resource);
@id("acme-only") forbid (principal, action == Action::"host.repo.read", resource) unless { context.params.repo like "acme/*" };
@id("writes") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
@id("never-now") forbid (principal, action in Action::"authority:delete", resource) when { context.task like "triage*" };
`)}}
}

// world is a gateway with one sandbox, a complete Brevet and a host.
type world struct {
	stack   *testkit.Stack
	host    *host
	gateway *egress.Gateway
	sandbox *egress.Sandbox
	broker  *client.Client // authenticates as the sandbox
	addr    string         // of the listener with a password
	socket  string         // the socket that only the sandbox can reach
	log     *testkit.Buffer

	front     *front
	perSecond int
	now       func() time.Time  // of the gateway
	allow     []netip.Prefix    // networks that the gateway may call
	trusted   *x509.Certificate // an authority of more hosts, or nil
}

// newWorld returns a world with more scopes added to its catalogue.
func newWorld(t testing.TB, more ...string) *world {
	t.Helper()
	return newWorldWith(t, func(string) string { return strings.Join(more, "") })
}

// newWorldWith returns a world with more scopes, which may name its host, and with other options of its Brevet.
func newWorldWith(t testing.TB, more func(host string) string, change ...func(*testkit.Options)) *world {
	t.Helper()
	w := &world{host: newHost(t), log: &testkit.Buffer{}, perSecond: 1000, now: time.Now, allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	w.front = newFront(t, w.host.TLS.Certificates)
	catalogue := catalogueFor(w.host.name(), w.server(t), w.front.Addr().(*net.TCPAddr).Port)
	catalogue[0].Data = append(catalogue[0].Data, more(w.host.name())...)
	options := testkit.Options{
		Catalogue: catalogue, Admins: []string{admin}, Auditors: []string{eyes},
		People: []devstack.DevPerson{{Username: "bob", Name: "Bob", Groups: []string{"oncall"}}},
		Rules:  []people.Rule{{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}}},
	}
	for _, f := range change {
		f(&options)
	}
	w.stack = testkit.NewStack(t, options)
	w.store(t, "egress", map[string]any{"key": canary})
	w.store(t, "egress-aws", map[string]any{"access_key": awsKey, "secret_key": awsSecret, "session_token": awsSession})
	w.broker = w.stack.Client(t, agent)
	w.open(t)
	return w
}

// server returns the address of the PostgreSQL that Vault makes logins for.
func (w *world) server(t testing.TB) string {
	t.Helper()
	_, port, err := net.SplitHostPort(testkit.Devstack(t).Postgres.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

// open starts a gateway that resolves every name to the host, at an address that the operator allowed.
func (w *world) open(t testing.TB) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(w.host.Certificate())
	if w.trusted != nil {
		roots.AddCert(w.trusted)
	}
	handler := slog.DiscardHandler
	if w.log != nil {
		handler = slog.NewTextHandler(w.log, nil)
	}
	var err error
	w.gateway, err = egress.New(egress.Config{
		Roots: roots, AllowPrivate: w.allow, Resolver: names(t),
		CallsPerSecond: w.perSecond, Log: slog.New(handler), Now: w.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.sandbox, err = w.gateway.Sandbox(egress.SandboxConfig{
		ID: agent, Task: task, Broker: w.broker, Scopes: usable(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.socket = filepath.Join(t.TempDir(), "egress.sock")
	serve(t, w.gateway, listen(t, "unix", w.socket), egress.Alone(w.sandbox))
	tcp := listen(t, "tcp", "127.0.0.1:0")
	w.addr = tcp.Addr().String()
	serve(t, w.gateway, tcp, egress.WithPassword(w.sandbox, secret.New(password)))
	t.Cleanup(func() { w.gateway.Close(context.WithoutCancel(t.Context())) })
}

func listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serve(t testing.TB, g *egress.Gateway, l net.Listener, who egress.Caller) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(ctx, l, who) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
}

// trust returns a TLS configuration that trusts only the gateway.
func (w *world) trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.gateway.CA())
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// proxied returns a client that uses the gateway as its proxy.
func (w *world) proxied(t testing.TB) *http.Client {
	t.Helper()
	through := &url.URL{Scheme: "http", User: url.UserPassword("brevet", password), Host: w.addr}
	transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: w.trust(), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// alone returns a client of the socket that only the sandbox can reach.
func (w *world) alone() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
}

func (w *world) url(path string) string { return "https://" + w.host.name() + path }

// got is a response, read to its end.
type got struct {
	status int
	header http.Header
	text   string
	proto  string
}

// problem returns the code of a refusal and its explanation.
func (g got) problem() (code, explanation string) {
	var p struct{ Code, Explanation string }
	if g.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(g.text), &p) != nil {
		return "", ""
	}
	return p.Code, p.Explanation
}

func call(t testing.TB, c *http.Client, req *http.Request) got {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("calling %s: %v", req.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading what %s answers: %v", req.URL, err)
	}
	return got{resp.StatusCode, resp.Header, string(body), resp.Proto}
}

func request(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func (w *world) get(t testing.TB, path string) got {
	t.Helper()
	return call(t, w.proxied(t), request(t, "GET", w.url(path), nil))
}

// usable returns the scopes that the gateway may use. Brevet allows the sandbox more.
func usable() map[string]map[string]any {
	all := map[string]map[string]any{"host.repo.read": {"env": "dev"}}
	for _, name := range []string{"key", "basic", "query", "bearer", "token", "bound", "lost", "approved", "inner", "rebound", "refused", "login", "nowhere", "secured", "insecure", "s3", "lambda", "client", "server", "stored", "unasked", "agreed", "copy", "open", "opened", "package", "also"} {
		all["host."+name+".use"] = nil
	}
	for _, name := range []string{"aws", "google", "impersonated", "azure", "anthropic", "openai"} {
		all["host.cloud-"+name+".use"] = nil
	}
	for _, name := range []string{"npm", "pypi", "go"} {
		all["packages."+name+".read"] = nil
	}
	for _, name := range []string{"inner", "missing", "plain", "name"} {
		all["host.url-"+name+".use"] = nil
	}
	return all
}

func filterOf(scope string) client.Filter { return client.Filter{Scope: scope, Limit: 500} }

// issued counts the sandbox's records of a scope.
func (w *world) issued(t testing.TB, scope string) int {
	t.Helper()
	page, err := w.broker.Page(t.Context(), filterOf(scope))
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Issuances)
}

func (w *world) endTask(t testing.TB) {
	t.Helper()
	if _, err := w.broker.EndTask(t.Context(), task, client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for something that must happen, on a busy machine.
const patience = time.Minute

// promise is how soon after its end a credential is unusable, as docs/egress.md states.
const promise = time.Second

// wantLog waits for a log line that contains all parts.
func (w *world) wantLog(t testing.TB, parts ...string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		for line := range strings.Lines(w.log.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for a line of the log with %q, got\n%s", patience, parts, w.log.String())
		}
	}
}

// within waits for something that must happen.
func within[T any](t testing.TB, what string, happened <-chan T) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
	}
}

// stopwatch checks that something happens within promise. A slow machine gets more time. To measure the machine, stopwatch
// repeats a request to Brevet with a TLS handshake and takes the slowest; a gateway needs a few of those.
func (w *world) stopwatch(t testing.TB) (stop func(what string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	began, slowest, ended := time.Now(), time.Duration(0), make(chan struct{})
	roots := x509.NewCertPool()
	roots.AddCert(w.host.Certificate())
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12}}
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			asked := time.Now()
			_, _ = w.broker.Page(ctx, filterOf("host.token.use"))
			if conn, err := dialer.DialContext(ctx, "tcp", w.host.Listener.Addr().String()); err == nil {
				_ = conn.Close()
			}
			slowest = max(slowest, time.Since(asked))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func(what string) {
		t.Helper()
		took := time.Since(began)
		cancel()
		<-ended
		t.Logf("%s took %s; the slowest question to Brevet took %s", what, took, slowest)
		if allowed := promise + 5*slowest; took > allowed {
			t.Errorf("%s took %s, want %s at most", what, took, allowed)
		}
	}
}

func header(r *http.Request) string {
	var all []string
	for name, values := range r.Header {
		all = append(all, name+": "+strings.Join(values, " | "))
	}
	return strings.Join(all, "\n")
}
