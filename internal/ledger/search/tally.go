package search

import (
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

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
	if t.minutes == nil || max(size-t.high, t.high-size) > mostBehind {
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
	out := q.Nothing()
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
		if len(a.of) >= mostTallies {
			a.forget()
		}
		t = &tally{reach: reach}
		a.of[key] = t
	}
	a.asked++
	t.asked = a.asked
	return t
}

func (a *tallies) forget() {
	oldest := ""
	for key, t := range a.of {
		if oldest == "" || t.asked < a.of[oldest].asked {
			oldest = key
		}
	}
	delete(a.of, oldest)
}
