package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// failoverCallers is the number of sandboxes that request credentials while the primary fails.
const failoverCallers = 64

// TestFailover crashes the Postgres that keeps the record and promotes its synchronous standby, while callers use two replicas. What
// was acknowledged must be in the record afterwards, nothing may be issued twice, and the replicas must serve again without a restart.
// Then the old primary comes back by mistake, and nothing may be written to it.
func TestFailover(t *testing.T) {
	pair := testkit.NewPair(t)
	w := newWorldOn(t, testkit.Options{DB: pair.DB})
	f := &failover{world: w, pair: pair, replicas: []*replica{w.startReplica(t, &fault{}, sweeping), w.startReplica(t, &fault{}, sweeping)}}
	t.Run("promotion", func(t *testing.T) {
		const what = "the primary Postgres crashes, and its synchronous standby is promoted"
		seen := "not all of it"
		t.Cleanup(func() { results.other(what, seen, !t.Failed()) })
		seen = f.promotion(t)
		w.check(t)
	})
	t.Run("the old primary returns", func(t *testing.T) {
		seen := "not all of it"
		t.Cleanup(func() { results.other("the old primary returns, and takes connections", seen, !t.Failed()) })
		seen = f.oldPrimary(t)
	})
	w.checkLater(t, "a failover")
}

type failover struct {
	*world
	pair     *testkit.Pair
	replicas []*replica

	mu     sync.Mutex
	issued []issue
}

// issue is a credential that a caller has received.
type issue struct {
	caller  int
	key, id string
	at      time.Time
	replica int
	body    []byte
}

// promotion returns what was seen.
func (f *failover) promotion(t *testing.T) string {
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for n := range failoverCallers {
		client := f.client(t, fmt.Sprintf("spiffe://acme.test/failover/agent-%d", n))
		callers.Go(func() { f.request(ctx, t, client, n) })
	}
	defer callers.Wait()
	defer stop()
	f.await(t, 5*time.Second, func(all []issue) bool { return len(all) >= 500 })
	f.pair.Primary.Crash()
	crashed := time.Now()
	pauseFor(ctx, time.Second) // for whoever notices the crash
	if err := f.pair.Standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	promoted := time.Now()
	var back [2]time.Duration
	for i := range f.replicas {
		back[i] = f.await(t, 10*time.Second, func(all []issue) bool {
			return slices.ContainsFunc(all, func(c issue) bool { return c.replica == i && c.at.After(promoted) })
		})
	}
	at := len(f.all())
	f.await(t, 10*time.Second, func(all []issue) bool { return len(all) >= at+500 })
	stop()
	callers.Wait()

	all := f.all()
	before := slices.IndexFunc(all, func(i issue) bool { return i.at.After(crashed) })
	f.judge(t, all)
	return fmt.Sprintf("%d callers, %d credentials issued before and %d after: all in the record, none twice; issuing again %s and %s after the promotion",
		failoverCallers, before, len(all)-before, back[0].Round(10*time.Millisecond), back[1].Round(10*time.Millisecond))
}

// request requests credentials under new idempotency keys. If a request fails, the caller repeats it at the other replica.
func (f *failover) request(ctx context.Context, t *testing.T, client *http.Client, n int) {
	for i := 0; ctx.Err() == nil; i++ {
		scope := "test.jwt"
		if n%16 == 0 {
			scope = "test.database"
		}
		body, err := json.Marshal(map[string]any{"scope": scope, "task": fmt.Sprintf("t-%d", i/10), "ttl": 60})
		if err != nil {
			t.Error(err)
			return
		}
		key := uuid.NewString()
		for at := n + i; ctx.Err() == nil; at++ {
			// A caller that has asked waits for the answer: otherwise nobody knows whether the credential has reached it.
			got, err := f.send(t.Context(), client, at%len(f.replicas), key, body)
			switch {
			case err != nil:
				t.Errorf("no answer: %v", err)
				return
			case got.has():
				f.inventory.deliver(got.ID)
				f.mu.Lock()
				f.issued = append(f.issued, issue{caller: n, key: key, id: got.ID, at: time.Now(), replica: at % len(f.replicas), body: body})
				f.mu.Unlock()
			case got.status == http.StatusServiceUnavailable:
				pauseFor(ctx, 100*time.Millisecond)
				continue
			case got.status == http.StatusConflict: // an attempt was recorded, and its credential was never released
			default:
				t.Errorf("got status %d %s", got.status, got.Code)
			}
			break
		}
	}
}

// send sends one request.
func (f *failover) send(ctx context.Context, client *http.Client, at int, key string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.replicas[at].url+"/v1/tokens", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	got := answer{status: resp.StatusCode}
	return got, json.NewDecoder(resp.Body).Decode(&got)
}

func (f *failover) all() []issue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.issued)
}

// await waits until what was issued satisfies a condition, and returns how long that took.
func (f *failover) await(t *testing.T, most time.Duration, enough func([]issue) bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !enough(f.all()) {
		if time.Since(began) > patience(most) {
			t.Fatalf("after %s, %d credentials are issued in all, and not enough", most, len(f.all()))
		}
		pauseFor(t.Context(), 20*time.Millisecond)
	}
	return time.Since(began)
}

// judge compares what callers received with the record of the new primary, and repeats the requests of the last minute: a key that
// returned a credential returns no other.
func (f *failover) judge(t *testing.T, all []issue) {
	t.Helper()
	if lost := (&load{world: f.world}).unrecorded(t); lost > 0 {
		t.Errorf("%d were delivered without a record (I1)", lost)
	}
	keys, ids := map[string]bool{}, map[string]bool{}
	for _, i := range all {
		if keys[i.key] || ids[i.id] {
			t.Errorf("a key or an id was issued twice: %s", i.id)
		}
		keys[i.key], ids[i.id] = true, true
	}
	clients := map[int]*http.Client{}
	for n, i := range all {
		if n%(1+len(all)/200) != 0 {
			continue
		}
		if clients[i.caller] == nil {
			clients[i.caller] = f.client(t, fmt.Sprintf("spiffe://acme.test/failover/agent-%d", i.caller))
		}
		if got, err := f.send(t.Context(), clients[i.caller], 0, i.key, i.body); err != nil || got.status != http.StatusConflict {
			t.Errorf("a repeated request got status %d %s, %v, want 409", got.status, got.Code, err)
		}
	}
}

// oldPrimary starts the old primary again, as a supervisor without fencing would. It takes connections that ask for a server to write
// to, and the replicas must not use it: it lacks what was recorded since.
func (f *failover) oldPrimary(t *testing.T) string {
	if err := f.pair.Primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Whatever comes after that may connect to either server, since both take writes.
	size := func(address string) (n int64) {
		t.Helper()
		conn := testkit.Connect(t, address)
		defer func() { _ = conn.Close(t.Context()) }()
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM entries`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	old := f.alone(t, f.pair.Primary.TCPURL())
	before := size(old)
	f.closeConnections(t)
	client := f.client(t, "spiffe://acme.test/failover/later")
	issued, refused := 0, 0
	for i := range 200 {
		body := fmt.Appendf(nil, `{"scope": "test.jwt", "task": "t-later", "ttl": 60}`)
		got, err := f.send(t.Context(), client, i%len(f.replicas), uuid.NewString(), body)
		switch {
		case err != nil:
			t.Errorf("no answer: %v", err)
		case got.has():
			f.inventory.deliver(got.ID)
			issued++
		case got.status == http.StatusServiceUnavailable:
			refused++
		default:
			t.Errorf("got status %d %s", got.status, got.Code)
		}
	}
	if after := size(old); after != before {
		t.Errorf("the old primary had %d entries and has %d now", before, after)
	}
	f.pair.Primary.Crash()
	if lost := (&load{world: f.world}).unrecorded(t); lost > 0 {
		t.Errorf("%d were delivered without a record (I1)", lost)
	}
	s := f.sandbox(t)
	for !s.ask(t.Context(), kindCalled("jwt")).has() {
		pauseFor(t.Context(), 100*time.Millisecond)
	}
	return fmt.Sprintf("of 200 requests, %d were issued by the new primary and %d were refused; nothing was added to the old one", issued, refused)
}

// alone returns the URL of the test's database at one server.
func (f *failover) alone(t *testing.T, server string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(f.pair.DB.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(server, "/brevet?", "/"+cfg.Database+"?search_path="+cfg.RuntimeParams["search_path"]+"&", 1)
}

// closeConnections makes the replicas connect again.
func (f *failover) closeConnections(t *testing.T) {
	t.Helper()
	conn := testkit.Connect(t, f.pair.Standby.TCPURL())
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'brevet'`); err != nil {
		t.Fatal(err)
	}
}
