package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"
)

// job is an entry that is waiting to be appended.
type job struct {
	entry entry
	// taken is set by the flusher that sends it or by the caller that gives up, whichever comes first.
	taken atomic.Bool
	done  chan answer // has room for its one answer
}

type answer struct {
	earlier *broker.View
	err     error
}

// append queues an entry and waits for its commit. If the caller gives up before the flusher takes the entry, nothing is
// recorded. After that, the commit goes on without the caller.
func (l *Ledger) append(ctx context.Context, e entry) (*broker.View, error) {
	if err := ctx.Err(); err != nil {
		return nil, postgres.Unavailable("queueing a record", err)
	}
	if err := l.CheckRollback(); err != nil {
		return nil, err
	}
	j := &job{entry: e, done: make(chan answer, 1)}
	if err := l.enqueue(j); err != nil {
		return nil, err
	}
	timeout := time.NewTimer(l.flushTimeout)
	defer timeout.Stop()
	for {
		select {
		case a := <-j.done:
			return a.earlier, a.err
		case <-ctx.Done():
			j.taken.Swap(true)
			return nil, postgres.Unavailable("waiting for a commit", ctx.Err())
		case <-timeout.C:
			if !j.taken.Swap(true) {
				return nil, fmt.Errorf("waiting for earlier commits: %w", broker.ErrLedgerUnavailable)
			}
		}
	}
}

func (l *Ledger) enqueue(j *job) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return fmt.Errorf("ledger is closed: %w", broker.ErrLedgerUnavailable)
	}
	select {
	case l.queue <- j:
		return nil
	default:
		return fmt.Errorf("%d records are waiting: %w", maxQueue, broker.ErrLedgerUnavailable)
	}
}

// run commits until the queue is closed and empty. Entries that are queued while a commit is in flight go into the next one.
// So a busy ledger shares commits, and an idle one waits for nothing.
func (l *Ledger) run(ctx context.Context) {
	defer close(l.stopped)
	for first := range l.queue {
		// The callers of the last commit are just waking up. Let them queue their next entries first.
		runtime.Gosched()
		for first != nil {
			var records, commands []*job
			records, commands, first = l.take(first)
			for _, batch := range [][]*job{records, commands} {
				if len(batch) > 0 {
					l.flush(ctx, batch)
				}
			}
		}
	}
}

// take claims the queued jobs without waiting for more. It stops before a job that must see the effect of a job it has
// taken, and returns that job as next. Commands come after the records: no caller has an answer yet, so any order is
// correct.
func (l *Ledger) take(first *job) (records, commands []*job, next *job) {
	alone := map[string]bool{}
	for j, ok := first, true; ok; {
		e := &j.entry
		switch {
		case e.alone != "" && alone[e.alone]:
			return records, commands, j
		case j.taken.Swap(true): // its caller has given up
		case e.command:
			commands = append(commands, j)
		default:
			records = append(records, j)
		}
		if e.alone != "" {
			alone[e.alone] = true
		}
		if len(records) == maxBatch || len(commands) == maxBatch {
			break
		}
		select {
		case j, ok = <-l.queue:
		default:
			ok = false
		}
	}
	return records, commands, nil
}

// flush commits a batch and answers each of its jobs once.
func (l *Ledger) flush(ctx context.Context, batch []*job) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	answers, err := l.commit(ctx, batch)
	if noRoom(err) { // a burst came before the next partition was created
		if _, failed := l.makeRoom(ctx); failed == nil {
			answers, err = l.commit(ctx, batch)
		}
	}
	switch {
	case err == nil:
	case noRoom(err):
		l.reached(math.MaxInt64)
		answers = same(batch, postgres.Unavailable("finding room", err))
	case aboutData(err) && len(batch) > 1:
		// Nothing was committed, because of one bad record. Split the batch, so that the other records do not fail with it.
		half := len(batch) / 2
		l.flush(context.WithoutCancel(ctx), batch[:half])
		l.flush(context.WithoutCancel(ctx), batch[half:])
		return
	case aboutData(err):
		answers = same(batch, fmt.Errorf("%w: %s", record.ErrUnrecordable, postgres.Reason(err)))
	case rolledBack(err):
		answers = same(batch, postgres.Unavailable("committing", err))
	default:
		answers = l.readBack(ctx, batch, err)
	}
	for i, j := range batch {
		j.done <- answers[i]
	}
}

func same(batch []*job, err error) []answer {
	answers := make([]answer, len(batch))
	for i := range answers {
		answers[i].err = err
	}
	return answers
}

// commit sends the batch as one statement. That is one round trip, so the lock on the head never waits for the network. Rows
// come back in the order of the batch. commit uses three fifths of the flush timeout and leaves the rest for reading back.
func (l *Ledger) commit(ctx context.Context, batch []*job) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout*3/5)
	defer cancel()
	conn, err := l.write.Acquire(ctx)
	if err != nil {
		return same(batch, postgres.Unavailable("connecting", err)), nil // nothing was sent
	}
	defer conn.Release()
	sql, args := appendSQL, arguments(batch)
	if batch[0].entry.command {
		sql, args = announceSQL, contents(batch)
	}
	rows, err := conn.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[appended])
	if warned := postgres.Warned(conn.Conn()); err == nil && warned != nil {
		err = errors.Join(warned, conn.Conn().Close(ctx))
	}
	switch {
	case err != nil:
		return nil, err
	case len(got) != len(batch):
		return nil, fmt.Errorf("postgres answered %d of %d records", len(got), len(batch))
	}
	answers := make([]answer, len(batch))
	var repeats []int
	for i, row := range got {
		if row.repeated() {
			repeats = append(repeats, i)
			continue
		}
		answers[i].err = row.refusal(&batch[i].entry)
		if row.Index != nil {
			l.tip.Store(&tip{*row.Index, batch[i].entry.leaf})
			l.reached(*row.Index)
		}
	}
	if len(repeats) > 0 {
		answerRepeats(ctx, conn, batch, repeats, answers)
	}
	return answers, nil
}

type appended struct {
	Index   *int64  // of the entry; nil if none was appended
	Status  *string // for an outcome: the record's status before it
	Verdict *string // why the item is not admitted; nil if it is
	Reached *int64  // the place of the limit that the item exceeds, counted from 1
	Wait    *int64  // microseconds until the item would pass
}

func (a appended) repeated() bool { return a.Verdict != nil && *a.Verdict == "repeated" }

// refusal returns why the entry was not appended, or nil if it was.
func (a appended) refusal(e *entry) error {
	switch {
	case a.Index != nil:
		return nil
	case a.Verdict != nil && *a.Verdict == "quarantined":
		return broker.ErrQuarantined
	case a.Verdict != nil && *a.Verdict == "task_ended":
		return broker.ErrTaskEnded
	case a.Verdict != nil && *a.Verdict == "superseded":
		return broker.ErrSuperseded
	case a.Verdict != nil && *a.Verdict == "unapproved":
		return broker.ErrNotApproved
	case a.Verdict != nil && *a.Verdict == "crowded":
		return &broker.Limited{Limit: broker.WaitingLimit, RetryAfter: broker.WaitingRetry}
	case a.Verdict != nil:
		return limited(e.limits, a)
	case e.overtakes:
		return broker.ErrOvertaken
	case a.Status == nil: // there is no such record, or no such quarantine to lift
		return broker.ErrNotFound
	case e.term != 0:
		return fmt.Errorf("%w from %s by the sweeper of term %d", broker.ErrNotForward, *a.Status, e.term)
	}
	return fmt.Errorf("%w from %s", broker.ErrNotForward, *a.Status)
}

func limited(limits []broker.Limit, a appended) error {
	if a.Reached == nil || a.Wait == nil || *a.Reached < 1 || *a.Reached > int64(len(limits)) {
		return fmt.Errorf("postgres answered with a limit that was not asked for: %w", broker.ErrLedgerUnavailable)
	}
	return &broker.Limited{Limit: limits[*a.Reached-1].Limit, RetryAfter: time.Duration(*a.Wait) * time.Microsecond}
}

// answerRepeats answers the jobs whose idempotency key was used before with the earlier record. repeats holds their places
// in the batch. A failure affects only these jobs, because the rest of the batch is committed.
func answerRepeats(ctx context.Context, conn *pgxpool.Conn, batch []*job, repeats []int, answers []answer) {
	claims := make([]claim, len(repeats))
	for n, i := range repeats {
		claims[n] = claim{*batch[i].entry.subject, *batch[i].entry.key}
	}
	earlier, err := readEarlier(ctx, conn, claims)
	for n, i := range repeats {
		view, found := earlier[claims[n]]
		switch {
		case err != nil:
			answers[i].err = postgres.Unavailable("reading an earlier record", err)
		case !found:
			answers[i].err = fmt.Errorf("reading an earlier record that has just failed: %w", broker.ErrLedgerUnavailable)
		default:
			answers[i].earlier = view
		}
	}
}

// readBack finds out on a separate connection what became of a batch whose answer was lost.
func (l *Ledger) readBack(ctx context.Context, batch []*job, lost error) []answer {
	present, err := l.prove(ctx, batch)
	if err != nil {
		return same(batch, postgres.Unavailable("reading back", err))
	}
	answers := make([]answer, len(batch))
	for i, j := range batch {
		if !present[j.entry.leaf] {
			answers[i].err = postgres.Unavailable("committing", lost)
		}
	}
	return answers
}

// prove returns the leaves of the batch that are durably committed. Taking the head's lock waits for a statement that may
// still be running, and keeps other writers out. The commit of this transaction is durable only when all commits before it
// are.
func (l *Ledger) prove(ctx context.Context, batch []*job) (map[tlog.Hash]bool, error) {
	conn, err := pgx.ConnectConfig(ctx, l.write.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := l.checkPrimary(ctx, conn); err != nil {
		return nil, err
	}
	var leaves []tlog.Hash
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE ledger_head SET size = size`); err != nil {
			return err
		}
		args := contents(batch)
		rows, err := tx.Query(ctx,
			`SELECT leaf_hash FROM entries WHERE id = ANY (@ids::uuid[]) AND leaf_hash = ANY (@leaves::bytea[])`,
			pgx.NamedArgs{"ids": args["ids"], "leaves": args["leaves"]})
		if err != nil {
			return err
		}
		leaves, err = pgx.CollectRows(rows, record.ScanHash)
		return err
	})
	if err == nil {
		err = postgres.Warned(conn)
	}
	present := make(map[tlog.Hash]bool, len(leaves))
	for _, leaf := range leaves {
		present[leaf] = true
	}
	return present, err
}
