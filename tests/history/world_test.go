package history_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

const (
	admin   = "spiffe://acme.test/ops/admin"
	service = "spiffe://acme.test/services/git"
	// patience is how long a caller waits for an answer.
	patience = 3 * time.Second
)

const scopesYAML = `scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params: {repo: {type: enum, values: [api, web]}}
    resource: git:{repo}
    ttl: {default: 10m, max: 10m}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.issues.write
    title: Write issues
    authority: write
    resource: git:issues
    ttl: {default: 10m, max: 10m}
    approval: {group: oncall, quorum: 2}
    credential: {kind: jwt, audience: https://git.test}
  - name: bank.order.pay
    title: Pay an order
    authority: payment
    resource: bank:orders
    ttl: {default: 10m, max: 10m}
    credential: {kind: jwt, audience: https://git.test, uses: 1}
`

var options = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(scopesYAML)},
		{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);
@id("people") forbid (principal, action == Action::"git.issues.write", resource) unless { context.approved };`)},
	},
	Admins: []string{admin}, ResourceServers: map[string][]string{service: {"https://git.test"}},
	People: []devstack.DevPerson{
		{Username: "alice", Groups: []string{"oncall"}},
		{Username: "bob", Groups: []string{"oncall"}},
		{Username: "carol", Groups: []string{"oncall"}},
		{Username: "mallory", Groups: []string{"staff"}},
	},
	Rules: []people.Rule{{Role: people.RoleApprover, Group: "oncall"}, {Role: people.RoleApprover, Group: "staff"}},
}

// world is two replicas, each behind a relay, and with a relay between it and Postgres. A third replica is not affected by any
// fault.
type world struct {
	stack *testkit.Stack
	front [2]*testkit.Relay
	back  [2]*testkit.Relay
	// database is Postgres's URL through the relay.
	database [2]string
	vault    [2]atomic.Int64   // how many more calls to Vault fail
	now      [2]*testkit.Stack // the serving replicas
	admin    *pgx.Conn
	start    time.Time
	tally    tally
	// The channel in before closes when the calm before a fault begins, the one in during when the fault begins, and over when
	// the last fault has ended.
	before, during []chan struct{}
	over           chan struct{}
}

func newWorld(t *testing.T, faults int) *world {
	t.Helper()
	w := &world{stack: testkit.NewStack(t, options), start: time.Now(), over: make(chan struct{})}
	w.admin = testkit.Connect(t, w.stack.DB.AdminURL)
	for range faults {
		w.before, w.during = append(w.before, make(chan struct{})), append(w.during, make(chan struct{}))
	}
	for i := range w.front {
		w.back[i], w.database[i] = testkit.RelayTo(t, w.stack.DB.BrokerURL)
		w.front[i] = testkit.NewRelay(t, w.serve(t, i))
	}
	return w
}

// serve starts a replica, and returns its address.
func (w *world) serve(t *testing.T, i int) string {
	t.Helper()
	behind, db, o := *w.stack, *w.stack.DB, options
	db.BrokerURL, behind.DB = w.database[i], &db
	o.Minter = func(m broker.Minter) broker.Minter { return &faultyMinter{Minter: m, left: &w.vault[i]} }
	w.now[i] = behind.ReplicaWith(t, o)
	return w.now[i].Addr
}

// at returns the replica as its callers reach it, whichever process serves.
func (w *world) at(i int) *testkit.Stack {
	s := *w.stack
	s.Addr, s.URL = w.front[i].Addr(), "https://"+w.front[i].Addr()
	return &s
}

func (w *world) clients(t *testing.T, id string) [2]*client.Client {
	t.Helper()
	svid := w.stack.X509(t, id)
	return [2]*client.Client{w.at(0).ClientWith(t, svid), w.at(1).ClientWith(t, svid)}
}

func (w *world) people(t *testing.T, name string) [2]*client.Client {
	t.Helper()
	return [2]*client.Client{w.at(0).Person(t, name), w.at(1).Person(t, name)}
}

// faultyMinter makes some calls to Vault fail: every other one of them after it was carried out.
type faultyMinter struct {
	broker.Minter
	left *atomic.Int64
}

func (m *faultyMinter) Mint(ctx context.Context, order *broker.Order) (broker.Credential, error) {
	left := m.left.Add(-1)
	if left >= 0 && left%2 == 0 {
		return broker.Credential{}, broker.ErrVaultUnavailable
	}
	credential, err := m.Minter.Mint(ctx, order)
	if left >= 0 && err == nil {
		return broker.Credential{}, broker.ErrVaultUnavailable
	}
	return credential, err
}

// history is the list of calls on one object.
type history struct {
	mu    sync.Mutex
	calls []call
}

func (h *history) add(c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// all returns the calls so far.
func (h *history) all() []call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// make runs a call that returns its outcome, and returns it with its times. An empty outcome means that the call certainly had no
// effect and shows nothing.
func (w *world) make(does, who string, on int, do func(ctx context.Context) string) call {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := call{does: does, who: who, on: on, from: int64(time.Since(w.start))}
	c.got = do(ctx)
	c.to = int64(time.Since(w.start))
	w.tally.add(c)
	return c
}

// answered returns ok if there was no error, the mapped outcome if the server's answer rules out an effect, and unknown
// otherwise.
func answered(err error, ok string, refused map[openapi.ProblemCode]string) string {
	var problem *client.Problem
	switch {
	case err == nil:
		return ok
	case !errors.As(err, &problem):
		return unknown
	case refused[problem.Code] != "":
		return refused[problem.Code]
	case problem.Status < http.StatusInternalServerError:
		return "" // for example, too many calls at once
	}
	return unknown
}

// asker is the service that introspects tokens.
type asker struct {
	http *http.Client
	url  [2]string
}

func (w *world) asker(t *testing.T) asker {
	t.Helper()
	return asker{w.stack.HTTP(t, w.stack.X509(t, service)), [2]string{w.at(0).URL + "/oauth2/introspect", w.at(1).URL + "/oauth2/introspect"}}
}

// active introspects a token at a replica.
func (a asker) active(ctx context.Context, on int, raw string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url[on], strings.NewReader(url.Values{"token": {raw}}.Encode()))
	if err != nil {
		return ""
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := a.http.Do(req)
	if err != nil {
		return unknown
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil || resp.StatusCode >= http.StatusInternalServerError:
		return unknown
	case resp.StatusCode != http.StatusOK:
		return ""
	case strings.Contains(string(text), `"active":true`):
		return "active"
	}
	return "inactive"
}

// tally counts the outcomes of calls, so that a run shows whether it has tried anything.
type tally struct {
	mu    sync.Mutex
	calls map[string]int
}

func (t *tally) add(c call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls == nil {
		t.calls = map[string]int{}
	}
	t.calls[c.does+" "+cmp.Or(c.got, "turned away")]++
}

// Each line lists alternatives. inEach are the outcomes that every seed must have. inSome are those that some of enough seeds
// must have, whatever the faults. A model checks something only if the history has calls that took effect.
var (
	inEach = [][]string{
		{"issue issued"},
		{"ask active"},
		{"ask inactive"},
		{"use active"},
		{"use inactive"},
		{"request pending"},
		{"approve approved", "approve redeemed", "deny rejected", "withdraw withdrawn"},
	}
	inSome = [][]string{
		{"issue denied"},
		{"issue conflict"},
		{"issue mismatch"},
		{"issue unknown"},
		{"ask unknown"},
		{"release done"},
		{"revoke done"},
		{"end task done"},
		{"quarantine done"},
		{"lift done"},
		{"approve approved"},
		{"approve decided"},
		{"deny rejected"},
		{"stranger refused"},
		{"redeem token"},
		{"redeem pending"},
		{"redeem refused"},
		{"redeem unknown"},
		{"look redeemed"},
	}
	// together counts the outcomes of the calls of all seeds.
	together tally
)

// enough is a number of seeds that have each outcome of inSome.
const enough = 20

// tried fails the test for each line of want with no outcome among the calls.
func tried(t *testing.T, calls *tally, want [][]string) {
	t.Helper()
	for _, one := range want {
		if !slices.ContainsFunc(one, func(what string) bool { return calls.calls[what] > 0 }) {
			t.Errorf("nothing was tried: no call came to %s", strings.Join(one, ", or "))
		}
	}
}

// join adds the counts of another tally.
func (t *tally) join(other *tally) {
	if t.calls == nil {
		t.calls = map[string]int{}
	}
	for what, n := range other.calls {
		t.calls[what] += n
	}
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(t.calls)) {
		lines = append(lines, fmt.Sprintf("%s: %d", what, t.calls[what]))
	}
	return strings.Join(lines, ", ")
}
