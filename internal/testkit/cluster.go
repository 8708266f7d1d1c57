package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Cluster is a real Vault that behaves like three nodes of OpenBao behind a balancer that sends each request to another node. One node is
// active. The two standbys pass on what needs a write, and answer the rest from a state that is up to Lag old: to them, a token or a lease
// that is younger does not exist, and one that has just ended is alive. A standby passes on each call with a token of limited uses,
// as OpenBao does.
type Cluster struct {
	url   string
	proxy http.Handler

	mu      sync.Mutex
	turn    int
	elected time.Time // until when there is no active node
	born    map[string]time.Time
	died    map[string]time.Time
	values  map[string][]stored // what a path of a key-value engine held, oldest first
	limited map[string]bool     // tokens of limited uses
	stale   int                 // answers that differ from those of the active node
	free    int                 // calls with a token that are not bound to the active node
}

// Lag is how old the state of a standby is at most.
const Lag = 500 * time.Millisecond

type stored struct {
	since time.Time
	body  []byte // nil if nothing was there
}

// NewCluster puts a cluster in front of Vault, until the test ends.
func NewCluster(t testing.TB, vault string) *Cluster {
	t.Helper()
	target, err := url.Parse(vault)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{
		born: map[string]time.Time{}, died: map[string]time.Time{}, values: map[string][]stored{}, limited: map[string]bool{},
		proxy: &httputil.ReverseProxy{
			Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(target) },
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
			Transport: &http.Transport{
				MaxIdleConnsPerHost: 64,
			},
		},
	}
	server := httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// URL returns the address of the balancer.
func (c *Cluster) URL() string { return c.url }

// Stale returns how many answers of standbys differed from that of the active node.
func (c *Cluster) Stale() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stale
}

// Unlimited returns how many calls came with a token of unlimited uses.
func (c *Cluster) Unlimited() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.free
}

// Elect leaves the cluster without an active node for a while. Each request fails. Some of them have been carried out all the same: the
// active node was lost after it had carried them out.
func (c *Cluster) Elect(span time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.elected = time.Now().Add(span)
}

// asked is what a standby looks at.
type asked struct {
	path, token string
	body        []byte
	Accessor    string `json:"accessor"`
	Lease       string `json:"lease_id"`
	Uses        any    `json:"num_uses"`
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	ask := asked{path: strings.TrimPrefix(r.URL.Path, "/v1/"), token: r.Header.Get("X-Vault-Token"), body: body}
	_ = json.Unmarshal(body, &ask)
	c.mu.Lock()
	c.turn++
	node, electing := c.turn%3, time.Now().Before(c.elected)
	if ask.token != "" && !c.limited[ask.token] {
		c.free++
	}
	c.mu.Unlock()
	if electing {
		c.fail(w, r, ask, node)
		return
	}
	if ask.path == "sys/leader" {
		answer(w, http.StatusOK, map[string]any{"ha_enabled": true, "is_self": node == 0})
		return
	}
	if node != 0 && c.local(w, r, ask) {
		return
	}
	c.forward(w, r, ask)
}

// fail answers as the nodes do during an election.
func (c *Cluster) fail(w http.ResponseWriter, r *http.Request, ask asked, node int) {
	if rand.IntN(4) == 0 {
		c.forward(httptest.NewRecorder(), r, ask)
	}
	switch node {
	case 0:
		w.Header().Set("Location", "http://127.0.0.1:1/v1/"+ask.path)
		w.WriteHeader(http.StatusTemporaryRedirect)
	case 1:
		answer(w, http.StatusInternalServerError, map[string]any{"errors": []string{"local node not active but active cluster node not found"}})
	default:
		answer(w, http.StatusServiceUnavailable, map[string]any{"errors": []string{"node is not active"}})
	}
}

// local lets a standby answer by itself. It reports whether the standby did.
func (c *Cluster) local(w http.ResponseWriter, r *http.Request, ask asked) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(-time.Duration(rand.Int64N(int64(Lag))))
	unborn := func(what string) bool { return c.born[what].After(at) }
	undead := func(what string) bool { return c.died[what].After(at) && !unborn(what) }
	var status int
	var says map[string]any
	switch {
	case unborn(ask.token) && r.Method == http.MethodGet:
		status, says = http.StatusForbidden, map[string]any{"errors": []string{"permission denied"}}
	case unborn(ask.token), c.limited[ask.token]:
		return false
	case ask.path == "auth/token/revoke-accessor" && unborn(ask.Accessor):
		status, says = http.StatusOK, map[string]any{"warnings": []string{"No token found with this accessor"}}
	case (ask.path == "auth/token/lookup-accessor" || ask.path == "auth/token/renew-accessor") && unborn(ask.Accessor):
		status, says = http.StatusBadRequest, map[string]any{"errors": []string{"invalid accessor"}}
	case ask.path == "auth/token/lookup-accessor" && undead(ask.Accessor):
		status, says = http.StatusOK, map[string]any{"data": map[string]any{"accessor": ask.Accessor, "ttl": 30}}
	case ask.path == "sys/leases/revoke" && unborn(ask.Lease):
		status = http.StatusNoContent
	case ask.path == "sys/leases/renew" && unborn(ask.Lease):
		status, says = http.StatusBadRequest, map[string]any{"errors": []string{"lease not found"}}
	case ask.path == "sys/leases/lookup" && unborn(ask.Lease):
		status, says = http.StatusBadRequest, map[string]any{"errors": []string{"invalid lease"}}
	case ask.path == "sys/leases/lookup" && undead(ask.Lease):
		status, says = http.StatusOK, map[string]any{"data": map[string]any{"id": ask.Lease, "ttl": 30}}
	case r.Method == http.MethodGet && len(c.values[ask.path]) > 0:
		return c.remember(w, c.values[ask.path], at)
	default:
		return false
	}
	c.stale++
	answer(w, status, says)
	return true
}

// remember answers with what a path held at a time. It reports whether that differs from what the path holds now.
func (c *Cluster) remember(w http.ResponseWriter, held []stored, at time.Time) bool {
	then := stored{}
	for _, s := range held {
		if !s.since.After(at) {
			then = s
		}
	}
	if last := held[len(held)-1]; last.since.Equal(then.since) {
		return false
	}
	c.stale++
	if then.body == nil {
		answer(w, http.StatusNotFound, map[string]any{"errors": []string{}})
		return true
	}
	answer(w, http.StatusOK, map[string]any{"request_id": "stale", "data": json.RawMessage(then.body)})
	return true
}

func answer(w http.ResponseWriter, status int, says map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_ = json.NewEncoder(w).Encode(says)
	}
}

// forward lets the active node answer, and notes what has begun and what has ended.
func (c *Cluster) forward(w http.ResponseWriter, r *http.Request, ask asked) {
	seen := httptest.NewRecorder()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(ask.body)), int64(len(ask.body))
	c.proxy.ServeHTTP(seen, r)
	if seen.Code == http.StatusOK || seen.Code == http.StatusNoContent {
		c.note(r.Method, ask, seen.Body.Bytes())
	}
	maps.Copy(w.Header(), seen.Header())
	w.WriteHeader(seen.Code)
	_, _ = w.Write(seen.Body.Bytes())
}

func (c *Cluster) note(method string, ask asked, text []byte) {
	var got struct {
		Lease string `json:"lease_id"`
		Auth  struct {
			Token    string `json:"client_token"`
			Accessor string `json:"accessor"`
		} `json:"auth"`
	}
	_ = json.Unmarshal(text, &got)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	renews := strings.Contains(ask.path, "/renew")
	for _, one := range []string{got.Auth.Token, got.Auth.Accessor, got.Lease} {
		if one != "" && !renews {
			c.born[one] = now
		}
	}
	if uses := ask.Uses; got.Auth.Token != "" && uses != nil && !slices.Contains([]any{"0", 0.0}, uses) {
		c.limited[got.Auth.Token] = true
	}
	switch {
	case ask.path == "auth/token/revoke-accessor":
		c.died[ask.Accessor] = now
	case ask.path == "sys/leases/revoke":
		c.died[ask.Lease] = now
	case strings.HasPrefix(ask.path, "brevet-github-tokens/") && method != http.MethodGet:
		is := stored{since: now, body: ask.body}
		if method == http.MethodDelete {
			is.body = nil
		}
		c.values[ask.path] = append(c.values[ask.path], is)
	}
}
