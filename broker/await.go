package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// awaitEvery is the interval between queries for decisions. One query serves all waiters of a replica.
	awaitEvery = 250 * time.Millisecond
	// mostWaiting limits the waiters on a replica, and mostWaitingEach those of one sandbox.
	mostWaiting, mostWaitingEach = 10_000, 16
)

// waiter is a caller that waits for a decision on a request.
type waiter struct {
	request, self string
	decided       chan struct{} // closed when the request is decided
}

// waiters are the waiters on this replica.
type waiters struct {
	mu        sync.Mutex
	byRequest map[string]map[*waiter]bool
	bySelf    map[string]int
	all       int
	watched   bool
}

// join adds a waiter. It returns nil if too many wait already. watch means that no goroutine polls yet, and the caller must start
// one.
func (ws *waiters) join(request, self string) (w *waiter, watch bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all >= mostWaiting || ws.bySelf[self] >= mostWaitingEach {
		return nil, false
	}
	if ws.byRequest == nil {
		ws.byRequest, ws.bySelf = map[string]map[*waiter]bool{}, map[string]int{}
	}
	if ws.byRequest[request] == nil {
		ws.byRequest[request] = map[*waiter]bool{}
	}
	w = &waiter{request, self, make(chan struct{})}
	ws.byRequest[request][w] = true
	ws.bySelf[self]++
	ws.all++
	watch, ws.watched = !ws.watched, true
	return w, watch
}

func (ws *waiters) leave(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.byRequest[w.request], w)
	if len(ws.byRequest[w.request]) == 0 {
		delete(ws.byRequest, w.request)
	}
	if ws.bySelf[w.self]--; ws.bySelf[w.self] == 0 {
		delete(ws.bySelf, w.self)
	}
	ws.all--
}

// requests returns the requests that callers wait for. If there are none, it also marks them as no longer watched.
func (ws *waiters) requests() []string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.watched = len(ws.byRequest) > 0
	return slices.Collect(maps.Keys(ws.byRequest))
}

// tell wakes the waiters of a request. Each waiter removes itself.
func (ws *waiters) tell(request string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byRequest[request] {
		select {
		case <-w.decided: // already woken
		default:
			close(w.decided)
		}
	}
}

// Await waits for a decision. It returns true once the request is no longer pending, and false if ctx ends first or too many
// callers wait already. self is the caller.
func (b *Broker) Await(ctx context.Context, request, self string) bool {
	w, watch := b.waiters.join(request, self)
	if w == nil {
		return false
	}
	defer b.waiters.leave(w)
	if watch {
		b.watchers.Go(func() { b.watch(context.WithoutCancel(ctx)) })
	}
	select {
	case <-w.decided:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch polls for decisions while there are waiters. After an error, it tries again at the next tick.
func (b *Broker) watch(ctx context.Context) {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for requests := b.waiters.requests(); len(requests) > 0; requests = b.waiters.requests() {
		if decided, err := b.cfg.Approvals.Decided(ctx, requests); err == nil {
			for _, request := range decided {
				b.waiters.tell(request)
			}
		}
		<-tick.C
	}
}
