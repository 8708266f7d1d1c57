package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// call is one request of one caller, and nil when it got what it asked for.
type call func(ctx context.Context) error

// load is what callers did and saw within a time.
type load struct {
	took      []time.Duration // of each that succeeded, sorted
	failed    int
	first     error // of the failures
	elapsed   time.Duration
	processor map[string]time.Duration
}

// rate is in successes a second.
func (l load) rate() float64 { return float64(len(l.took)) / l.elapsed.Seconds() }

// at is the latency that this part of the successes kept below.
func (l load) at(quantile float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	return l.took[min(len(l.took)-1, int(quantile*float64(len(l.took))))]
}

// each is the processor time per success of a part.
func (l load) each(part string) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	return l.processor[part] / time.Duration(len(l.took))
}

// closed has every caller ask again as soon as it has its answer.
func (d *deployment) closed(ctx context.Context, callers []call, lasts time.Duration) load {
	deadline := time.Now().Add(lasts)
	return d.measure(ctx, callers, func() (time.Time, bool) {
		now := time.Now()
		return now, now.Before(deadline)
	})
}

// open has requests arrive at a rate, whether or not earlier ones have their answer. A request's time counts from when
// it should have been sent, so that a wait for a free caller is part of it.
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

// measure has each caller ask for as long as next says that there is another, and from when its time counts.
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

// check is the error of a load in which too much failed to compare it with another.
func (l load) check() error {
	if len(l.took) == 0 || l.failed > len(l.took)/100 {
		return errors.Join(errors.New("too many requests failed"), l.first)
	}
	return nil
}
