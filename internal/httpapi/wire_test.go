package httpapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const (
	agent   = "spiffe://acme.test/agents/a"
	twin    = "spiffe://acme.test/agents/ab"
	auditor = "spiffe://acme.test/audit"
	foreign = "spiffe://other.test/agents/a"
	admin   = "spiffe://acme.test/admin"
	runtime = "spiffe://acme.test/runtime"
)

// catalogue has a scope for each kind of parameter, and a policy for each kind of decision.
var catalogue = []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+|[a-z]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.issues.list
    title: List issues
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
  - name: vault.notes.read
    title: Read notes
    authority: read
    resource: vault:notes
    ttl: {default: 1m, max: 5m}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [read]}]}
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 2}
    credential: {kind: jwt, audience: https://git.test}
  - name: db.rows.read
    title: Read rows
    authority: read
    params:
      rows: {type: int, min: 1, max: 9000}
      fresh: {type: bool}
    resource: db:rows
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://db.test}
  - name: ssh.login.open
    title: Log in
    authority: write
    params:
      principal: {type: enum, values: [deploy, backup]}
    resource: ssh:{principal}
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://ssh.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("agents-read")
permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"authority:read", resource);

@id("twin-reads")
permit (principal in Path::"spiffe://acme.test/agents/ab", action == Action::"git.issues.list", resource);

@id("agents-write")
permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"git.*", resource);

@id("writes-need-people")
forbid (principal, action in Action::"authority:write", resource) unless { context.approved };

@id("secret-repo")
forbid (principal, action, resource == Resource::"git:repo/acme/secret");

@id("overflows")
forbid (principal, action == Action::"db.rows.read", resource)
when { context.params.rows > 5000 && context.params.rows * 9223372036854775807 > 0 };
`)}}

// patience is how long a test waits for an event that must happen, on a busy machine.
const patience = time.Minute

// wire is one call, byte for byte as a hostile caller would send it. Zero fields have the values of a call that succeeds.
type wire struct {
	method, target, host string
	// auth is the Authorization header; "" sends agent's JWT-SVID and "none" sends none.
	auth string
	// svid, if set, is presented in the handshake.
	svid    *x509svid.SVID
	headers []string
	body    string
	// length is the value of Content-Length, "" for the true one and "none" for none.
	length string
}

// nothing is the body of a call without one.
const nothing = "\x00"

const goodBody = `{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"triage-1"}`

func (c wire) bytes(t *testing.T, s *testkit.Stack) string {
	t.Helper()
	or := func(v, otherwise string) string {
		if v == "" {
			return otherwise
		}
		return v
	}
	method := or(c.method, "POST")
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, or(c.target, "/v1/tokens"), or(c.host, s.Addr))
	if c.auth == "" {
		c.auth = "Bearer " + s.JWT(t, agent)
	}
	if c.auth != "none" {
		fmt.Fprintf(&b, "Authorization: %s\r\n", c.auth)
	}
	body := c.body
	if body != "" && method != "POST" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	if method == "POST" {
		body = strings.TrimPrefix(or(c.body, goodBody), nothing)
		if !strings.Contains(strings.ToLower(strings.Join(c.headers, "\n")), "content-type:") {
			b.WriteString("Content-Type: application/json\r\n")
		}
		if c.length != "none" {
			fmt.Fprintf(&b, "Content-Length: %s\r\n", or(c.length, fmt.Sprint(len(body))))
		}
	}
	for _, h := range c.headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n" + body
}

// answer is the response to a call.
type answer struct {
	status int
	header http.Header
	text   string
	code   string
}

func (c wire) send(t *testing.T, s *testkit.Stack) answer {
	t.Helper()
	conn := dial(t, s, c.svid)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// The server may answer and close before it has read everything. That is a write error here, but not a failure.
	_, _ = io.WriteString(conn, c.bytes(t, s))
	return readAnswer(t, conn, c.method)
}

func dial(t *testing.T, s *testkit.Stack, svid *x509svid.SVID) *tls.Conn {
	t.Helper()
	cfg := s.ClientTLS(nil)
	if svid != nil {
		cfg = s.ClientTLS(svid)
	}
	cfg.NextProtos = []string{"http/1.1"}
	return dialWith(t, s, cfg)
}

func dialWith(t *testing.T, s *testkit.Stack, cfg *tls.Config) *tls.Conn {
	t.Helper()
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*tls.Conn)
}

// recorded is what the ledger contains: requests with their outcomes, and refusals.
type recorded struct{ requests, refusals []testkit.Entry }

func entriesOf(t *testing.T, s *testkit.Stack) recorded {
	t.Helper()
	var r recorded
	for _, e := range s.DB.Entries(t) {
		if e.Kind == "call.refused" {
			r.refusals = append(r.refusals, e)
		} else {
			r.requests = append(r.requests, e)
		}
	}
	return r
}

// skip removes the entries that before contains.
func (r *recorded) skip(before recorded) {
	r.requests, r.refusals = r.requests[len(before.requests):], r.refusals[len(before.refusals):]
}

// countingDialer counts the connections that it opens.
type countingDialer struct{ n *atomic.Int64 }

func (d *countingDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.n.Add(1)
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

func scrape(t *testing.T, s *httpapi.Server) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Metrics().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("got %d from the metrics", w.Code)
	}
	return w.Body.String()
}

func readAnswer(t *testing.T, conn io.Reader, method string) answer {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if resp.Header.Get("Content-Type") == "application/problem+json" && len(text) > 0 {
		var p struct {
			Code   string
			Status int
		}
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatalf("the problem is no JSON: %v", err)
		}
		if p.Status != a.status {
			t.Errorf("the problem says %d, the answer is %d", p.Status, a.status)
		}
		a.code = p.Code
	}
	return a
}
