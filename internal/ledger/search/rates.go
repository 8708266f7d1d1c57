package search

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// ratesWait is how long a caller of Rates waits for what is not counted yet.
	ratesWait = 20 * time.Millisecond
	// outOfOrder is how much earlier an entry may be than those before it: clocks of replicas differ.
	outOfOrder = time.Minute
	// tallyTimeout bounds the count of one chunk, including the wait for a connection.
	tallyTimeout = 5 * time.Second
	// mostTallies bounds the number of counted reaches. Each takes some hundred kilobytes at most.
	mostTallies = 64
)

var (
	// tallyChunk is how many entries one statement counts. After each chunk the next tally has its turn.
	tallyChunk int64 = 1 << 13
	// mostBehind is how many entries a tally catches up on. A tally that is further behind starts again at the end.
	mostBehind int64 = 1 << 17
)

// Rates is that of [broker.Stats]. It can take seconds to count an hour, so no caller waits for that. Old counts are kept in
// memory. One goroutine counts what is missing, chunk by chunk, and Rates returns what is known by then.
func (r *Searcher) Rates(ctx context.Context, q broker.RatesQuery, reach broker.Reach) (broker.Rates, error) {
	starts := q.Starts()
	if record.ReachesNothing(reach) || len(starts) == 0 {
		return q.Nothing(), nil
	}
	t := r.tallies.tally(reach)
	done, first := t.begin(starts[0], q.Until)
	if first {
		select {
		case r.tallying <- t:
		default: // too many other reaches are being counted
			t.end(nil)
		}
	}
	patience := time.NewTimer(ratesWait)
	defer patience.Stop()
	select {
	case <-done:
		return t.rates(q), t.fault()
	case <-patience.C:
		return t.rates(q), nil
	case <-ctx.Done():
		return broker.Rates{}, postgres.Unavailable("waiting for rates", ctx.Err())
	}
}

func (t *tally) fault() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// keepTallies counts for callers of Rates, in turn, until ctx ends.
func (r *Searcher) keepTallies(ctx context.Context) {
	defer close(r.tallied)
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-r.tallying:
			more, err := r.countOn(ctx, t)
			if more && err == nil {
				select {
				case r.tallying <- t:
					continue
				default:
				}
			}
			t.end(err)
		}
	}
}

// countOn counts the next chunk, and reports whether there is more.
func (r *Searcher) countOn(ctx context.Context, t *tally) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tallyTimeout)
	defer cancel()
	conn, err := r.poolFor(t.reach).Acquire(ctx)
	if err != nil {
		return false, postgres.Unavailable("connecting", err)
	}
	defer conn.Release()
	var size int64
	if err := conn.QueryRow(ctx, `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		return false, searching("counting entries", err)
	}
	t.goal(size)
	first, beyond := t.next()
	if first == beyond {
		return false, nil
	}
	counted, err := countChunk(ctx, conn, t.reach, first, beyond)
	var at time.Time
	if err == nil {
		at, err = recordedAt(ctx, conn, first)
	}
	if err != nil {
		return false, searching("counting entries", err)
	}
	t.add(first, beyond, at, counted)
	first, beyond = t.next()
	return first < beyond, nil
}

// recordedAt returns when an entry was recorded. A pruned entry counts as older than all that are left.
func recordedAt(ctx context.Context, conn *pgxpool.Conn, index int64) (at time.Time, err error) {
	err = conn.QueryRow(ctx, `SELECT time FROM entries WHERE index = @index`, pgx.NamedArgs{"index": index}).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Unix(0, 0).UTC(), nil
	}
	return at.UTC(), err
}

// countChunk counts, by minute, what the entries with these indexes have decided or ended.
func countChunk(ctx context.Context, conn *pgxpool.Conn, reach broker.Reach, first, beyond int64) (map[int64]broker.Rate, error) {
	args := pgx.NamedArgs{"first": first, "beyond": beyond}
	where := record.Within(reach, "trust_domain", args)
	rows, err := conn.Query(ctx, `
		SELECT floor(extract(epoch FROM time) / 60)::bigint AS minute, count(*) FILTER (WHERE decision = 'allow'),
			count(*) FILTER (WHERE decision = 'deny'), count(*) FILTER (WHERE decision = 'pending'), 0::bigint
		FROM issuances WHERE entry_index >= @first AND entry_index < @beyond AND `+where+` GROUP BY minute
		UNION ALL
		SELECT floor(extract(epoch FROM e.time) / 60)::bigint AS minute, 0, 0, 0, count(*)
		FROM entries AS e JOIN issuances AS i ON i.id = e.id
		WHERE e.index >= @first AND e.index < @beyond AND e.kind IN ('issuance.revoked', 'issuance.released', 'issuance.used')
			AND `+where+` GROUP BY minute`, args)
	if err != nil {
		return nil, err
	}
	counted := map[int64]broker.Rate{}
	var minute int64
	var r broker.Rate
	_, err = pgx.ForEachRow(rows, []any{&minute, &r.Issued, &r.Denied, &r.Pending, &r.Ended}, func() error {
		counted[minute] = plus(counted[minute], r)
		return nil
	})
	return counted, err
}
