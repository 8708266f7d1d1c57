package egress

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// cancels are the sessions of one sandbox in which a client can cancel a query.
type cancels struct {
	mu  sync.Mutex
	all map[cancelKey]*pgconn.PgConn
}

// add registers a session and returns its cancel key. The key is valid until the caller calls forget.
func (c *cancels) add(upstream *pgconn.HijackedConn) (key cancelKey, forget func()) {
	key = newCancelKey()
	// This PgConn only cancels, and opens a new connection to do so.
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

// run cancels the query that runs in a session. It returns nothing, so the client can't learn whether the session exists.
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
