package ledger_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

func limit(key string, count int, window time.Duration) broker.Limit {
	return broker.Limit{Limit: scopes.Limit{Per: scopes.PerSandbox, Count: count, Window: window}, Key: key}
}

func limitedBy(limits ...broker.Limit) func(*broker.Record) {
	return func(rec *broker.Record) { rec.Limits = limits }
}

// passes begins a record, and reports whether it was committed. Any result other than a commit or a limit fails the test.
func passes(t *testing.T, l *ledger.Ledger, rec broker.Record) (bool, *broker.Limited) {
	t.Helper()
	earlier, err := l.Begin(t.Context(), rec)
	var limited *broker.Limited
	if earlier != nil || (err != nil && !errors.As(err, &limited)) {
		t.Fatalf("Begin: got %v, %v", earlier, err)
	}
	return err == nil, limited
}

// later makes time pass for the limits.
func later(t *testing.T, owner *pgx.Conn, by time.Duration) {
	t.Helper()
	exec(t, owner, `UPDATE rate_limits SET tat = tat - $1::interval`, by)
}

// T9: replicas count requests together.
func TestLimitHoldsOverReplicas(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	var accepted, refused, free atomic.Int64
	var wg sync.WaitGroup
	for n := range 200 {
		wg.Go(func() {
			_, err := replicas[n%2].Begin(t.Context(), []func(func(*broker.Record)) broker.Record{allowed, pending}[n/2%2](
				ofSandbox(n, limitedBy(limit("crowded", 50, 24*time.Hour)))))
			switch {
			case err == nil:
				accepted.Add(1)
			case errors.Is(err, broker.ErrLimited):
				refused.Add(1)
			default:
				t.Errorf("Begin: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := replicas[n%2].Begin(t.Context(), denied(nil)); err == nil {
				free.Add(1)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 50 || refused.Load() != 150 || free.Load() != 200 {
		t.Errorf("got %d accepted, %d refused and %d without a limit, want 50, 150 and 200", accepted.Load(), refused.Load(), free.Load())
	}
	if got := len(db.Entries(t)); got != 250 {
		t.Errorf("got %d entries, want 250", got)
	}
	db.Check(t)
}

// The database must follow the definition of the algorithm, and both must do what a limit promises (T9).
func TestLimitsFollowTheAlgorithm(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
	const count, each = 5, time.Hour
	rule := limit("steady", count, count*each)
	random := rand.New(rand.NewPCG(1, 2)) // the same steps on each run
	var now, tat time.Duration
	var taken []time.Duration
	for range 120 {
		// Some steps are so long that the whole limit is free again.
		steps := []time.Duration{0, 0, 0, 17, 17, 34, 51, 17 * 22}
		if step := steps[random.IntN(len(steps))] * time.Minute; step > 0 {
			later(t, owner, step)
			now += step
		}
		next := max(tat, now) + each
		wait := next - now - count*each
		ok, limited := passes(t, l, allowed(limitedBy(rule)))
		if ok != (wait <= 0) {
			t.Fatalf("at %s: got %t, want a wait of %s", now, ok, wait)
		}
		if ok {
			tat, taken = next, append(taken, now)
			continue
		}
		// The test itself takes some time.
		if d := wait - limited.RetryAfter; d < 0 || d > time.Minute || limited.Limit != rule.Limit {
			t.Errorf("at %s: got %+v, want a wait of %s", now, limited, wait)
		}
	}
	for i, from := range taken {
		in := 0
		for _, at := range taken[i:] {
			if at < from+count*each {
				in++
			}
		}
		if in >= 2*count {
			t.Errorf("got %d in the window from %s", in, from)
		}
	}
	if most := count + int(now/each); len(taken) > most {
		t.Errorf("got %d in %s, want %d at most", len(taken), now, most)
	}
}

// A request counts against all of its limits or against none, and the error names the tightest one.
func TestLimitsCountTogether(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	narrow, wide := limit("narrow", 1, time.Hour), limit("wide", 3, 24*time.Hour)
	both := func(rec *broker.Record) { rec.Limits = []broker.Limit{wide, narrow} }
	begin(t, l, allowed(both))
	for range 5 {
		if ok, limited := passes(t, l, allowed(both)); ok || limited.Limit != narrow.Limit || limited.Record.ID != "" {
			t.Fatalf("got %t, %+v, want the narrow limit", ok, limited)
		}
	}
	begin(t, l, allowed(limitedBy(wide)), allowed(limitedBy(wide)))
	if ok, limited := passes(t, l, allowed(both)); ok || limited.Limit != wide.Limit || limited.Seconds() != 8*3600 {
		t.Errorf("got %t, %+v, want the wide limit and 8 h", ok, limited)
	}
	begin(t, l, allowed(limitedBy(limit("other", 1, time.Hour))))
	db.Check(t)
}

// A repeated key counts against no limit, and a limited request does not use up its key, within one commit too.
func TestRepeatedIdempotencyKeyIsNotRateLimited(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
	with := func(key string) broker.Record {
		return allowed(func(rec *broker.Record) {
			withKey(key)(rec)
			limitedBy(limit("keyed", 2, time.Hour))(rec)
		})
	}
	first := with("a")
	begin(t, l, first)
	for range 3 {
		if earlier, err := l.Begin(t.Context(), with("a")); err != nil || earlier == nil || earlier.ID != first.ID {
			t.Fatalf("got %v, %v, want the first record", earlier, err)
		}
	}
	begin(t, l, with("b"))
	if ok, _ := passes(t, l, with("c")); ok {
		t.Fatal("the third request passed")
	}
	if earlier, err := l.Begin(t.Context(), with("a")); err != nil || earlier == nil {
		t.Errorf("over the limit: got %v, %v for a key that is used", earlier, err)
	}
	for _, err := range batch(t, db, l, []broker.Record{with("c"), with("c"), with("c")}) {
		if !errors.Is(err, broker.ErrLimited) {
			t.Errorf("three in one commit: got %v, want ErrLimited", err)
		}
	}
	waiting, release := hold(t, db)
	var limited, fresh atomic.Int64
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			rec := with("c")
			if n%2 == 1 {
				rec = allowed(withKey("c")) // has no limit, so one of these gets the key
			}
			switch earlier, err := l.Begin(t.Context(), rec); {
			case errors.Is(err, broker.ErrLimited):
				limited.Add(1)
			case err != nil:
				t.Errorf("Begin: %v", err)
			case earlier == nil:
				fresh.Add(1)
			}
		})
	}
	waiting()
	release()
	wg.Wait()
	if fresh.Load() != 1 || limited.Load() > 10 {
		t.Errorf("got %d fresh and %d limited, want 1 and 10 at most", fresh.Load(), limited.Load())
	}
	later(t, owner, time.Hour)
	begin(t, l, with("d"))
	db.Check(t)
}
