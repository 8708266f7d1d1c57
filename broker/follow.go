package broker

import (
	"context"
	"sync"
)

// mostFollowing is how many followers a replica has at most, and mostListeningEach how many of them may be the same caller. Each
// follower queries the store about once a second.
const mostFollowing = 100

// followers counts the callers that follow the record on this replica.
type followers struct {
	mu   sync.Mutex
	each map[string]int
	all  int
}

// Changes are records that have begun or changed, in the order of their latest change. Each appears once, in its current state.
type Changes struct {
	Records []View
	// Next is the index to continue from. Further means that more changes are already available.
	Next    int64
	Further bool
}

// Follow reserves a place for a caller that polls Changes, until it calls leave. It returns ErrCrowded if there are too many
// followers, or too many by this caller.
func (b *Broker) Follow(who string) (leave func(), err error) {
	f := &b.followers
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all >= mostFollowing || f.each[who] >= mostListeningEach {
		return nil, ErrCrowded
	}
	if f.each == nil {
		f.each = map[string]int{}
	}
	f.each[who]++
	f.all++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.each[who]--; f.each[who] == 0 {
			delete(f.each, who)
		}
		f.all--
	}), nil
}

// Changes returns the matching records within reach that have changed since an index. A negative index starts at the end of the
// ledger.
func (b *Broker) Changes(ctx context.Context, q Query, reach Reach, from int64) (Changes, error) {
	return b.cfg.Feed.Changes(ctx, q, reach, from)
}
