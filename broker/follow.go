package broker

import (
	"context"
	"sync"
)

// mostFollowing bounds who follows the record on a replica, and mostListeningEach how often one of them does: each asks
// the store about once a second.
const mostFollowing = 100

// followers is who follows the record on this replica.
type followers struct {
	mu   sync.Mutex
	each map[string]int
	all  int
}

// Changes are records that have begun or changed, each once and as it is now, in the order of their last change.
type Changes struct {
	Records []View
	// Next is where to go on. Further tells that there is more already.
	Next    int64
	Further bool
}

// Follow makes room for one who asks for Changes again and again, until they leave. ErrCrowded when too many do, or too
// often the same.
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

// Changes returns what has changed from an index on, of the records within reach that match. An index below zero begins
// now.
func (b *Broker) Changes(ctx context.Context, q Query, reach Reach, from int64) (Changes, error) {
	if b.cfg.Feed == nil {
		return Changes{}, ErrNotFound
	}
	return b.cfg.Feed.Changes(ctx, q, reach, from)
}
