package search

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	// maxTallies bounds the number of counted reaches. Each takes some hundred kilobytes at most.
	maxTallies = 64
)

var (
	// tallyChunk is how many entries one statement counts. After each chunk the next tally has its turn.
	tallyChunk int64 = 1 << 13
	// maxBehind is how many entries a tally catches up on. A tally that is further behind starts again at the end.
	maxBehind int64 = 1 << 17
)

// Rates is that of [broker.Stats]. It can take seconds to count an hour, so no caller waits for that. Old counts are kept in
// memory. One goroutine counts what is missing, chunk by chunk, and Rates returns what is known by then.
func (r *Searcher) Rates(ctx context.Context, q broker.RatesQuery, reach broker.Reach) (broker.Rates, error) {
	starts := q.Starts()
	if record.ReachesNothing(reach) || len(starts) == 0 {
		return q.ZeroRates(), nil
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
	at := time.Unix(0, 0) // of a pruned entry, which counts as older than all that are left
	if err == nil {
		err = conn.QueryRow(ctx, `SELECT time FROM entries WHERE index = @index`, pgx.NamedArgs{"index": first}).Scan(&at)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
	}
	if err != nil {
		return false, searching("counting entries", err)
	}
	t.add(first, beyond, at.UTC(), counted)
	first, beyond = t.next()
	return first < beyond, nil
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

// tally counts the entries of one reach by minute. Entries never change, and each counts once, in the minute that it names.
// So a count between two indexes stays right, even if an entry is later than its neighbours. A tally knows from which index
// up to which it has counted, and goes on at both ends: first to new entries, and then back, as far as a caller asks. No
// minute has to be closed for that. A tally is safe for concurrent use.
type tally struct {
	reach broker.Reach
	asked int64 // a larger number is a later request; tallies guards it

	mu      sync.Mutex
	minutes map[int64]broker.Rate // by minute since 1970; nil until a count has begun
	// The entries from low up to high are counted. They were recorded from back, which is zero for none, until upTo.
	low, high  int64
	back, upTo time.Time
	// The count that is under way, if done is not nil. It goes up to size, which is negative while it is not known, and back
	// to since. done is closed when the count ends.
	size         int64
	since, until time.Time
	done         chan struct{}
	err          error // of the last count
}

// begin requests a count from since until now. If first is true, no count is under way, and the caller has to start one.
func (t *tally) begin(since, now time.Time) (done <-chan struct{}, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done, t.since, t.until, t.size, first = make(chan struct{}), since, now, -1, true
	}
	if since.Before(t.since) {
		t.since = since
	}
	return t.done, first
}

// end ends the count that is under way, with its error.
func (t *tally) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for minute := range t.minutes {
		if minute < minuteOf(t.since.Add(-broker.LongestRates)) {
			delete(t.minutes, minute)
		}
	}
	t.err = err
	close(t.done)
	t.done = nil
}

// goal sets how many entries to count; later ones wait for the next count. A tally that is far behind starts again at the
// end, since callers need new entries first. A standby may have fewer entries than were counted on another server.
func (t *tally) goal(size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size >= 0 {
		return
	}
	if t.minutes == nil || max(size-t.high, t.high-size) > maxBehind {
		t.low, t.high, t.back, t.minutes = size, size, time.Time{}, map[int64]broker.Rate{}
	}
	if t.size = size; t.high >= size {
		t.upTo = t.until
	}
}

// next returns the indexes to count, or none if the count is done.
func (t *tally) next() (first, beyond int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.high < t.size:
		return t.high, min(t.high+tallyChunk, t.size)
	case t.low > 0 && (t.back.IsZero() || t.back.After(t.since.Add(-outOfOrder))):
		return max(t.low-tallyChunk, 0), t.low
	}
	return 0, 0
}

// add adds the counts of the next indexes. The first of these was recorded at the time at.
func (t *tally) add(first, beyond int64, at time.Time, counted map[int64]broker.Rate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for minute, r := range counted {
		t.minutes[minute] = plus(t.minutes[minute], r)
	}
	if first < t.low {
		t.low, t.back = first, at
		return
	}
	if t.high = beyond; t.high >= t.size {
		t.upTo = t.until
	}
	if t.back.IsZero() {
		t.back = at
	}
}

// rates returns what is known so far.
func (t *tally) rates(q broker.RatesQuery) broker.Rates {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := q.ZeroRates()
	out.From, out.Until = t.back.Add(outOfOrder), t.upTo
	switch {
	case t.minutes == nil || t.upTo.IsZero():
		out.From, out.Until = time.Time{}, time.Time{}
	case t.low == 0:
		out.From = q.Since // everything is counted
	case t.back.IsZero():
		out.From = t.upTo
	}
	for i, r := range out.Steps {
		for minute := minuteOf(r.Start); minute < minuteOf(r.Start.Add(q.Step)); minute++ {
			out.Steps[i] = plus(out.Steps[i], t.minutes[minute])
		}
	}
	return out
}

func plus(x, y broker.Rate) broker.Rate {
	return broker.Rate{
		Start: x.Start, Issued: x.Issued + y.Issued, Denied: x.Denied + y.Denied, Pending: x.Pending + y.Pending, Ended: x.Ended + y.Ended,
	}
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// tallies holds the tallies of the reaches that callers asked about last.
type tallies struct {
	mu    sync.Mutex
	of    map[string]*tally
	asked int64
}

// tally returns the tally of a reach. If there are many, a new one replaces the one that no caller has asked about for
// longest.
func (a *tallies) tally(reach broker.Reach) *tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := fmt.Sprintf("%q %q %q %t", reach.Subject, reach.TrustDomains, reach.Within, reach.All)
	t, known := a.of[key]
	if !known {
		if a.of == nil {
			a.of = map[string]*tally{}
		}
		if len(a.of) >= maxTallies {
			oldest := ""
			for key, t := range a.of {
				if oldest == "" || t.asked < a.of[oldest].asked {
					oldest = key
				}
			}
			delete(a.of, oldest)
		}
		t = &tally{reach: reach}
		a.of[key] = t
	}
	a.asked++
	t.asked = a.asked
	return t
}
