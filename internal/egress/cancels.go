package egress

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// cancels are the sessions of one sandbox in which something can be cancelled.
type cancels struct {
	mu  sync.Mutex
	all map[cancelKey]*pgconn.PgConn
}

// add makes a key for a session, which is good until it is forgotten.
func (c *cancels) add(upstream *pgconn.HijackedConn) (key cancelKey, forget func()) {
	key = newCancelKey()
	// It is used for nothing but to cancel, for which it opens a connection of its own.
	canceller, err := pgconn.Construct(upstream)
	if err != nil {
		return key, func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[cancelKey]*pgconn.PgConn{}
	}
	c.all[key] = canceller
	return key, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, key)
	}
}

// run cancels what is under way in a session. Nobody is told whether there is one.
func (c *cancels) run(ctx context.Context, key cancelKey) {
	c.mu.Lock()
	canceller := c.all[key]
	c.mu.Unlock()
	if canceller == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	_ = canceller.CancelRequest(ctx)
}
