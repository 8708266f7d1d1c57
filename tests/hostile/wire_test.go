package hostile_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// marker is in the input of every call. It must appear neither in the answer nor in the ledger.
const marker = "zqmarker"

// call is one call, byte for byte as a hostile caller would send it. The zero value is a call that succeeds.
type call struct {
	method, target, host string
	// auth is the Authorization header; "" sends agent's JWT-SVID and "none" sends none.
	auth string
	// cert, if set, is presented in the handshake.
	cert    *tls.Certificate
	headers []string
	// body is sent with POST and PUT; "" stands for a valid one.
	body string
	// length is the value of Content-Length; "" stands for the true one and "none" for no header.
	length string
}

const goodBody = `{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"` + marker + `"}`

// nothing stands for an empty body.
const nothing = "\x00"

func or(v, otherwise string) string {
	if v == "" {
		return otherwise
	}
	return v
}

func (c call) bytes(t *testing.T, s *testkit.Stack) string {
	t.Helper()
	method := or(c.method, "POST")
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nX-Marker: %s\r\n", method, or(c.target, "/v1/tokens"), or(c.host, s.Addr), marker)
	if c.auth == "" {
		c.auth = "Bearer " + s.JWT(t, agent)
	}
	if c.auth != "none" {
		fmt.Fprintf(&b, "Authorization: %s\r\n", c.auth)
	}
	body := c.body
	if method == "POST" || method == "PUT" {
		body = strings.TrimPrefix(or(body, goodBody), nothing)
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
	status       int
	header       http.Header
	text         string
	code, detail string
	// target is the URL that was called, and problem is the body parsed as a problem document.
	target  string
	problem openapi.Problem
}

func (c call) send(t *testing.T, s *testkit.Stack) answer {
	t.Helper()
	cfg := s.ClientTLS(nil)
	if c.cert != nil {
		cfg = showing(s, *c.cert)
	}
	cfg.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: cfg}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// The server may answer and close before it has read everything. The write error that this causes is not a failure.
	_, _ = io.WriteString(conn, c.bytes(t, s))
	got := read(t, conn, or(c.method, "POST"))
	got.target = c.target
	return got
}

const patience = 20 * time.Second

func read(t *testing.T, conn io.Reader, method string) answer {
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
	if strings.HasSuffix(resp.Header.Get("Content-Type"), "json") {
		var oauth openapi.OAuthError
		if json.Unmarshal(text, &a.problem) == nil && a.problem.Code == "" && json.Unmarshal(text, &oauth) == nil {
			a.problem = oauth.Problem
		}
		a.code, a.detail = string(a.problem.Code), a.problem.Detail
	}
	return a
}

// isProblem checks an error answer against RFC 9457: its type matches its code, and its status matches the HTTP status. OAuth's
// errors have another media type, and hold the same members.
func (a answer) isProblem(t *testing.T) {
	t.Helper()
	media := "application/problem+json"
	if strings.HasPrefix(a.target, "/oauth2/") {
		media = "application/json"
	}
	if got := a.header.Get("Content-Type"); got != media || a.problem.Type != a.problem.Code.Type() || a.problem.Status != a.status {
		t.Errorf("got %s of the type %q and the status %d with the answer %d, want %s of its code's type and the same status\n%s",
			got, a.problem.Type, a.problem.Status, a.status, media, a.text)
	}
}

// refusal is the expected outcome of a call that reaches no decision: an answer of fixed text and one entry.
type refusal struct {
	status int
	code   string
	// detail is what the entry names as wrong. It is "" if Go's server answers by itself, without an entry.
	detail string
}

// plain marks an entry without a detail, because its code says it all.
const plain = "-"

// refused sends a call and checks the answer, Vault and the ledger against the refusal.
func refused(name string, c call, want refusal) try {
	return refusedBy(name, func(*testing.T, *world, *testkit.Stack) call { return c }, want)
}

// refusedBy is like refused, for a call that depends on the world that it is sent to.
func refusedBy(name string, build func(*testing.T, *world, *testkit.Stack) call, want refusal) try {
	return try{name, func(t *testing.T, w *world) {
		s := w.next()
		want.of(t, w, build(t, w, s), s)
		w.hush(t)
	}}
}

// of sends a call and checks the answer, Vault and the ledger against the refusal.
func (r refusal) of(t *testing.T, w *world, c call, s *testkit.Stack) answer {
	t.Helper()
	w.added(t)
	before := len(w.vault.since(0))
	got := c.send(t, s)
	r.check(t, got)
	if asked := w.vault.since(before); len(asked) != 0 {
		t.Errorf("Vault was asked for %v, want nothing", asked)
	}
	r.recorded(t, w.added(t))
	return got
}

func (r refusal) check(t *testing.T, got answer) {
	t.Helper()
	if got.status != r.status || got.code != r.code {
		t.Errorf("got %d %s, want %d %s\n%s", got.status, got.code, r.status, r.code, got.text)
	}
	givesNothingAway(t, got.text+fmt.Sprint(got.header))
	if r.detail == "" {
		return // Go's server answered
	}
	got.isProblem(t)
	texts.saw(got.code, got.detail)
	if got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" ||
		len(got.header.Get("Request-Id")) != 36 || got.header.Get("Location") != "" {
		t.Errorf("got the headers %v", got.header)
	}
}

// innards matches words of SQL, of Go's errors, and of the systems behind the API.
var innards = regexp.MustCompile(`(?i)sqlstate|pgx|postgres|select |insert into|goroutine|runtime error|\.go:\d|json:|x509:|tls: |unmarshal|strconv|syscall|invalid character|hvs\.|transit/`)

func givesNothingAway(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(strings.ToLower(text), marker) {
		t.Errorf("it repeats the input: %s", text)
	}
	if found := innards.FindString(text); found != "" {
		t.Errorf("it says %q: %s", found, text)
	}
}

func (r refusal) recorded(t *testing.T, entries []testkit.Entry) {
	t.Helper()
	if r.detail == "" {
		if len(entries) != 0 {
			t.Errorf("got %+v, want no entry", entries)
		}
		return
	}
	if len(entries) != 1 || entries[0].Kind != "call.refused" {
		t.Fatalf("got %+v, want one entry of a refused call", entries)
	}
	if e := entries[0].Body; e["code"] != r.code || e["detail"] != strings.TrimPrefix(r.detail, plain) || e["remote"] != "127.0.0.1" {
		t.Errorf("the entry says %v, want code %s and detail %s", e, r.code, r.detail)
	}
	if text := fmt.Sprint(entries[0]); strings.Contains(strings.ToLower(text), marker) {
		t.Errorf("the entry repeats the input: %s", text)
	}
}

// texts collects the texts of all refusals, by code. There are few of them, so none is built from the input.
var texts = seen{of: map[string]map[string]bool{}}

type seen struct {
	mu sync.Mutex
	of map[string]map[string]bool
}

func (s *seen) saw(code, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[code] == nil {
		s.of[code] = map[string]bool{}
	}
	s.of[code][text] = true
}

// most is the largest number of texts per code, one for each kind of call that it answers.
const most = 3

func (s *seen) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for code, all := range s.of {
		if len(all) > most {
			t.Errorf("%s is told in %d texts, want %d fixed ones at most: %v", code, len(all), most, all)
		}
	}
}
