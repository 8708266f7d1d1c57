package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// flush commits a batch and answers every job of it, once.
func (l *Ledger) flush(ctx context.Context, batch []*job) {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	answers, err := l.commit(ctx, batch)
	switch {
	case err == nil:
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
		switch {
		case row.Index != nil: // appended
		case row.Reached != nil && row.Wait != nil:
			answers[i].err = limited(batch[i].entry.limits, *row.Reached, *row.Wait)
		case batch[i].entry.key != nil:
			repeats = append(repeats, i)
		case row.Status == nil:
			answers[i].err = broker.ErrNotFound
		default:
			answers[i].err = fmt.Errorf("%w from %s", ErrNotForward, *row.Status)
		}
	}
	if len(repeats) > 0 {
		answerRepeats(ctx, conn, batch, repeats, answers)
	}
	return answers, nil
}

func limited(limits []broker.Limit, key string, wait int64) error {
	for _, l := range limits {
		if l.Key == key {
			return &broker.Limited{Limit: l.Limit, RetryAfter: time.Duration(wait) * time.Microsecond}
		}
	}
	return fmt.Errorf("postgres answered with a limit that was not asked for: %w", broker.ErrLedgerUnavailable)
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
