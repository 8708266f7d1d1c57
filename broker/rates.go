package broker

import (
	"context"
	"time"
)

// LongestRates is how far back rates go.
const LongestRates = 24 * time.Hour

// RatesQuery says of which time rates are asked, and for how long each counts.
type RatesQuery struct {
	// Since is at most LongestRates before Until.
	Since, Until time.Time
	// Step is a whole number of minutes.
	Step time.Duration
}

// Rates is how much was recorded, step by step.
type Rates struct {
	Step time.Duration
	// Steps come oldest first and without a gap. The last one is not over yet.
	Steps []Rate
	// What was recorded from the one until the other is counted. Steps that begin before lack something, and may go on
	// growing. Both are zero while nothing is known yet.
	From, Until time.Time
}

// Rate is what was recorded in a step.
type Rate struct {
	Start time.Time
	// Issued counts what was allowed, whatever became of it, Pending what was asked of people, and Ended what was ended before
	// its time: revoked, given back or used up.
	Issued, Denied, Pending, Ended int64
}

// Rates counts what was recorded within reach since then. It goes back for LongestRates at most, by steps of whole minutes.
func (b *Broker) Rates(ctx context.Context, since time.Time, step time.Duration, reach Reach) (Rates, error) {
	q := RatesQuery{Since: since, Until: b.cfg.Now().UTC(), Step: max(step.Truncate(time.Minute), time.Minute)}
	if earliest := q.Until.Add(-LongestRates); q.Since.Before(earliest) {
		q.Since = earliest
	}
	if b.cfg.Stats == nil {
		return q.Nothing(), nil
	}
	return b.cfg.Stats.Rates(ctx, q, reach)
}

// Starts are the times at which the steps begin, oldest first: as many as it takes from Since, up to the one that Until is in.
func (q RatesQuery) Starts() []time.Time {
	var all []time.Time
	last := q.Until.Truncate(q.Step)
	for n := int64((q.Until.Sub(q.Since) + q.Step - 1) / q.Step); n > 0; n-- {
		all = append(all, last.Add(-time.Duration(n-1)*q.Step))
	}
	return all
}

// Nothing is what there is where there is nothing to count.
func (q RatesQuery) Nothing() Rates {
	r := Rates{Step: q.Step, From: q.Since, Until: q.Until}
	for _, start := range q.Starts() {
		r.Steps = append(r.Steps, Rate{Start: start})
	}
	return r
}
