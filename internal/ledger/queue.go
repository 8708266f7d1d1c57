package ledger

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// job is an entry on its way into the ledger.
type job struct {
	entry entry
	// taken is set by the flusher that sends it or by the caller that gives up, whichever comes first.
	taken atomic.Bool
	done  chan answer // has room for the one answer
}

type answer struct {
	earlier *broker.View
	err     error
}

// Begin implements [broker.Ledger].
func (l *Ledger) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	e, err := decisionEntry(rec)
	if err != nil {
		return nil, err
	}
	return l.append(ctx, e)
}

// RecordOutcome implements [broker.Ledger]. Besides, it returns broker.ErrNotFound for a record that was never begun.
func (l *Ledger) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	e, err := outcomeEntry(out)
	if err != nil {
		return err
	}
	_, err = l.append(ctx, e)
	return err
}

// Refuse implements [broker.Ledger].
func (l *Ledger) Refuse(ctx context.Context, ref broker.Refusal) error {
	e, err := refusalEntry(ref)
	if err != nil {
		return err
	}
	_, err = l.append(ctx, e)
	return err
}

// append queues an entry and waits for its commit. A caller that gives up before the entry is taken leaves no
// trace; afterwards the commit goes on without it.
func (l *Ledger) append(ctx context.Context, e entry) (*broker.View, error) {
	if err := ctx.Err(); err != nil {
		return nil, unavailable("queueing a record", err)
	}
	if err := l.checkRollback(); err != nil {
		return nil, err
	}
	j := &job{entry: e, done: make(chan answer, 1)}
	if err := l.enqueue(j); err != nil {
		return nil, err
	}
	patience := time.NewTimer(l.flushTimeout)
	defer patience.Stop()
	for {
		select {
		case a := <-j.done:
			return a.earlier, a.err
		case <-ctx.Done():
			j.taken.Swap(true)
			return nil, unavailable("waiting for a commit", ctx.Err())
		case <-patience.C:
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

// run commits until the queue is closed and empty. What queues while a commit is in flight goes into the next one,
// so a busy ledger shares commits and an idle one waits for nothing.
func (l *Ledger) run(ctx context.Context) {
	defer close(l.stopped)
	for first := range l.queue {
		// The callers of the last commit are just waking up: let them queue what they have next.
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

// take claims what is queued, without waiting for more. It ends before a job that must see what one of those before
// it did, and returns that as the next. Commands come after the records: none of their callers has an answer yet, so
// any order is true.
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
