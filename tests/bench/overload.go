package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// overload holds the results when ten times as many sandboxes send requests as the broker can serve.
type overload struct {
	// Capacity is the rate without overload. Goodput is the rate of issues under overload, as a fraction of Capacity.
	Capacity float64 `json:"capacity"`
	Goodput  float64 `json:"goodput"`
	// Turned is the number of requests that were turned away. The others are latencies at p99, in microseconds.
	Turned        int   `json:"turned_away"`
	TurnedP99     int64 `json:"turned_away_p99_us"`
	IssuedP99     int64 `json:"issued_p99_us"`
	RevokedP99    int64 `json:"revoked_p99_us"`
	IntrospectP99 int64 `json:"introspected_p99_us"`
	// Recovered is the time until the rate is at nine tenths of the capacity again, in milliseconds.
	Recovered int64 `json:"recovered_ms"`
	Memory    int64 `json:"memory_bytes"`
}

// watched collects the latencies of one kind of call.
type watched struct {
	mu   sync.Mutex
	took []time.Duration
}

func (w *watched) add(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, took)
}

func (w *watched) p99() int64 {
	slices.Sort(w.took)
	return load{took: w.took}.at(0.99).Microseconds()
}

// overloaded runs ten times as many sandboxes as the measured capacity needs. Each retries after the time that Retry-After
// gives. During that time another caller revokes and introspects tokens.
func (d *deployment) overloaded(ctx context.Context, connections int, lasts time.Duration) (overload, error) {
	few, err := d.sandboxes(connections, d.url)
	if err != nil {
		return overload{}, err
	}
	before := d.closed(ctx, few, max(lasts/12, time.Second))
	if err := before.check(); err != nil {
		return overload{}, err
	}
	out := overload{Capacity: before.rate()}
	held, err := d.tokens(ctx, int(lasts/endEvery)+1)
	if err != nil {
		return out, err
	}
	var issued, turned, revoked, introspected watched
	var failed atomic.Pointer[error]
	var waiting []call
	for i := range 10 * connections {
		ask, err := d.patient(ctx, i, &issued, &turned)
		if err != nil {
			return out, err
		}
		waiting = append(waiting, ask)
	}
	busy, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var all sync.WaitGroup
	for _, ask := range waiting {
		all.Go(func() {
			if err := ask(busy); err != nil && busy.Err() == nil {
				failed.Store(&err)
			}
		})
	}
	began := time.Now()
	all.Go(func() {
		if err := d.end(busy, held, &revoked, &introspected); err != nil && busy.Err() == nil {
			failed.Store(&err)
		}
	})
	all.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return out, *err
	}
	out.Goodput = float64(len(issued.took)) / took.Seconds() / out.Capacity
	out.Turned, out.TurnedP99, out.IssuedP99 = len(turned.took), turned.p99(), issued.p99()
	out.RevokedP99, out.IntrospectP99 = revoked.p99(), introspected.p99()
	out.Recovered, err = d.recovers(ctx, few, out.Capacity)
	_, out.Memory = d.memory()
	return out, err
}

// sometime waits for d, and then for up to a second more, so that sandboxes do not act in step.
func sometime(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d + rand.N(time.Second)): //nolint:gosec // nobody gains by guessing it
	}
}

// patient returns a sandbox that has a connection and has sent one request. It sends requests until ctx ends, and waits
// when it is turned away.
func (d *deployment) patient(ctx context.Context, i int, issued, turned *watched) (call, error) {
	trust, err := d.proved(agent(i))
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(read)
	ask := asking(trust, http.MethodPost, d.url+"/v1/tokens", http.Header{})
	if first, failed := ask(ctx, body); failed != nil || first.status != http.StatusCreated {
		return nil, errors.Join(err, failed, fmt.Errorf("asking before the load: status %d: %.300s", first.status, first.body))
	}
	return func(ctx context.Context) error {
		for sometime(ctx, 0); ctx.Err() == nil; {
			began := time.Now()
			got, err := ask(context.WithoutCancel(ctx), body)
			switch took := time.Since(began); {
			case err != nil:
				return err
			case got.status == http.StatusCreated:
				issued.add(took)
			case got.status == http.StatusServiceUnavailable, got.status == http.StatusTooManyRequests:
				turned.add(took)
				seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
				sometime(ctx, time.Duration(max(seconds, 1))*time.Second)
			default:
				return fmt.Errorf("asking under load: status %d: %.300s", got.status, got.body)
			}
		}
		return ctx.Err()
	}, err
}

// endEvery is the interval between revocations under load.
const endEvery = 200 * time.Millisecond

// token is a credential that exists to be introspected or revoked.
type token struct{ ID, Token string }

func (d *deployment) tokens(ctx context.Context, n int) ([]token, error) {
	trust, err := d.proved(agent(0))
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string]any{"scope": "bench.read", "params": read["params"], "task": "bench", "ttl": 300})
	if err != nil {
		return nil, err
	}
	ask := asking(trust, http.MethodPost, d.url+"/v1/tokens", http.Header{})
	all := make([]token, n)
	for i := range all {
		got, err := ask(ctx, body)
		if err = errors.Join(err, json.Unmarshal(got.body, &all[i])); err != nil || got.status != http.StatusCreated {
			return nil, fmt.Errorf("asking for what is revoked: status %d: %w", got.status, err)
		}
	}
	return all, nil
}

// end revokes one token after the other until ctx ends, and introspects each before and after its revocation.
func (d *deployment) end(ctx context.Context, held []token, revoked, introspected *watched) error {
	officer, err := d.proved(spiffeid.RequireFromString("spiffe://" + domain + "/ops/admin"))
	if err != nil {
		return err
	}
	holder, err := d.proved(agent(0))
	if err != nil {
		return err
	}
	revoke := asking(officer, http.MethodPost, d.url+"/v1/revocations", http.Header{})
	introspect := asking(holder, http.MethodPost, d.url+"/oauth2/introspect", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}})
	whole := context.WithoutCancel(ctx)
	for _, h := range held {
		for _, want := range []bool{true, false} {
			began := time.Now()
			got, err := introspect(whole, []byte("token="+h.Token))
			introspected.add(time.Since(began))
			var is struct{ Active bool }
			if err = errors.Join(err, json.Unmarshal(got.body, &is)); err != nil || is.Active != want {
				return fmt.Errorf("introspecting under load: got %.300s, want active %t: %w", got.body, want, err)
			}
			if !want {
				break
			}
			body, err := json.Marshal(map[string]any{"id": h.ID, "reason": "measured"})
			if err != nil {
				return err
			}
			began = time.Now()
			got, err = revoke(whole, body)
			revoked.add(time.Since(began))
			if err != nil || got.status != http.StatusOK {
				return fmt.Errorf("revoking under load: status %d: %.300s: %w", got.status, got.body, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(endEvery):
		}
	}
	return nil
}

// recovers measures the time until the rate is nine tenths of the capacity again.
func (d *deployment) recovers(ctx context.Context, callers []call, capacity float64) (int64, error) {
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < time.Minute; {
		if l := d.closed(ctx, callers, time.Second); l.rate() >= 0.9*capacity {
			return time.Since(began).Milliseconds(), nil
		}
	}
	return 0, errors.Join(errors.New("the rate is not what it was after a minute"), ctx.Err())
}

func (o overload) print(out io.Writer) {
	fmt.Fprintf(out, "overload: %.0f%% of the capacity of %.0f/s; issued in %s at p99; %d turned away, in %s at p99; revoked in %s, introspected in %s at p99; as before after %s; %d MiB at most\n",
		100*o.Goodput, o.Capacity, shown(o.IssuedP99), o.Turned, shown(o.TurnedP99), shown(o.RevokedP99), shown(o.IntrospectP99),
		time.Duration(o.Recovered)*time.Millisecond, o.Memory>>20)
}
