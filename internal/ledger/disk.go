package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// disk is what a replica knows of the disk of Postgres. While it is full, the pages that Postgres has already allocated may have
// room for a few entries. The replica keeps that room for entries that end something, and appends none that begins something.
type disk struct {
	// full is set when a statement that writes fails because the disk is full, and cleared when Postgres can write to it again.
	full    atomic.Bool
	noticed chan struct{}
	onFull  func(full bool)
	leave   context.CancelFunc
	ended   chan struct{} // closed when watchDisk has ended
}

const (
	// diskEvery is the time between two attempts to write to a full disk. diskTimeout bounds each.
	diskEvery   = time.Second
	diskTimeout = 5 * time.Second
)

// errShed is the error of entries that are not sent to a full disk.
var errShed = fmt.Errorf("waiting for room on the disk: %w", broker.ErrLedgerFull)

// notice is called when Postgres answers that the disk is full.
func (d *disk) notice() {
	d.full.Store(true)
	select {
	case d.noticed <- struct{}{}:
	default: // already under way
	}
}

// explain says of an unavailable ledger that its disk was full. If the write-ahead log finds no room, Postgres ends and can tell
// nobody.
func (d *disk) explain(err error) error {
	if d.full.Load() && errors.Is(err, broker.ErrLedgerUnavailable) && !errors.Is(err, broker.ErrLedgerFull) {
		return fmt.Errorf("%w: %w", broker.ErrLedgerFull, err)
	}
	return err
}

// HasRoom returns broker.ErrLedgerFull from the moment at which Postgres answers that its disk is full, until it has room again.
func (l *Ledger) HasRoom(context.Context) error {
	if l.disk.full.Load() {
		return errShed
	}
	return nil
}

// watchDisk waits until a disk is full, and then until it has room again.
func (l *Ledger) watchDisk(ctx context.Context) {
	defer close(l.disk.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.disk.noticed:
		}
		l.disk.full.Store(true) // also if the notice came just before the disk was found to have room
		l.disk.onFull(true)
		l.log.ErrorContext(ctx, "the disk of postgres is full: nothing is issued until it has room: see docs/deploy.md")
		for wait.For(ctx, diskEvery) {
			select {
			case <-l.disk.noticed: // of the same shortage
			default:
			}
			if l.writable(ctx) {
				break
			}
		}
		if ctx.Err() != nil {
			return
		}
		l.disk.full.Store(false)
		l.disk.onFull(false)
		l.log.InfoContext(ctx, "the disk of postgres has room again")
	}
}

// spill makes Postgres write a temporary file of a megabyte, next to the tables. That is more than it would need for some pages,
// and too little to take a segment from the write-ahead log.
var spill = []string{
	`SET LOCAL work_mem = '64kB'`, `SET LOCAL temp_tablespaces = ''`,
	`SELECT sum(length(wide)) FROM (SELECT repeat('x', 1000) || n AS wide FROM generate_series(1, 1000) AS n ORDER BY 1 OFFSET 0) AS sorted`,
}

// writable reports whether Postgres could write to its disk. An answer that does not say so lets the next entry find out; no
// answer means no.
func (l *Ledger) writable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, l.live, func(tx pgx.Tx) error {
		for _, statement := range spill {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	var refused *pgconn.PgError
	answered := errors.As(err, &refused) && refused.SeverityUnlocalized == "ERROR"
	return err == nil || answered && !postgres.Full(err)
}

// begins reports whether the entry begins something, or records that nothing began. It does not end anything.
func (e *entry) begins() bool {
	return slices.Contains([]string{kindDenied, kindPending, kindIntent, kindRefused, kindCalls}, e.kind)
}

// begun reports whether an entry of a batch begins something.
func begun(batch []*job) bool {
	return slices.ContainsFunc(batch, func(j *job) bool { return j.entry.begins() })
}

// shed answers the jobs of a batch that begin something, and returns the others.
func shed(batch []*job, err error) (rest []*job) {
	for _, j := range batch {
		if j.entry.begins() {
			j.done <- answer{err: err}
		} else {
			rest = append(rest, j)
		}
	}
	return rest
}
