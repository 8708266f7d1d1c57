package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// world is a deployment of two replicas, with the means to observe it.
type world struct {
	// s are the replicas. They share Postgres, Vault and the people.
	s     [2]*testkit.Stack
	vault *gate

	// ahead is how far the clock of the replicas is ahead, and floor is the earliest time that it may show, in nanoseconds.
	ahead, floor atomic.Int64
	tried        atomic.Int64
	// stopped is the time at which the clock was stopped, in nanoseconds, or 0 while it runs.
	stopped atomic.Int64
	conn    *pgx.Conn
	last    int64

	// hushed is the name of the last try that must have no later effect, and heard is the number of calls to Vault by then.
	hushed string
	heard  int

	// root is the test of all rows. desk is opened for the rows about words.
	root     *testing.T
	deskOnce sync.Once
	desk     *desk

	// forged is an authority of acme.test that signs anything, and bundle is the bundle that includes it.
	forged forgery
	bundle *spiffebundle.Bundle
}

// newWorld starts two replicas that end with the test.
func newWorld(t *testing.T, o testkit.Options) *world {
	t.Helper()
	w := &world{vault: &gate{}, root: t}
	o.Now = w.now
	o.VaultVia = func(addr string) string { return w.vault.open(t, addr) }
	first := testkit.NewStack(t, o)
	w.s = [2]*testkit.Stack{first, first.Replica(t)}
	w.conn = testkit.Connect(t, first.DB.AdminURL)
	w.forged, w.bundle = forge(t, first, ecKey(t)), first.Acme.Bundle()
	w.bundle.AddX509Authority(w.forged.root)
	w.added(t)
	return w
}

func (w *world) domains() []spiffeid.TrustDomain {
	return []spiffeid.TrustDomain{w.s[0].Acme.TrustDomain(), w.s[0].Other.TrustDomain()}
}

// issues is a request that succeeds.
var issues = client.Ask{Scope: "git.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "triage-1"}

// token sends a request that is issued at once.
func (w *world) token(t *testing.T, who string, ask client.Ask) *client.Token {
	t.Helper()
	got, err := w.next().Client(t, who).Request(t.Context(), ask)
	if err != nil || got.Token == nil {
		t.Fatalf("asking for %s: got %+v, %v, want a credential", ask.Scope, got, err)
	}
	return got.Token
}

// unvisited returns the address of a server that must not be called.
func unvisited(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("somebody called %s", r.URL) }))
	t.Cleanup(server.Close)
	return server.URL
}

// pace is the shortest time that passes on the replicas' clock with each try: a replica records 50 refusals a second.
const pace = 12 * time.Millisecond

func (w *world) now() time.Time {
	if at := w.stopped.Load(); at != 0 {
		return time.Unix(0, at)
	}
	now := time.Now()
	if floor := time.Unix(0, w.floor.Load()); floor.After(now) {
		now = floor
	}
	return now.Add(time.Duration(w.ahead.Load()))
}

// pass moves the replicas' clock forward.
func (w *world) pass(by time.Duration) {
	w.floor.Store(max(w.floor.Load(), time.Now().UnixNano()) + int64(by))
}

// stop stops the replicas' clock.
func (w *world) stop() { w.stopped.Store(w.now().UnixNano()) }

// later moves the replicas' clock forward by two seconds.
func (w *world) later() { w.pass(2 * time.Second) }

// next returns the replicas in turn.
func (w *world) next() *testkit.Stack {
	w.pass(pace)
	return w.s[w.tried.Add(1)%2]
}

// added returns the entries since its last call.
func (w *world) added(t *testing.T) []testkit.Entry {
	t.Helper()
	rows, err := w.conn.Query(t.Context(), `
		SELECT index, kind, id::text, convert_from(body, 'UTF8')::jsonb FROM entries WHERE index >= $1 ORDER BY index`, w.last)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[testkit.Entry])
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		w.last = entries[len(entries)-1].Index + 1
	}
	return entries
}

// hush marks the end of a try. After it, the try's call must have no further effect.
func (w *world) hush(t *testing.T) {
	t.Helper()
	w.hushed, w.heard = t.Name(), len(w.vault.since(0))
}

// still checks that the last try that called hush has had no effect since.
func (w *world) still(t *testing.T) {
	t.Helper()
	if w == nil || w.hushed == "" {
		return
	}
	if late, asked := w.added(t), w.vault.since(w.heard); len(late)+len(asked) != 0 {
		t.Errorf("after the answer to %s came the entries %+v, and Vault was asked for %v: want nothing", w.hushed, late, asked)
	}
	w.hushed = ""
}

// check verifies the ledger's invariants.
func (w *world) check(t *testing.T) {
	t.Helper()
	w.s[0].DB.Check(t)
}

// gate is the proxy between the replicas and Vault. It counts their calls, and lies for chosen paths.
type gate struct {
	proxy *httputil.ReverseProxy

	mu    sync.Mutex
	asked []string
	lies  map[string]http.HandlerFunc // by path prefix
	made  []grant
}

// grant is a credential that Vault says it made: a token by its accessor, or a lease.
type grant struct{ accessor, lease string }

func (g *gate) open(t testing.TB, addr string) string {
	t.Helper()
	target, err := url.Parse(addr)
	if err != nil {
		t.Fatal(err)
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: g.note,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	front := httptest.NewServer(g)
	t.Cleanup(front.Close)
	return front.URL
}

// note records what Vault has made, even if its answer never arrives.
func (g *gate) note(resp *http.Response) error {
	path := strings.TrimPrefix(resp.Request.URL.Path, "/v1/")
	if !strings.HasPrefix(path, wrapping) && !strings.HasPrefix(path, logins) {
		return nil
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	var made struct {
		Auth  struct{ Accessor string }
		Lease string `json:"lease_id"`
	}
	if json.Unmarshal(text, &made) == nil && made.Auth.Accessor+made.Lease != "" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.made = append(g.made, grant{made.Auth.Accessor, made.Lease})
	}
	return nil
}

// ServeHTTP passes a call on, or lies.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	g.mu.Lock()
	if !unasked(path) {
		g.asked = append(g.asked, r.Method+" "+path)
	}
	var lie http.HandlerFunc
	for prefix, one := range g.lies {
		if strings.HasPrefix(path, prefix) {
			lie = one
		}
	}
	g.mu.Unlock()
	if lie != nil {
		lie(w, r)
		return
	}
	g.proxy.ServeHTTP(w, r)
}

// unasked reports whether a replica makes this call by itself, for its login, its keys or the signatures of checkpoints.
func unasked(path string) bool {
	return strings.HasPrefix(path, "auth/approle/login") || strings.HasPrefix(path, "auth/token/renew-self") ||
		strings.HasPrefix(path, "transit/keys/") || strings.HasPrefix(path, "transit/sign/") && strings.HasSuffix(path, "-log")
}

// since returns the calls to Vault from the nth on.
func (g *gate) since(n int) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string{}, g.asked[n:]...)
}

// grants returns what Vault made, from the nth on.
func (g *gate) grants(n int) []grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]grant{}, g.made[n:]...)
}

// lie installs an answer that replaces Vault's for paths with a prefix. A nil answer removes it.
func (g *gate) lie(prefix string, answer http.HandlerFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lies = map[string]http.HandlerFunc{}
	if answer != nil {
		g.lies[prefix] = answer
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventuallyWithin(t, patience, what, ok)
}

func eventuallyWithin(t *testing.T, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
