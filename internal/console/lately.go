package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

const (
	// lasts is how long a cached answer is used.
	lasts = 3 * time.Second
	// mostReaches is how many reaches live counts are cached for.
	mostReaches = 64
)

// lately caches the last answer of a slow call, including an error. All visitors within a few seconds get the same answer.
// The zero value is ready to use.
type lately[T any] struct {
	mu    sync.Mutex
	asked time.Time
	value T
	err   error
}

// read returns the cached answer, or calls fetch if that is too old. The call continues if the caller disconnects, because
// other callers wait for it.
func (l *lately[T]) read(ctx context.Context, now func() time.Time, fetch func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since := now().Sub(l.asked); since < 0 || since >= lasts {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
		defer cancel()
		l.value, l.err = fetch(ctx)
		l.asked = now()
	}
	return l.value, l.err
}

// liveTotals caches live counts by reach: the dashboards of many people refresh by themselves. The zero value is ready to
// use.
type liveTotals struct {
	mu sync.Mutex
	of map[string]*lately[broker.LiveCounts]
}

// within returns the cache of one reach.
func (l *liveTotals) within(reach broker.Reach) *lately[broker.LiveCounts] {
	key := fmt.Sprintf("%#v", reach)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[key] == nil {
		if l.of == nil || len(l.of) >= mostReaches {
			l.of = map[string]*lately[broker.LiveCounts]{}
		}
		l.of[key] = &lately[broker.LiveCounts]{}
	}
	return l.of[key]
}
