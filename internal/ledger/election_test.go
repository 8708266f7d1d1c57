package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// reign is one leadership: its term, its context, and how to end it.
type reign struct {
	term int64
	ctx  context.Context //nolint:containedctx // a test looks at it from outside
	end  chan error
}

// run competes for the leadership and reports each one that it gets.
func run(ctx context.Context, l *ledger.Ledger) (reigns chan reign, result chan error) {
	reigns, result = make(chan reign, 1), make(chan error, 1)
	go func() {
		result <- l.AcquireLeadership(ctx, func(ctx context.Context, term int64) error {
			r := reign{term, ctx, make(chan error, 1)}
			reigns <- r
			select {
			case err := <-r.end:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	return reigns, result
}

func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(time.Minute):
		t.Fatalf("it did not come to pass: %s", what)
		panic("unreachable")
	}
}

// depose ends the sessions that hold the leadership.
func depose(t *testing.T, owner *pgx.Conn) {
	t.Helper()
	exec(t, owner, `
		SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND a.usename LIKE current_database() || '%'`)
}

func TestOneLeads(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, firstEnd := run(ctx, db.Ledger(t))
	one := within(t, "the first leads", first)
	second, secondEnd := run(ctx, db.Ledger(t))
	watch := testkit.Connect(t, db.AdminURL)
	until(t, "the second has tried", func() bool {
		var tried bool
		err := watch.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename LIKE current_database() || '%' AND state = 'idle'
				AND query LIKE '%pg_try_advisory_lock%')`).Scan(&tried)
		return err == nil && tried
	})
	if len(second) > 0 {
		t.Fatal("two lead")
	}
	done := errors.New("done")
	one.end <- done
	if err := within(t, "the first returns", firstEnd); !errors.Is(err, done) {
		t.Errorf("got %v, want what the leader returned", err)
	}
	began := time.Now()
	two := within(t, "the second leads", second)
	if took := time.Since(began); took > 10*time.Second || two.term <= one.term {
		t.Errorf("got term %d after %d, after %s", two.term, one.term, took)
	}
	third, thirdEnd := run(ctx, db.Ledger(t))
	cancel()
	for name, end := range map[string]chan error{"the leader": secondEnd, "a candidate": thirdEnd} {
		if err := within(t, name+" returns", end); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", name, err)
		}
	}
	if len(third) > 0 {
		t.Error("a candidate led whose context had ended")
	}
}

// A leader whose session ends is notified, another one leads, and later outcomes of the first are refused.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, other, owner := db.Ledger(t), db.Ledger(t), testkit.Connect(t, db.AdminURL)
	rec := bring(t, l, "database", []broker.Status{broker.StatusUnknown}, nil)
	first, firstEnd := run(t.Context(), l)
	old := within(t, "the first leads", first)
	fenced := bring(t, l, "database", nil, nil)
	out := to(fenced, broker.StatusCompensated)
	out.Term = old.term
	settle(t, l, out)
	depose(t, owner)
	began := time.Now()
	<-old.ctx.Done()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the leader was told after %s", took)
	}
	if err := within(t, "the first returns", firstEnd); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want ErrLedgerUnavailable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second, secondEnd := run(ctx, other)
	now := within(t, "the second leads", second)
	for _, term := range []int64{old.term, now.term + 1, -1} {
		out := to(rec, broker.StatusCompensated)
		out.Term = term
		if err := l.RecordOutcome(t.Context(), out); !errors.Is(err, broker.ErrNotForward) {
			t.Errorf("term %d while %d leads: got %v, want ErrNotForward", term, now.term, err)
		}
	}
	if got := get(t, l, rec.ID).Status; got != broker.StatusUnknown {
		t.Errorf("got %s after a move that was refused", got)
	}
	out = to(rec, broker.StatusCompensated)
	out.Term = now.term
	settle(t, other, out)
	now.end <- nil
	if err := within(t, "the second returns", secondEnd); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	db.Check(t)
}

// Each schema of one database has a leader.
func TestEachSchemaHasItsLeader(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var ends []chan error
	for range 2 {
		reigns, end := run(ctx, testkit.NewDB(t).Ledger(t))
		within(t, "one leads each", reigns)
		ends = append(ends, end)
	}
	cancel()
	for _, end := range ends {
		within(t, "they return", end)
	}
}
