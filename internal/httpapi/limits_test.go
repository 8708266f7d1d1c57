package httpapi_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// H50: a caller that sends a byte now and then is disconnected, in whatever part of the call it is slow.
func TestSlowCallersAreClosed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	whole := wire{}.bytes(t, s)
	head := strings.Index(whole, "\r\n\r\n")
	for name, at := range map[string]int{"before a byte": 0, "in the headers": head - 20, "in the body": head + 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, s, nil)
			start := time.Now()
			if err := conn.SetDeadline(start.Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, whole[:at]); err != nil {
				t.Fatal(err)
			}
			_, err := io.Copy(io.Discard, conn) // ends when the server closes
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("the connection is still open after %s", time.Since(start))
			}
		})
	}
	t.Cleanup(func() {
		if n := s.Signings(t); n != 0 {
			t.Errorf("Vault signed %d times", n)
		}
	})
}

// H51: a caller that opens and resets streams as fast as it can is disconnected, or the server keeps up with it. Other callers
// are served all the time, and the ledger does not fill.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{
		Catalogue: catalogue, Attempts: broker.AttemptBudget{SandboxBurst: 50, SandboxPerMinute: 6, DomainBurst: 500, DomainPerMinute: 60},
	})
	cfg := s.ClientTLS(s.X509(t, agent))
	cfg.NextProtos = []string{"h2"}
	conn := dialWith(t, s, cfg)
	start := time.Now()
	if err := conn.SetDeadline(start.Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	streams, served := make(chan int), make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	go func() { streams <- reset(http2.NewFramer(conn, nil), headerBlock(s.Addr), served) }()
	for range 5 {
		if _, err := s.Client(t, twin).Request(t.Context(), read); !errors.Is(err, client.ErrDenied) {
			t.Errorf("another caller: got %v, want its denial", err)
		}
	}
	close(served)
	sent := <-streams
	if sent < flood {
		t.Fatalf("only %d streams were reset: that is no flood", sent)
	}
	got := len(entriesOf(t, s).refusals)
	if most := 51 + int(time.Since(start)/(10*time.Second)); got > most { // the first fifty at once, and then six a minute
		t.Errorf("%d reset streams left %d entries, want at most %d", sent, got, most)
	}
}

// flood is the minimum number of streams to open and reset, unless the server ends the connection.
const flood = 1000

// reset opens and resets streams until the connection ends, or others were served and there were enough. It returns their number.
func reset(framer *http2.Framer, headers []byte, served <-chan struct{}) int {
	if framer.WriteSettings() != nil {
		return 0
	}
	for n := 0; ; n++ {
		id := uint32(2*n + 1)
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true})
		if err != nil || framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return n
		}
		select {
		case <-served:
			if n > flood {
				return n
			}
		default:
		}
	}
}

func headerBlock(host string) []byte {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: host},
		{Name: ":path", Value: "/v1/tokens"},
		{Name: "content-type", Value: "application/json"},
	} {
		_ = enc.WriteField(f)
	}
	return block.Bytes()
}

// An old connection is asked to close, over either protocol.
func TestOldConnectionsClose(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		var ahead atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: now})
		closes(t, s, protocol, func() { ahead.Store(int64(16 * time.Minute)) })
	}
}

// A replica that is about to stop reports so in /readyz at once, even if its checks passed just before. It answers all calls, and
// asks connections to close.
func TestStoppingReplicaIsNotReady(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2", "http/1.1"} {
		s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
		if status, _, text := get(t, s, "/readyz"); status != http.StatusOK {
			t.Fatalf("got %d %s of a replica that stays", status, text)
		}
		closes(t, s, protocol, s.Server.Leave)
		status, header, text := get(t, s, "/readyz")
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || text != `{"checks":{"running":"failing"},"status":"failing"}` {
			t.Errorf("got %d %s of a replica that goes", status, text)
		}
		if got, err := s.Client(t, agent).Request(t.Context(), read); err != nil || got.Token == nil {
			t.Errorf("asking a replica that goes: got %+v, %v", got, err)
		}
	}
}

// closes checks that a server keeps a connection open, and closes it with the next response after happen.
func closes(t *testing.T, s *testkit.Stack, protocol string, happen func()) {
	t.Helper()
	cfg := s.ClientTLS(s.X509(t, agent))
	cfg.NextProtos = []string{protocol}
	var dials atomic.Int64
	transport := &http.Transport{
		TLSClientConfig: cfg, ForceAttemptHTTP2: protocol == "h2",
		DialContext: (&countingDialer{n: &dials}).dial,
	}
	t.Cleanup(transport.CloseIdleConnections)
	call := func() {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/issuances", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: got %d", resp.Proto, resp.StatusCode)
		}
	}
	call()
	call()
	if got := dials.Load(); got != 1 {
		t.Fatalf("%s: two calls took %d connections, want 1", protocol, got)
	}
	happen()
	call()
	call()
	if got := dials.Load(); got != 2 {
		t.Errorf("%s: a call after the old connection's last took %d connections in all, want 2", protocol, got)
	}
}

// H43: bytes after a call with a transfer coding are never read as another call, on any path.
func TestBytesAfterATransferCodingAreNotARequest(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	inner := wire{}.bytes(t, s)
	for name, outer := range map[string]wire{
		"a length beside it": {headers: []string{"Transfer-Encoding: chunked"}, length: strconv.Itoa(len(inner)), body: "0\r\n\r\n" + inner},
		"alone":              {headers: []string{"Transfer-Encoding: chunked"}, length: "none", body: "0\r\n\r\n" + inner},
		"where no body is":   {method: "GET", target: "/v1/whoami", headers: []string{"Transfer-Encoding: chunked"}, body: "0\r\n\r\n" + inner},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, s, nil)
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, outer.bytes(t, s))
			all, _ := io.ReadAll(conn) // ends when the server closes
			if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 {
				t.Errorf("got %d answers, want 1:\n%s", n, all)
			}
		})
	}
	if n := s.Signings(t); n != 0 {
		t.Errorf("Vault signed %d times, want 0", n)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for path, want := range map[string]string{
		"/livez":  `{"status":"ok"}`,
		"/readyz": `{"checks":{"bundles":"ok","ledger":"ok","ledger_disk":"ok","vault":"ok"},"status":"ok"}`,
	} {
		if status, header, text := get(t, s, path); status != 200 || text != want || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s", path, status, text)
		}
	}
	for _, path := range []string{"/livez", "/readyz"} { // kubelets and load balancers connect by address
		if got := (wire{method: "GET", target: path, host: "10.1.2.3:8443"}).send(t, s); got.status != 200 {
			t.Errorf("%s by another address: got %d %s", path, got.status, got.text)
		}
	}
	status, header, text := get(t, s, "/openapi.yaml")
	if status != 200 || header.Get("Content-Type") != "application/yaml" || !strings.HasPrefix(text, "openapi: 3.0.3") {
		t.Errorf("got the description with %d and %v", status, header)
	}
	if len(entriesOf(t, s).refusals) != 0 {
		t.Error("health calls are recorded as refusals")
	}
}

func TestMethodsAreListed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for target, want := range map[string]string{"/v1/tokens": "POST", "/v1/issuances": "GET", "/v1/requests/x": "DELETE, GET"} {
		got := wire{method: "HEAD", target: target}.send(t, s)
		if got.status != 405 || got.header.Get("Allow") != want || got.text != "" {
			t.Errorf("%s: got %d, Allow %q and %q, want %s", target, got.status, got.header.Get("Allow"), got.text, want)
		}
	}
}

// The metrics count what happened, and contain no text of a caller.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	if _, err := s.Client(t, agent).Request(t.Context(), read); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client(t, twin).Request(t.Context(), read); !errors.Is(err, client.ErrDenied) {
		t.Fatal(err)
	}
	wire{auth: "none"}.send(t, s)
	wire{method: "BREW", target: "/v1/" + canary}.send(t, s)
	text := scrape(t, s.Server)
	for _, want := range []string{
		`brevet_decisions_total{authority="read",outcome="allow"} 1`,
		`brevet_decisions_total{authority="read",outcome="deny"} 1`,
		`brevet_http_requests_total{route="issueToken",status="201"} 1`,
		`brevet_http_requests_total{route="issueToken",status="401"} 1`,
		`brevet_http_requests_total{route="issueToken",status="403"} 1`,
		`brevet_http_requests_total{route="none",status="404"} 1`,
		`brevet_problems_total{code="denied"} 1`,
		`brevet_problems_total{code="unauthenticated"} 1`,
		`brevet_http_in_flight 0`,
		`brevet_store_duration_seconds_count{operation="begin",outcome="ok",store="ledger"} 2`,
		`brevet_store_duration_seconds_count{operation="mint",outcome="ok",store="mint"} 1`,
	} {
		if !slices.Contains(strings.Split(text, "\n"), want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, never := range []string{"spiffe", "triage", "git.issues", canary, "BREW"} {
		if strings.Contains(text, never) {
			t.Errorf("%q is in the metrics", never)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestNewRefusesIncompleteConfiguration(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for name, change := range map[string]func(*httpapi.Config){
		"no broker":          func(c *httpapi.Config) { c.Broker = nil },
		"no attestor":        func(c *httpapi.Config) { c.Attestor = nil },
		"no hosts":           func(c *httpapi.Config) { c.Hosts = nil },
		"a short cursor key": func(c *httpapi.Config) { c.CursorKey = make([]byte, 31) },
		"no clock":           func(c *httpapi.Config) { c.Now = nil },
		"nobody as auditor":  func(c *httpapi.Config) { c.Auditors = []httpapi.Role{{}} },
		"admin of nothing":   func(c *httpapi.Config) { c.Admins = []httpapi.Role{{ID: spiffeid.RequireFromString(admin)}} },
		"nobody to end tasks": func(c *httpapi.Config) {
			c.Orchestrators = []httpapi.Role{{TrustDomains: []spiffeid.TrustDomain{spiffeid.RequireTrustDomainFromString("acme.test")}}}
		},
	} {
		cfg := s.Config
		cfg.Registry = prometheus.NewRegistry()
		change(&cfg)
		if got, err := httpapi.New(cfg); err == nil || got != nil {
			t.Errorf("%s: got %v and %v, want an error", name, got, err)
		}
	}
}
