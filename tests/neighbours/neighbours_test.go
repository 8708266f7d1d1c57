// Package neighbours_test lets one tenant be loud in every way that costs nothing, and measures what others wait meanwhile: another
// sandbox, another trust domain, an admin, an auditor, and a person who votes. `make neighbours` runs it.
package neighbours_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// quietFor and loudFor are how long the victims are measured without and with a loud caller.
	quietFor, loudFor = 5 * time.Second, 8 * time.Second
	// between is the pause of a victim between two calls.
	between = 50 * time.Millisecond
	// maxRepeats is how many loud callers are measured a second time in all. With few calls a p99 is the slowest of them, and another
	// program on the same machine can delay one.
	maxRepeats = 4
	// attempts is how many entries one caller may leave about what issues nothing: its budget, its share of a minute, and counts.
	attempts = 50 + 10
	// sampled is how many entries strangers may leave: fifty each second, and fifty at once.
	sampled = 50 * (int64(loudFor/time.Second) + 3)
)

// victim is somebody who must not notice that others are loud.
type victim struct {
	name string
	// before prepares a call, if it needs that. It is not measured, but may not fail.
	before func(ctx context.Context) error
	call   func(ctx context.Context) error
	rest   time.Duration // more than between, if the victim has a limit of its own
}

// TestNeighboursAreNotDelayed is T11: it runs every loud caller against all victims at once, so each pair is one row. An error of a
// victim, such as a 429 or a 503, fails its row.
func TestNeighboursAreNotDelayed(t *testing.T) {
	w := newWorld(t)
	victims, at := w.victims(t), w.site(t)
	louds, err := louds(at)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.measure(t, victims, time.Second, nil) // opens connections
	first := w.measure(t, victims, quietFor, nil)
	for _, v := range victims {
		t.Logf("idle: %s: p99 %s of %d calls", v.name, p99(first[v.name].took), len(first[v.name].took))
	}
	repeats := 0
	for _, l := range louds {
		t.Run(l.name, func(t *testing.T) {
			idle, got := first, w.beside(t, victims, l, at)
			if slow := tooSlow(victims, l, idle, got); slow != "" && repeats < maxRepeats {
				repeats++
				t.Logf("measured again: %s", slow)
				idle = w.measure(t, victims, quietFor, nil)
				again := w.beside(t, victims, l, at)
				for _, v := range victims {
					again[v.name].failed = append(again[v.name].failed, got[v.name].failed...)
				}
				got = again
			}
			for _, v := range victims {
				t.Run(v.name, func(t *testing.T) {
					m, most := got[v.name], allowed(v, l, idle)
					t.Logf("p99 %s of %d calls, with at most %s", p99(m.took), len(m.took), most)
					if len(m.took) < 15 || p99(m.took) > most || len(m.failed) > 0 {
						t.Errorf("got p99 %s of %d calls, want at most %s of 15 calls or more, and no failure: %v", p99(m.took), len(m.took), most, m.failed)
					}
				})
			}
		})
	}
	w.s[0].DB.Check(t)
}

// allowed returns how long a victim's calls may take.
func allowed(v victim, l loud, idle map[string]*measured) time.Duration {
	if l.ends {
		return 500 * time.Millisecond
	}
	return 3*p99(idle[v.name].took) + 100*time.Millisecond
}

// tooSlow names the victims whose calls took longer than allowed.
func tooSlow(victims []victim, l loud, idle, got map[string]*measured) string {
	var slow []string
	for _, v := range victims {
		if took := p99(got[v.name].took); took > allowed(v, l, idle) {
			slow = append(slow, fmt.Sprintf("%s had p99 %s", v.name, took))
		}
	}
	return strings.Join(slow, ", ")
}

// beside measures the victims beside a loud caller, and checks how many entries that leaves.
func (w *world) beside(t *testing.T, victims []victim, l loud, at site) map[string]*measured {
	t.Helper()
	before := w.entries(t)
	var did noise
	var err error
	got := w.measure(t, victims, loudFor, func(ctx context.Context) { did, err = l.run(context.WithoutCancel(ctx), at) })
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // what is in flight ends
	most := int64(attempts)
	if l.entries != nil {
		// A call that was cut off at the end may have left an entry too.
		most = l.entries(did.Done + int64(l.callers))
	}
	left := w.entriesOf(t, before)
	t.Logf("%d loud calls, of which %d succeeded, left %d entries of at most %d", did.Calls, did.Done, left, most)
	if left > most {
		t.Errorf("got %d entries of %d loud calls, want at most %d", left, did.Calls, most)
	}
	return got
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
				var err error
				if v.before != nil {
					err = v.before(context.WithoutCancel(ctx))
				}
				if err == nil {
					began := time.Now()
					err = v.call(context.WithoutCancel(ctx))
					m.took = append(m.took, time.Since(began))
				}
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

// TestRefusalsAreCountedExactly sends requests that policy denies, calls that are refused, and handshakes, and checks that the record has
// few entries for them (T11), which add up to the exact number (I12).
func TestRefusalsAreCountedExactly(t *testing.T) {
	w := newWorld(t)
	s, before := w.s[0], w.entries(t)
	self := unknown(selfSigned(t))
	kinds := []struct {
		name  string
		calls int64
		want  openapi.ProblemCode
		call  func(ctx context.Context, c *client.Client) error
	}{
		{"denied", 10_000, openapi.CodeDenied, func(ctx context.Context, c *client.Client) error {
			_, err := c.Request(ctx, client.Ask{Scope: "clock.forbidden", Task: "t"})
			return err
		}},
		{"unknown scope", 2000, openapi.CodeDenied, func(ctx context.Context, c *client.Client) error {
			_, err := c.Request(ctx, client.Ask{Scope: "clock.unknown", Task: "t"})
			return err
		}},
		{"not found", 2000, openapi.CodeNotFound, func(ctx context.Context, c *client.Client) error {
			_, err := c.Issuance(ctx, uuid.NewString())
			return err
		}},
		{"not allowed", 2000, openapi.CodeNotAllowed, func(ctx context.Context, c *client.Client) error {
			_, err := c.Checkpoint(ctx)
			return err
		}},
		{"handshake", 500, "", func(ctx context.Context, _ *client.Client) error {
			handshake(ctx, self, host(s.URL))
			return nil
		}},
	}
	for n, kind := range kinds {
		c := s.Client(t, fmt.Sprintf("%s%d", loudOnes, n))
		var sent, other atomic.Int64
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for sent.Add(1) <= kind.calls {
					if code(kind.call(t.Context(), c)) != kind.want {
						other.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if other.Load() != 0 {
			t.Errorf("%s: got %d other answers, want none", kind.name, other.Load())
		}
	}
	if err := s.Broker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			who := fmt.Sprintf("%s%d", loudOnes, n)
			if kind.want == "" {
				who = ""
			}
			var entries, counted int64
			if err := w.conn.QueryRow(t.Context(), `
				SELECT count(*), coalesce(sum(CASE
					WHEN kind = 'request.denied' THEN 1
					WHEN doc ->> 'code' = 'suppressed' THEN (doc ->> 'suppressed')::bigint
					ELSE 1 + coalesce((doc ->> 'suppressed')::bigint, 0) END), 0)
				FROM entries, LATERAL (SELECT convert_from(body, 'UTF8')::jsonb AS doc) AS parsed
				WHERE index >= $1 AND coalesce(doc #>> '{subject,spiffe_id}', '') = $2`, before, who).Scan(&entries, &counted); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d calls left %d entries", kind.calls, entries)
			most := int64(attempts)
			if who == "" {
				most = 500 // those of strangers: fifty each second
			}
			if entries > most || counted != kind.calls {
				t.Errorf("got %d entries that count %d calls, want at most %d that count %d", entries, counted, most, kind.calls)
			}
		})
	}
	s.DB.Check(t)
}

func (w *world) entries(t *testing.T) (n int64) {
	t.Helper()
	if err := w.conn.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// entriesOf returns how many entries from an index on are about loud callers or strangers.
func (w *world) entriesOf(t *testing.T, from int64) (n int64) {
	t.Helper()
	if err := w.conn.QueryRow(t.Context(), `
		SELECT count(*) FROM entries WHERE index >= $1 AND (position($2::bytea IN body) > 0
			OR kind = 'call.refused' AND position('"spiffe_id"'::bytea IN body) = 0)`, from, []byte(loudOnes)).Scan(&n); err != nil {
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
