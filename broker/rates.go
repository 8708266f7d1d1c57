package broker

import (
	"context"
	"time"
)

// LongestRates is the longest period that rates cover.
const LongestRates = 24 * time.Hour

// RatesQuery selects the period and the step of rates.
type RatesQuery struct {
	// Since is at most LongestRates before Until.
	Since, Until time.Time
	// Step is a whole number of minutes.
	Step time.Duration
}

// Rates counts what was recorded, step by step.
type Rates struct {
	Step time.Duration
	// Steps are in order of time, without gaps. The last step is not over yet.
	Steps []Rate
	// From and Until delimit the period that is fully counted. Steps that begin before From are incomplete and may still grow.
	// Both are zero as long as nothing is counted.
	From, Until time.Time
}

// Rate counts what was recorded in one step.
type Rate struct {
	Start time.Time
	// Issued counts allowed requests, whatever became of them. Pending counts requests for approval. Ended counts credentials
	// that ended early: revoked, released or used.
	Issued, Denied, Pending, Ended int64
}

// Rates counts what was recorded within reach since a time. It covers at most LongestRates, in steps of whole minutes.
func (b *Broker) Rates(ctx context.Context, since time.Time, step time.Duration, reach Reach) (Rates, error) {
	q := RatesQuery{Since: since, Until: b.cfg.Now().UTC(), Step: max(step.Truncate(time.Minute), time.Minute)}
	if earliest := q.Until.Add(-LongestRates); q.Since.Before(earliest) {
		q.Since = earliest
	}
	return b.cfg.Stats.Rates(ctx, q, reach)
}

// Starts returns the start times of the steps, oldest first: as many as cover the time from Since, up to the step that contains
// Until.
func (q RatesQuery) Starts() []time.Time {
	var all []time.Time
	last := q.Until.Truncate(q.Step)
	for n := int64((q.Until.Sub(q.Since) + q.Step - 1) / q.Step); n > 0; n-- {
		all = append(all, last.Add(-time.Duration(n-1)*q.Step))
	}
	return all
}

// Nothing returns rates in which every count is zero.
func (q RatesQuery) Nothing() Rates {
	r := Rates{Step: q.Step, From: q.Since, Until: q.Until}
	for _, start := range q.Starts() {
		r.Steps = append(r.Steps, Rate{Start: start})
	}
	return r
}
