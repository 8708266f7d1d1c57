package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// roomEvery is the time between two checks for the next partition, and roomRetry the time after a failed check.
	// roomTimeout bounds each check.
	roomEvery   = 10 * time.Second
	roomRetry   = time.Second
	roomTimeout = 10 * time.Second
)

// headroom says where the last partition of the entries begins, how large it is, and how many entries still fit before its
// end.
type headroom struct{ first, size, left int64 }

// scarce reports whether less than half a partition is left. The zero headroom, which was not read, is never scarce.
func (r headroom) scarce() bool { return r.left < r.size/2 }

// keepRoom keeps a whole empty partition ahead until ctx ends. It checks regularly, and whenever this replica has appended
// into the last partition. Every replica does this, and not only a leader: a burst may fill a partition before another
// replica checks.
func (l *Ledger) keepRoom(ctx context.Context) {
	defer close(l.roomEnded)
	for fault := ""; ctx.Err() == nil; {
		r, err := l.makeRoom(ctx)
		if r.size > 0 {
			l.last.Store(r.first)
			l.onRoom(r.left)
		}
		fault = l.reportRoom(ctx, r, fault, err)
		if err != nil {
			wait.For(ctx, roomRetry)
			continue
		}
		timer := time.NewTimer(roomEvery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-l.crowded:
		}
		timer.Stop()
	}
}

// makeRoom creates the next partition if it is time to, and returns the headroom after that, as far as it could be read.
func (l *Ledger) makeRoom(ctx context.Context) (r headroom, err error) {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	look := func() error {
		return l.seals.QueryRow(ctx, `
			SELECT p.first, p.beyond - p.first, p.beyond - h.size FROM ledger_head AS h, entry_partitions AS p
			ORDER BY p.first DESC LIMIT 1`).Scan(&r.first, &r.size, &r.left)
	}
	if err = look(); err == nil && r.left < r.size {
		if _, err = l.seals.Exec(ctx, `SELECT extend_entries()`); err == nil {
			err = look()
		}
	}
	return r, postgres.Unavailable("making room", err)
}

// reportRoom logs what prevents the next partition from being created, whenever that changes, and returns it. Without a next
// partition, the ledger takes entries until the last one is full.
func (l *Ledger) reportRoom(ctx context.Context, r headroom, before string, err error) string {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if r.scarce() {
		fault = "scarce: " + fault
	}
	switch {
	case fault == before || ctx.Err() != nil:
	case r.scarce():
		l.log.ErrorContext(ctx, "the ledger is almost full: see docs/audit.md", "entries_left", r.left, "error", err)
	case err != nil:
		l.log.WarnContext(ctx, "no partition made for entries", "error", err)
	}
	return fault
}

// reached requests the next partition if an entry lies in the last one.
func (l *Ledger) reached(index int64) {
	if index < l.last.Load() {
		return
	}
	select {
	case l.crowded <- struct{}{}:
	default: // already requested
	}
}

// noRoom reports whether no partition takes an entry.
func noRoom(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "23514" && refused.ConstraintName == "" && refused.TableName == "entries"
}

// Prune implements [broker.Election].
func (l *Ledger) Prune(ctx context.Context) error {
	return errors.Join(
		l.prune(ctx, "pruning the limits", `
			DELETE FROM rate_limits WHERE key = ANY (ARRAY(
				SELECT key FROM rate_limits WHERE tat < now() - interval '1 hour' LIMIT $1 FOR UPDATE SKIP LOCKED))`),
		l.prune(ctx, "pruning the proofs", `
			DELETE FROM dpop_seen WHERE digest = ANY (ARRAY(
				SELECT digest FROM dpop_seen WHERE until < now() - interval '1 minute' ORDER BY until LIMIT $1))`),
		l.prune(ctx, "pruning the sessions", `
			DELETE FROM sessions WHERE id = ANY (ARRAY(SELECT id FROM sessions WHERE ends < now() ORDER BY ends LIMIT $1))`),
	)
}

// prune deletes few rows with each statement, because a caller that counts against one of them waits.
func (l *Ledger) prune(ctx context.Context, doing, statement string) error {
	const few = 1000
	for {
		tag, err := l.write.Exec(ctx, statement, few)
		if err != nil || tag.RowsAffected() < few {
			return postgres.Unavailable(doing, err)
		}
	}
}

// Tidy implements [broker.Election].
func (l *Ledger) Tidy(ctx context.Context) error {
	_, err := l.write.Exec(ctx, `SELECT tidy_terms()`)
	return postgres.Unavailable("tidying the terms", err)
}
