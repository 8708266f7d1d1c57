package leader_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

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

func until(t *testing.T, what string, happens func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !happens(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

// get returns a record.
func get(t *testing.T, l *ledger.Ledger, id string) *broker.View {
	t.Helper()
	view, err := l.Get(t.Context(), id, broker.Reach{TrustDomains: []string{"acme.test"}})
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return view
}

func status(t *testing.T, l *ledger.Ledger) broker.LedgerStatus {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// depose ends the sessions that hold the leadership.
func depose(t *testing.T, owner *pgx.Conn) {
	t.Helper()
	_, err := owner.Exec(t.Context(), `
		SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND a.usename LIKE current_database() || '%'`)
	if err != nil {
		t.Fatal(err)
	}
}

// Any login of the database can take the lock of a leader. Then no replica leads, and the log and the status say so.
func TestForeignLockIsReported(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	reader := testkit.Connect(t, db.AuditorURL)
	if _, err := reader.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('brevet/sweeper/' || current_schema(), 0))`); err != nil {
		t.Fatal(err)
	}
	var log testkit.Buffer
	l, err := ledger.Open(t.Context(), ledger.Config{URL: db.BrokerURL, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	ctx, cancel := context.WithCancel(t.Context())
	reigns, ended := run(ctx, l)
	until(t, "the log names the login", func() bool { return strings.Contains(log.String(), "login="+reader.Config().User) })
	if s := status(t, l); s.Sweeper.Held || len(reigns) > 0 {
		t.Errorf("got %+v and %d leaders, want none", s.Sweeper, len(reigns))
	}
	_ = reader.Close(t.Context())
	within(t, "a replica leads", reigns)
	if s := status(t, l); !s.Sweeper.Held {
		t.Errorf("got %+v, want that a replica leads", s.Sweeper)
	}
	cancel()
	<-ended
}

func TestOneReplicaLeads(t *testing.T) {
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

// I13: a leader whose session ends is notified, another one leads, and later outcomes of the first are refused.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, other, owner := db.Ledger(t), db.Ledger(t), testkit.Connect(t, db.AdminURL)
	rec := testkit.Bring(t, l, "database", []broker.Status{broker.StatusUnknown}, nil)
	first, firstEnd := run(t.Context(), l)
	old := within(t, "the first leads", first)
	fenced := testkit.Bring(t, l, "database", nil, nil)
	out := testkit.OutcomeOf(fenced, broker.StatusCompensated)
	out.Term = old.term
	testkit.Settle(t, l, out)
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
		out := testkit.OutcomeOf(rec, broker.StatusCompensated)
		out.Term = term
		if err := l.RecordOutcome(t.Context(), out); !errors.Is(err, broker.ErrInvalidTransition) {
			t.Errorf("term %d while %d leads: got %v, want ErrInvalidTransition", term, now.term, err)
		}
	}
	if got := get(t, l, rec.ID).Status; got != broker.StatusUnknown {
		t.Errorf("got %s after a move that was refused", got)
	}
	out = testkit.OutcomeOf(rec, broker.StatusCompensated)
	out.Term = now.term
	testkit.Settle(t, other, out)
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

// Every replica sees that there is a leader, and the leader sees that it is the one.
func TestStatusTellsWhoLeads(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	one, other := db.Ledger(t), db.Ledger(t)
	reigns, end := run(t.Context(), one)
	led := within(t, "it leads", reigns)
	witnessing, stop := context.WithCancel(t.Context())
	begun, left := make(chan struct{}), make(chan error, 1)
	go func() {
		left <- other.AcquireWitnessLeadership(witnessing, func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	within(t, "the other leads the witnesses", begun)
	here, there := broker.Leadership{Held: true, Here: true}, broker.Leadership{Held: true}
	sweeps := func(o broker.Leadership) broker.Leadership { o.Term = led.term; return o }
	for name, tc := range map[string]struct {
		of   *ledger.Ledger
		want [2]broker.Leadership
	}{"the one": {one, [2]broker.Leadership{sweeps(here), there}}, "the other": {other, [2]broker.Leadership{sweeps(there), here}}} {
		if got := status(t, tc.of); got.Sweeper != tc.want[0] || got.Witnesses != tc.want[1] {
			t.Errorf("%s: got %+v and %+v, want %+v", name, got.Sweeper, got.Witnesses, tc.want)
		}
	}
	led.end <- errors.New("done")
	_ = within(t, "it leads no more", end)
	stop()
	_ = within(t, "the other does not either", left)
	if got := status(t, one); got.Sweeper.Held || got.Sweeper.Here || got.Witnesses.Held {
		t.Errorf("got %+v and %+v, want nobody", got.Sweeper, got.Witnesses)
	}
}
