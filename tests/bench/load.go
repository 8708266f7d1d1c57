package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// call sends one request of one caller. It returns nil if the request succeeds.
type call func(ctx context.Context) error

// load holds the results of a group of callers over a period.
type load struct {
	took      []time.Duration // of each success, sorted
	failed    int
	first     error // the first error
	elapsed   time.Duration
	processor map[string]time.Duration
}

// rate returns the number of successes per second.
func (l load) rate() float64 { return float64(len(l.took)) / l.elapsed.Seconds() }

// at returns the latency at a quantile of the successes.
func (l load) at(quantile float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	return l.took[min(len(l.took)-1, int(quantile*float64(len(l.took))))]
}

// each returns the processor time of a part per success.
func (l load) each(part string) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	return l.processor[part] / time.Duration(len(l.took))
}

// closed makes every caller send the next request as soon as it has a response.
func (d *deployment) closed(ctx context.Context, callers []call, lasts time.Duration) load {
	deadline := time.Now().Add(lasts)
	return d.measure(ctx, callers, func() (time.Time, bool) {
		now := time.Now()
		return now, now.Before(deadline)
	})
}

// open makes requests arrive at a rate, whether or not earlier ones have a response. A request's time counts from when it
// should have been sent, so a wait for a free caller is part of it.
func (d *deployment) open(ctx context.Context, callers []call, rate float64, lasts time.Duration) load {
	began := time.Now()
	var mu sync.Mutex
	sent := 0
	return d.measure(ctx, callers, func() (time.Time, bool) {
		mu.Lock()
		due := began.Add(time.Duration(float64(sent) / rate * float64(time.Second)))
		sent++
		mu.Unlock()
		time.Sleep(time.Until(due))
		return due, due.Sub(began) < lasts
	})
}

// measure runs all callers in parallel until next returns false. next also returns the time from which a request counts.
func (d *deployment) measure(ctx context.Context, callers []call, next func() (time.Time, bool)) load {
	var mu sync.Mutex
	var l load
	var workers sync.WaitGroup
	before, began := d.spent(), time.Now()
	for _, ask := range callers {
		workers.Go(func() {
			var took []time.Duration
			var failures []error
			for ctx.Err() == nil {
				since, more := next()
				if !more {
					break
				}
				if err := ask(ctx); err != nil {
					failures = append(failures, err)
					continue
				}
				took = append(took, time.Since(since))
			}
			mu.Lock()
			defer mu.Unlock()
			l.took = append(l.took, took...)
			l.failed += len(failures)
			if l.first == nil && len(failures) > 0 {
				l.first = failures[0]
			}
		})
	}
	workers.Wait()
	l.elapsed, l.processor = time.Since(began), d.spent()
	for part := range l.processor {
		l.processor[part] -= before[part]
	}
	slices.Sort(l.took)
	return l
}

// check returns an error if too many requests failed to compare the load with another.
func (l load) check() error {
	if len(l.took) == 0 || l.failed > len(l.took)/100 {
		return errors.Join(errors.New("too many requests failed"), l.first)
	}
	return nil
}
