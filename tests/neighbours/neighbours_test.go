// Package neighbours_test lets one tenant be loud in every way that costs nothing, and measures what others wait meanwhile: another
// sandbox, another trust domain, an admin, an auditor, and a person who votes. `make neighbours` runs it.
package neighbours_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/jackc/pgx/v5"
)

const (
	// quietFor and loudFor are how long the victims are measured without and with a loud caller.
	quietFor, loudFor = 5 * time.Second, 8 * time.Second
	// between is the pause of a victim between two calls.
	between = 50 * time.Millisecond
)

// victim is somebody who must not notice that others are loud.
type victim struct {
	name string
	call func(ctx context.Context) error
	rest time.Duration // more than between, if the victim has a limit of its own
}

// loud is what one tenant does from many connections.
type loud struct {
	name    string
	callers int
	// call makes one call. Its error is not looked at: the loud caller is refused most of the time.
	call func(ctx context.Context, caller, n int)
	ends bool // the limit for ends of tasks applies
}

// TestNeighboursAreNotDelayed is T11: it runs every loud caller against all victims at once, so each pair is one row.
func TestNeighboursAreNotDelayed(t *testing.T) {
	w := newWorld(t)
	victims := w.victims(t)
	idle := w.measure(t, victims, quietFor, nil)
	for _, v := range victims {
		t.Logf("idle: %s: p99 %s of %d calls", v.name, p99(idle[v.name].took), len(idle[v.name].took))
	}
	for _, l := range w.louds(t) {
		t.Run(l.name, func(t *testing.T) {
			before := w.entries(t)
			var calls atomic.Int64
			got := w.measure(t, victims, loudFor, func(ctx context.Context) {
				var all sync.WaitGroup
				for caller := range l.callers {
					all.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							l.call(ctx, caller, n)
							calls.Add(1)
						}
					})
				}
				all.Wait()
			})
			after := w.entries(t)
			t.Logf("%d loud calls left %d entries", calls.Load(), after-before)
			for _, v := range victims {
				t.Run(v.name, func(t *testing.T) {
					most := 3*p99(idle[v.name].took) + 100*time.Millisecond
					if l.ends {
						most = 500 * time.Millisecond
					}
					m := got[v.name]
					if len(m.took) < 5 || p99(m.took) > most || len(m.failed) > 0 {
						t.Errorf("p99 %s of %d calls, want at most %s, and no failure: %v", p99(m.took), len(m.took), most, m.failed)
					}
					t.Logf("p99 %s of %d calls", p99(m.took), len(m.took))
				})
			}
			time.Sleep(time.Second) // what is in flight ends
		})
	}
	w.s[0].DB.Check(t)
}

// measured is what a victim saw.
type measured struct {
	took   []time.Duration
	failed []string
}

// measure lets all victims call for a while, next to what makes the noise.
func (w *world) measure(t *testing.T, victims []victim, lasts time.Duration, noise func(context.Context)) map[string]*measured {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var all, noisy sync.WaitGroup
	if noise != nil {
		noisy.Go(func() { noise(ctx) })
		time.Sleep(500 * time.Millisecond)
	}
	got := map[string]*measured{}
	for _, v := range victims {
		m := &measured{}
		got[v.name] = m
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := v.call(context.WithoutCancel(ctx))
				m.took = append(m.took, time.Since(began))
				if err != nil && len(m.failed) < 3 {
					m.failed = append(m.failed, err.Error())
				}
				time.Sleep(max(between, v.rest))
			}
		})
	}
	all.Wait()
	stop()
	noisy.Wait()
	return got
}

func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*99)/100]
}

// TestDeniedRequestsLeaveCounts sends 10,000 requests that policy denies, and checks that the record has few entries for them (T11), which add
// up to the exact number (I12).
func TestDeniedRequestsLeaveCounts(t *testing.T) {
	w := newWorld(t)
	before := w.entries(t)
	c := w.s[0].Client(t, loudSandbox)
	const all, callers = 10_000, 32
	var sent, denied atomic.Int64
	var callersDone sync.WaitGroup
	began := time.Now()
	for range callers {
		callersDone.Go(func() {
			for sent.Add(1) <= all {
				if _, err := c.Request(t.Context(), client.Ask{Scope: "clock.forbidden", Task: "t"}); code(err) == openapi.CodeDenied {
					denied.Add(1)
				}
			}
		})
	}
	callersDone.Wait()
	took := time.Since(began)
	if denied.Load() != all {
		t.Errorf("got %d denials, want %d", denied.Load(), all)
	}
	if err := w.s[0].Broker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var entries, counted int64
	if err := w.conn.QueryRow(t.Context(), `
		SELECT count(*), sum(CASE WHEN kind = 'request.denied' THEN 1 ELSE (convert_from(body, 'UTF8')::jsonb ->> 'suppressed')::bigint END)
		FROM entries WHERE index >= $1`, before).Scan(&entries, &counted); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d denied requests in %s left %d entries", all, took.Round(time.Millisecond), entries)
	if entries > 100 || counted != all {
		t.Errorf("got %d entries that count %d requests, want at most 100 that count %d", entries, counted, all)
	}
	w.s[0].DB.Check(t)
}

func (w *world) entries(t *testing.T) (n int64) {
	t.Helper()
	if err := w.conn.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// world is a deployment of two replicas with two trust domains.
type world struct {
	s    [2]*testkit.Stack
	conn *pgx.Conn
	next atomic.Int64
}

func (w *world) name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, w.next.Add(1)) }
