package ledger

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// flush commits a batch and answers every job of it, once.
func (l *Ledger) flush(ctx context.Context, batch []*job) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	answers, err := l.commit(ctx, batch)
	if noRoom(err) { // so many came at once that the next partition was not made ahead
		if _, failed := l.makeRoom(ctx); failed == nil {
			answers, err = l.commit(ctx, batch)
		}
	}
	switch {
	case err == nil:
	case noRoom(err):
		l.reached(math.MaxInt64)
		answers = same(batch, unavailable("finding room", err))
	case aboutData(err) && len(batch) > 1:
		// Nothing was committed and one of the records is to blame: the others must not suffer for it.
		half := len(batch) / 2
		l.flush(context.WithoutCancel(ctx), batch[:half])
		l.flush(context.WithoutCancel(ctx), batch[half:])
		return
	case aboutData(err):
		answers = same(batch, fmt.Errorf("%w: %s", ErrUnrecordable, reason(err)))
	case rolledBack(err):
		answers = same(batch, unavailable("committing", err))
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

// commit sends the batch as one statement. Three fifths of the time are its own, the rest is for reading back.
func (l *Ledger) commit(ctx context.Context, batch []*job) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout*3/5)
	defer cancel()
	conn, err := l.write.Acquire(ctx)
	if err != nil {
		return same(batch, unavailable("connecting", err)), nil // nothing was sent
	}
	defer conn.Release()
	rows, err := insert(ctx, conn, batch)
	if err != nil {
		return nil, err
	}
	answers := make([]answer, len(batch))
	var repeats []int
	for i, row := range rows {
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

func (a appended) repeated() bool { return a.Verdict != nil && *a.Verdict == "repeated" }

// refusal says why the entry was not appended; nil when it was.
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
	case a.Status == nil: // of a record, or of a quarantine that is to be lifted
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

// answerRepeats tells those whose key was used before, by their place in the batch, what it was used for. A failure
// concerns them alone: the rest of the batch is committed.
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
			answers[i].err = unavailable("reading an earlier record", err)
		case !found:
			answers[i].err = fmt.Errorf("reading an earlier record that has just failed: %w", broker.ErrLedgerUnavailable)
		default:
			answers[i].earlier = view
		}
	}
}
