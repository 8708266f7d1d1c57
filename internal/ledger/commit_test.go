package ledger_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

func withKey(key string) func(*broker.Record) {
	return func(rec *broker.Record) { rec.Request.IdempotencyKey = key }
}

func TestManyWritersLeaveNoGap(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	const writers, each = 64, 20
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			l := replicas[n%2]
			for i := range each {
				rec := [](func(func(*broker.Record)) broker.Record){allowed, denied, pending}[i%3](ofSandbox(n, nil))
				if earlier, err := l.Begin(t.Context(), rec); err != nil || earlier != nil {
					t.Errorf("Begin: got %v, %v", earlier, err)
				}
				if i%6 == 0 { // these are allowed
					out := broker.Outcome{ID: rec.ID, Time: start, Status: broker.StatusFailed, Detail: "internal"}
					if err := l.RecordOutcome(t.Context(), out); err != nil {
						t.Errorf("RecordOutcome: %v", err)
					}
				}
				if err := l.Refuse(t.Context(), broker.Refusal{Time: start, Code: "invalid"}); err != nil {
					t.Errorf("Refuse: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := len(db.Entries(t)), writers*(each+4+each); got != want {
		t.Errorf("got %d entries, want %d", got, want)
	}
	db.Check(t)
}

func TestIdempotencyKeyMakesOneRecord(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	for name, kind := range map[string]func(func(*broker.Record)) broker.Record{
		"allowed": allowed, "denied": denied, "pending": pending,
	} {
		t.Run(name, func(t *testing.T) {
			var fresh atomic.Pointer[string]
			var earlier sync.Map
			var wg sync.WaitGroup
			for n := range 100 {
				wg.Go(func() {
					rec := kind(withKey("key of " + name))
					view, err := replicas[n%2].Begin(t.Context(), rec)
					switch {
					case err != nil:
						t.Errorf("Begin: %v", err)
					case view != nil:
						earlier.Store(view.ID, *view)
					case !fresh.CompareAndSwap(nil, &rec.ID):
						t.Error("two records for one key")
					}
				})
			}
			wg.Wait()
			if fresh.Load() == nil {
				t.Fatal("no record for the key")
			}
			earlier.Range(func(id, view any) bool {
				if id != *fresh.Load() || view.(broker.View).RequestDigest == [32]byte{} {
					t.Errorf("got the earlier record %v, want %s", view, *fresh.Load())
				}
				return true
			})
		})
	}
	if got := len(db.Entries(t)); got != 3 {
		t.Errorf("got %d entries, want 3", got)
	}
	// An idempotency key belongs to one sandbox.
	begin(t, replicas[0], allowed(func(rec *broker.Record) {
		as(moment(), "spiffe://acme.test/agents/b", "git.read", "t", 0)(rec)
		withKey("key of allowed")(rec)
	}))
	db.Check(t)
}

func TestFailureFreesTheKey(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	first := allowed(withKey("k"))
	begin(t, l, first)
	out := broker.Outcome{ID: first.ID, Time: start, Status: broker.StatusFailed, Detail: "vault_unavailable"}
	if err := l.RecordOutcome(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	second := allowed(withKey("k"))
	begin(t, l, second)
	earlier, err := l.Begin(t.Context(), allowed(withKey("k")))
	if err != nil || earlier == nil || earlier.ID != second.ID {
		t.Errorf("got %v, %v, want the second record", earlier, err)
	}
	db.Check(t)
}

// The same record twice must not look like two commits, because a caller that gets nil mints.
func TestBeginTwiceIsOneCommit(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for name, rec := range map[string]broker.Record{"with a key": allowed(withKey("k")), "without": allowed(nil)} {
		begin(t, l, rec)
		if earlier, err := l.Begin(t.Context(), rec); err == nil && earlier == nil {
			t.Errorf("%s: got nil for a record that was begun before", name)
		}
	}
	db.Check(t)
}

// hold keeps the head locked until the returned function is called, and waits until l has a commit that waits for it.
func hold(t *testing.T, db *testkit.DB) (waiting, release func()) {
	t.Helper()
	conn, watch := testkit.Connect(t, db.AdminURL), testkit.Connect(t, db.AdminURL)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM ledger_head FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	waiting = func() {
		t.Helper()
		until(t, "a commit waits for the head", func() bool {
			var n int
			err := watch.QueryRow(t.Context(),
				`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
			return err == nil && n > 0
		})
	}
	return waiting, func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("releasing the head: %v", err)
		}
	}
}

// until polls, for a minute at most.
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

// batch queues records behind a commit that is held up, so that one batch takes them all. It returns the error of each.
func batch(t *testing.T, db *testkit.DB, l *ledger.Ledger, recs []broker.Record) []error {
	t.Helper()
	errs := make([]error, len(recs))
	calls := make([]func(), len(recs))
	for i, rec := range recs {
		calls[i] = func() { _, errs[i] = l.Begin(t.Context(), rec) }
	}
	inOneCommit(t, db, l, calls...)
	return errs
}

// inOneCommit makes calls that each queue one entry behind a commit that is held up. The entries are queued in the order of the
// calls.
func inOneCommit(t *testing.T, db *testkit.DB, l *ledger.Ledger, calls ...func()) {
	t.Helper()
	waiting, release := hold(t, db)
	defer release()
	var wg sync.WaitGroup
	wg.Go(func() { begin(t, l, denied(nil)) })
	waiting()
	for i, call := range calls {
		wg.Go(call)
		until(t, "it is queued", func() bool { return l.Queued() == i+1 })
	}
	release()
	wg.Wait()
}

func TestQueuedRecordsShareACommit(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	var recs []broker.Record
	for rec := range records(100) {
		recs = append(recs, rec)
	}
	for i, err := range batch(t, db, db.Ledger(t), recs) {
		if err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	var commits int
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(),
		`SELECT count(DISTINCT xmin::text) FROM entries`).Scan(&commits); err != nil {
		t.Fatal(err)
	}
	if commits != 2 {
		t.Errorf("got %d commits, want 2: the one in flight, and one for the queue", commits)
	}
	db.Check(t)
}

func TestBadRecordIsRefusedBeforeItIsQueued(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for name, change := range map[string]func(*broker.Record){
		"NUL in the reason":     func(rec *broker.Record) { rec.Request.Reason = "a\x00b" },
		"NUL after a backslash": func(rec *broker.Record) { rec.Request.Reason = "\\\x00" },
		"NUL in a parameter":    func(rec *broker.Record) { rec.Decision.Params = map[string]any{"x\x00": 1} },
		"invalid UTF-8":         func(rec *broker.Record) { rec.Request.Task = "a\xffb" },
		"oversized":             func(rec *broker.Record) { rec.Request.Reason = strings.Repeat("x", 64<<10) },
		"not JSON":              func(rec *broker.Record) { rec.Decision.Params = map[string]any{"f": func() {}} },
		"no id":                 func(rec *broker.Record) { rec.ID = "" },
		"an id in another form": func(rec *broker.Record) { rec.ID = strings.ToUpper(rec.ID) },
		"no decision":           func(rec *broker.Record) { rec.Decision.Outcome = "" },
	} {
		if _, err := l.Begin(t.Context(), allowed(change)); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	lie := allowed(nil)
	lie.Intent.ClaimsDigest[0]++
	if _, err := l.Begin(t.Context(), lie); !errors.Is(err, record.ErrUnrecordable) {
		t.Errorf("the digest of other claims: got %v, want ErrUnrecordable", err)
	}
	if got := len(db.Entries(t)); got != 0 {
		t.Errorf("got %d entries, want none", got)
	}
}

func TestBadRecordFailsAlone(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	var recs []broker.Record
	var names []string
	for name, change := range map[string]func(*broker.Record){
		"no subject":         func(rec *broker.Record) { rec.Subject = broker.Subject{} },
		"TTL under a second": func(rec *broker.Record) { rec.Decision.TTL = 999 * time.Millisecond },
		"expires at once":    func(rec *broker.Record) { rec.Expires = rec.Time },
		"never expires":      func(rec *broker.Record) { rec.Expires = time.Time{} },
		"no intent":          func(rec *broker.Record) { rec.Intent = nil },
		"intent of a denial": func(rec *broker.Record) { rec.Decision.Outcome, rec.Status = scopes.Deny, broker.StatusDenied },
		"begins failed":      func(rec *broker.Record) { rec.Status = broker.StatusFailed },
		"allowed and denied": func(rec *broker.Record) { rec.Status = broker.StatusDenied },
		"pending for nobody": func(rec *broker.Record) {
			rec.Decision.Outcome, rec.Status, rec.Intent = scopes.Pending, broker.StatusPending, nil
		},
	} {
		recs, names = append(recs, allowed(nil), allowed(change)), append(names, "", name)
	}
	for i, err := range batch(t, db, db.Ledger(t), recs) {
		if names[i] == "" && err != nil {
			t.Errorf("a good record of the same batch: %v", err)
		} else if names[i] != "" && !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", names[i], err)
		}
	}
	if got, want := len(db.Entries(t)), 1+len(recs)/2; got != want {
		t.Errorf("got %d entries, want %d", got, want)
	}
	db.Check(t)
}

func TestBrokenInsertWritesNothing(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	admin := testkit.Connect(t, db.AdminURL)
	exec(t, admin, `
		CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.task = 'task-5' THEN RAISE EXCEPTION 'boom: %', NEW.reason; END IF;
			RETURN NEW;
		END $$`)
	exec(t, admin, `CREATE TRIGGER boom BEFORE INSERT ON issuances FOR EACH ROW EXECUTE FUNCTION boom()`)
	var recs []broker.Record
	for rec := range records(10) {
		recs = append(recs, rec)
	}
	for i, err := range batch(t, db, l, recs) {
		if !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("record %d: got %v, want ErrLedgerUnavailable", i, err)
		} else if strings.Contains(err.Error(), "look at") {
			t.Errorf("the error quotes the record: %v", err)
		}
	}
	if got := len(db.Entries(t)); got != 1 {
		t.Errorf("got %d entries, want the one before the batch", got)
	}
	db.Check(t)
	exec(t, admin, `DROP TRIGGER boom ON issuances`)
	begin(t, l, recs...)
	db.Check(t)
}

// C1: if the caller gives up before the commit begins, there is no record. A commit in flight goes on without its caller. A caller that
// commits its own entry waits for it.
func TestCallerThatGivesUp(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	// The timeout is long, so that no commit is given up while it waits on a slow machine.
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: db.BrokerURL, Log: slog.New(slog.DiscardHandler), FlushTimeout: 2 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	before := allowed(nil)
	if _, err := l.Begin(gone, before); !errors.Is(err, context.Canceled) || !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("before: got %v, want context.Canceled and ErrLedgerUnavailable", err)
	}

	// The commit of the second caller waits for a lock that this test holds.
	admin := testkit.Connect(t, db.AdminURL)
	exec(t, admin, `CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.task = 'stalls' THEN PERFORM pg_advisory_xact_lock(1); END IF;
			RETURN NEW;
		END $$`)
	exec(t, admin, `CREATE TRIGGER stall BEFORE INSERT ON issuances FOR EACH ROW EXECUTE FUNCTION stall()`)
	exec(t, admin, `SELECT pg_advisory_lock(1)`)
	type call struct {
		rec    broker.Record
		cancel context.CancelFunc
		err    chan error
	}
	start := func(task string) call {
		ctx, cancel := context.WithCancel(t.Context())
		c := call{allowed(nil), cancel, make(chan error, 1)}
		if task != "" {
			c.rec.Request.Task = task
		}
		go func() {
			_, err := l.Begin(ctx, c.rec)
			c.err <- err
		}()
		return c
	}
	waiting, release := hold(t, db)
	defer release()
	own := start("")
	waiting()
	taken := start("stalls")
	until(t, "the second is queued", func() bool { return l.Queued() == 1 })
	own.cancel()
	release()
	if err := <-own.err; err != nil {
		t.Errorf("own: got %v, want its commit", err)
	}
	until(t, "the second waits for the lock, and nothing joins its commit any more", func() bool {
		var waits bool
		if err := admin.QueryRow(t.Context(), `
			SELECT EXISTS (
				SELECT FROM pg_locks
				WHERE locktype = 'advisory' AND NOT granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	queued := start("")
	until(t, "the third is queued", func() bool { return l.Queued() == 1 })
	for name, c := range map[string]call{"taken": taken, "queued": queued} {
		c.cancel()
		if err := <-c.err; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", name, err)
		}
	}
	exec(t, admin, `SELECT pg_advisory_unlock(1)`)
	begin(t, l, allowed(nil)) // when this one is committed, so are those before it
	for name, id := range map[string]string{"own": own.rec.ID, "taken": taken.rec.ID} {
		if _, err := l.Get(t.Context(), id, everything); err != nil {
			t.Errorf("%s: the commit in flight did not go on: %v", name, err)
		}
	}
	for name, id := range map[string]string{"queued": queued.rec.ID, "before": before.ID} {
		if _, err := l.Get(t.Context(), id, everything); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s: got %v, want no record", name, err)
		}
	}
	db.Check(t)
}

func TestClosedLedger(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	errs := make(chan error, 50)
	for rec := range records(cap(errs)) {
		go func() {
			_, err := l.Begin(t.Context(), rec)
			errs <- err
		}()
	}
	l.Close()
	l.Close()
	done := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			done++
		} else if !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v, want ErrLedgerUnavailable", err)
		}
	}
	if got := len(db.Entries(t)); got != done {
		t.Errorf("got %d entries, and %d callers were told of one", got, done)
	}
	if err := l.Ready(t.Context()); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("Ready: got %v, want ErrLedgerUnavailable", err)
	}
	db.Check(t)
}
