package ledger

import (
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// tally is what was counted of one reach, minute by minute. Entries never change, and each counts once, in the minute that
// it tells: what was counted between two indexes is right for good, also when an entry is later than its neighbours. So a tally
// knows from which index up to which it has counted, and goes on at both ends: first to what is new, and then back, as far as
// somebody asks. No minute has to be closed for that. It is safe for concurrent use.
type tally struct {
	reach broker.Reach
	asked int64 // the larger, the later; tallies looks after it

	mu      sync.Mutex
	minutes map[int64]broker.Rate // by minute since 1970; nil until there is something to tell
	// The entries from low up to high are counted: those that were recorded from back, which is zero for none, until upTo.
	low, high  int64
	back, upTo time.Time
	// What is under way, if done is not nil: up to size, which is not known when it is negative, and back to since. Done is closed
	// when it is over.
	size         int64
	since, until time.Time
	done         chan struct{}
	err          error // of what was under way last
}

// begin has the tally counted from since until now. First tells that nothing is under way: whoever is told so has it done.
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

// end is told when what is under way is over.
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

// goal tells how many entries there are now: what comes later is for the next time. A tally that is far behind begins again,
// at the end, since what is new is asked for first. A standby may have less than was counted on another.
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

// next are the indexes to count; none when it is done.
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

// add adds what was counted of the next indexes, of which the first was recorded at that time.
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

// rates is what is known by now.
func (t *tally) rates(q broker.RatesQuery) broker.Rates {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := q.Nothing()
	out.From, out.Until = t.back.Add(outOfOrder), t.upTo
	switch {
	case t.minutes == nil || t.upTo.IsZero():
		out.From, out.Until = time.Time{}, time.Time{}
	case t.low == 0:
		out.From = q.Since // it is all there is
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

// tallies are those of the reaches that were asked about last.
type tallies struct {
	mu    sync.Mutex
	of    map[string]*tally
	asked int64
}

// tally is that of a reach, which takes the place of the one that nobody has asked about for longest when there are many.
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
