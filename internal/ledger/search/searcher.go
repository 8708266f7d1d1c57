// Package search answers the questions of people about the ledger: lists of records by filters, what changed since, time lines,
// and counts. Everything is bound to a reach.
//
// The package must never read a record outside the reach, and never let one reader delay the requests of sandboxes. It writes
// nothing.
package search

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Searcher searches and counts. It is safe for concurrent use.
type Searcher struct {
	read, audit *pgxpool.Pool

	// counting is a semaphore: only one caller counts uses at any time.
	counting chan struct{}

	// tallies are the counts for callers of Rates. tallying queues those that keepTallies has to continue.
	tallies      tallies
	tallying     chan *tally
	leaveTallies context.CancelFunc
	tallied      chan struct{} // closed when keepTallies has ended
}

// New returns a searcher. It searches with read for sandboxes, and with audit, which may connect to a standby, for everybody
// else. StopCounting ends what it has started.
func New(ctx context.Context, read, audit *pgxpool.Pool) *Searcher {
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx))
	r := &Searcher{
		read: read, audit: audit, counting: make(chan struct{}, 1),
		tallying: make(chan *tally, maxTallies), leaveTallies: leave, tallied: make(chan struct{}),
	}
	go r.keepTallies(ctx)
	return r
}

// StopCounting ends the count for callers of Rates. The caller then closes the pools.
func (r *Searcher) StopCounting() {
	r.leaveTallies()
	<-r.tallied
}

// poolFor returns the pool to search with. Auditors have a separate pool, so their searches do not delay the requests of
// sandboxes, which look up earlier requests.
func (r *Searcher) poolFor(reach broker.Reach) *pgxpool.Pool {
	if reach.Subject != "" {
		return r.read
	}
	return r.audit
}

// searching returns broker.ErrTooBroad for a search that took too long, and any other error as that of an unavailable
// database.
func searching(doing string, err error) error {
	const canceled = "57014"
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == canceled {
		return fmt.Errorf("%s: %w", doing, broker.ErrTooBroad)
	}
	return postgres.Unavailable(doing, err)
}
