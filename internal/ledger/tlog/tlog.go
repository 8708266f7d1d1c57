// Package tlog is the transparency log over the entries of the ledger: a tree of their hashes as in RFC 6962, in tiles as in
// c2sp.org/tlog-tiles. It signs checkpoints of the tree, keeps the cosignatures of witnesses, and proves that entries are in
// the tree and that the tree only grows. It finds out when the database has gone back behind a checkpoint.
//
// The package must never sign a checkpoint that does not follow from the last one. It never appends an entry.
package tlog

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config configures a Log. The caller closes the pools.
type Config struct {
	// Seals and Live connect to the primary. Seals sets postgres.NoteWarning.
	Seals, Live *pgxpool.Pool
	// Audit may connect to a standby.
	Audit *pgxpool.Pool
	Log   *slog.Logger
	// OnSealed is called with the size of the last checkpoint when that checkpoint follows from the one before, and covers
	// either all entries or more than before.
	OnSealed func(size int64)
}

// Log is the transparency log. It is safe for concurrent use, and other replicas may sign the same log.
type Log struct {
	seals, live, audit *pgxpool.Pool
	log                *slog.Logger
	onSealed           func(size int64)

	// sealed is the last checkpoint that this replica has seen. rollbackDetected holds the error while the database is known
	// to be behind it.
	sealed           atomic.Pointer[audit.Checkpoint]
	rollbackDetected atomic.Pointer[error]
}

// New returns the log of the schema that the pools connect to.
func New(cfg Config) *Log {
	return &Log{seals: cfg.Seals, live: cfg.Live, audit: cfg.Audit, log: cfg.Log, onSealed: cfg.OnSealed}
}

// judge records whether the database can be trusted. An error of another kind says nothing about that.
func (l *Log) judge(ctx context.Context, err error) {
	before := l.rollbackDetected.Load()
	switch {
	case err == nil:
		l.rollbackDetected.Store(nil)
		if before != nil {
			l.log.WarnContext(ctx, "the ledger is the one again that its checkpoints were signed for")
		}
	case errors.Is(err, postgres.ErrWentBack):
		l.rollbackDetected.Store(&err)
		if before == nil || (*before).Error() != err.Error() {
			l.log.ErrorContext(ctx, "nothing is issued: see docs/audit.md", "error", err)
		}
	}
}

// CheckRollback returns an error while the database is known to have gone back.
func (l *Log) CheckRollback() error {
	if err := l.rollbackDetected.Load(); err != nil {
		return postgres.Unavailable("looking at the checkpoints", *err)
	}
	return nil
}
