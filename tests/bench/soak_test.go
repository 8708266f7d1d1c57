package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	soakFor   = flag.Duration("soak", 20*time.Second, "how long the soak lasts")
	soakEvery = flag.Duration("every", 5*time.Second, "how often something goes wrong in it")
	soakSeed  = flag.Uint64("seed", 1, "what is drawn in it; 0 draws that too")
	soakLog   = flag.String("log", os.DevNull, "file for what the replicas log meanwhile")
)

var passed, failed atomic.Int64

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	os.Exit(testkit.Ended(code, int(passed.Load()), int(failed.Load())))
}

const (
	// soakLoad is the fraction of the replicas' capacity that the test uses.
	soakLoad    = 0.6
	soakCallers = 64
	millis      = "15:04:05.000"
	// loginEvery is the interval between database logins at each replica.
	loginEvery = time.Second
	// grace is the time after a fault during which failures are still excused.
	grace = 5 * time.Second
)

// soak runs two replicas under load and injects one fault after the other. The first replica is never restarted, so that
// its resources can be followed from the beginning to the end.
type soak struct {
	*deployment
	random  *rand.Rand
	relays  [2]*testkit.Relay // between each replica and Postgres
	journal journal
	// handed holds the ids of issued credentials, which must be on record.
	handed handed
	ended  ended
	taken  []taken
}

// TestSoak runs two replicas at three fifths of their capacity and injects faults repeatedly. It then checks that each
// failure happened during a fault or soon after, that no response was ever false, that the first replica's resources have
// not grown, and that the ledger holds (I1, I2, I6, I8, I10, I13). `make soak` runs it for an hour.
func TestSoak(t *testing.T) {
	seed := cmp.Or(*soakSeed, rand.Uint64())
	fmt.Fprintf(os.Stderr, "soak: seed %d\n", seed)
	s := newSoak(t, rand.New(rand.NewPCG(seed, 0)))
	callers, logins := s.callers(t)
	s.closed(t.Context(), callers, 2*time.Second) // warms up
	capacity := s.closed(t.Context(), callers, 5*time.Second).rate()
	fmt.Fprintf(os.Stderr, "soak: two replicas answer %.0f calls a second; %.0f are asked for\n", capacity, soakLoad*capacity)
	var calm wrong
	for began, n := time.Now(), 1; time.Since(began) < *soakFor; n++ {
		row(t, fmt.Sprintf("fault %d", n), func(t *testing.T) { calm = s.round(t, callers, logins, soakLoad*capacity, calm) })
	}
	row(t, "memory", func(t *testing.T) { s.flat(t, "bytes of memory", func(v taken) float64 { return v.memory }, 16<<20) })
	row(t, "goroutines", func(t *testing.T) { s.flat(t, "goroutines", func(v taken) float64 { return v.goroutines }, 8) })
	row(t, "files", func(t *testing.T) { s.flat(t, "open files", func(v taken) float64 { return v.files }, 4) })
	row(t, "record", s.onRecord)
	row(t, "states", s.finished)
	row(t, "ledger", func(t *testing.T) { testkit.CheckLedger(t, s.database()) })
}

// row runs one row of the suite's result.
func row(t *testing.T, name string, do func(t *testing.T)) {
	t.Helper()
	if t.Run(name, do) {
		passed.Add(1)
	} else {
		failed.Add(1)
	}
}

func newSoak(t *testing.T, random *rand.Rand) *soak {
	t.Helper()
	log, err := os.Create(*soakLog)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	d, err := prepare(t.Context(), built(t), asBuilt())
	if err != nil {
		t.Fatal(err)
	}
	d.log = log
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	s := &soak{deployment: d, random: random}
	for i := range s.relays {
		var through string
		s.relays[i], through = testkit.RelayTo(t, d.servers.Postgres.TCPURL())
		if _, err := d.serveFrom(context.WithoutCancel(t.Context()), through); err != nil {
			t.Fatal(err)
		}
	}
	d.url = d.brokers[0].url
	return s
}

// wrong is a fault with the period during which it lasted.
type wrong struct {
	fault
	from, until time.Time
}

// round runs the load for one period: some time without a fault, then one fault, then the rest until the next period. It
// fails the test if a call fails without an excuse.
func (s *soak) round(t *testing.T, callers, logins []call, rate float64, last wrong) wrong {
	t.Helper()
	began, over := time.Now(), make(chan struct{})
	var now wrong
	var acting sync.WaitGroup
	acting.Go(func() {
		defer close(over)
		<-time.After(max(*soakEvery/2, time.Until(last.until.Add(grace)))) // earlier failures are over, and some time has passed without a fault
		s.take(t)
		now = s.goWrong(t)
		<-time.After(time.Until(began.Add(*soakEvery)))
	})
	for _, login := range logins {
		acting.Go(func() { each(t.Context(), loginEvery, over, login) })
	}
	l := s.measure(t.Context(), callers, steady(rate, over))
	acting.Wait()
	excused := 0
	for _, f := range s.journal.empty() {
		if f.excused(last) || f.excused(now) {
			excused++
			continue
		}
		t.Errorf("from %s to %s, while or after %s, at %s to %s: %v",
			f.from.Format(millis), f.to.Format(millis), now.what, now.from.Format(millis), now.until.Format(millis), f.err)
	}
	if slowest := l.at(1); now.bites && excused == 0 && slowest < now.until.Sub(now.from)/2 {
		t.Errorf("%s, and nobody noticed: the slowest call took %s", now.what, slowest)
	}
	if asked := float64(len(l.took)+excused) / l.elapsed.Seconds(); len(l.took) < excused || asked < rate/10 {
		t.Errorf("%d calls succeeded and %d failed in %s: that is no load", len(l.took), excused, l.elapsed)
	}
	fmt.Fprintf(os.Stderr, "%s %-44s %6.0f/s p50 %-8s p99 %-8s %5d failed meanwhile; %s\n",
		began.Format(time.TimeOnly), now.what, l.rate(), shown(l.at(0.5).Microseconds()), shown(l.at(0.99).Microseconds()), excused, s.taken[len(s.taken)-1])
	return now
}

// steady makes calls arrive at a rate until over is closed. Calls that no caller was free to send within a second are
// dropped: agents do other things in that time.
func steady(rate float64, over <-chan struct{}) func() (time.Time, bool) {
	const patience = time.Second
	every := time.Duration(float64(time.Second) / rate)
	var mu sync.Mutex
	next := time.Now()
	return func() (time.Time, bool) {
		mu.Lock()
		if late := time.Since(next); late > patience {
			next = next.Add(late)
		}
		due := next
		next = next.Add(every)
		mu.Unlock()
		select {
		case <-over:
			return due, false
		case <-time.After(time.Until(due)):
			return due, true
		}
	}
}

// flat compares the first replica's lowest use of a resource in the first third of the run, without its first minutes, with
// the lowest use in the last third. A constant load can only add to what has leaked.
func (s *soak) flat(t *testing.T, what string, of func(taken) float64, most float64) {
	t.Helper()
	values := make([]float64, len(s.taken))
	for i, v := range s.taken {
		values[i] = of(v)
	}
	third := max(1, len(values)/3)
	if len(values) < 2 {
		t.Fatalf("%d samples are too few to compare", len(values))
	}
	rest := values[min(len(values)/6, len(values)-2*third):]
	first, last := slices.Min(rest[:third]), slices.Min(rest[len(rest)-third:])
	fmt.Fprintf(os.Stderr, "%s: %.0f at least in the first third, %.0f in the last one\n", what, first, last)
	if third < 10 { // with few samples, the load outweighs a leak
		most *= 4
	}
	if last-first > most {
		t.Errorf("%s grew from %.0f to %.0f, want %.0f more at most: %.0f", what, first, last, most, values)
	}
}
