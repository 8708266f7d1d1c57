package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// awaitEvery is how often what is waited for is looked up, all of a replica's with one query.
	awaitEvery = 250 * time.Millisecond
	// mostWaiting bounds who waits on a replica, and mostWaitingEach those of one sandbox.
	mostWaiting, mostWaitingEach = 10_000, 16
)

// waiter is somebody who wants to know when a request is decided.
type waiter struct {
	request, self string
	decided       chan struct{} // closed then
}

// waiters are all who wait on this replica.
type waiters struct {
	mu        sync.Mutex
	byRequest map[string]map[*waiter]bool
	bySelf    map[string]int
	all       int
	watched   bool
}

// join returns nil when too many wait already. watch tells that nobody looks for the waiters yet, and the caller has to.
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

// requests lists what is waited for. When that is nothing, nobody watches any more.
func (ws *waiters) requests() []string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.watched = len(ws.byRequest) > 0
	return slices.Collect(maps.Keys(ws.byRequest))
}

// tell wakes those who wait for a request; each leaves by itself.
func (ws *waiters) tell(request string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byRequest[request] {
		select {
		case <-w.decided: // told before
		default:
			close(w.decided)
		}
	}
}

// Await returns true once a request is not pending any more, and false when ctx ends before, or too many wait here
// already. self is who waits.
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

// watch looks what is decided as long as anybody waits. What cannot be looked up is waited for on.
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
