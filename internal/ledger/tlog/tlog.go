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
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"
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

// Expect makes the ledger continue a checkpoint that was kept elsewhere. While the ledger does not, nothing is appended to
// it, and Expect returns no error for that. Call it before Seal.
func (l *Log) Expect(ctx context.Context, c audit.Checkpoint) error {
	if c.N == 0 || l.rollbackDetected.Load() != nil {
		return nil // nothing is expected, or an earlier expectation has failed already
	}
	err := continues(ctx, l.live, c)
	if err != nil && !errors.Is(err, postgres.ErrWentBack) {
		return err
	}
	if seen := l.sealed.Load(); err != nil || seen == nil || seen.N < c.N {
		l.sealed.Store(&c)
	}
	l.judge(ctx, err)
	return nil
}

// Growth returns the last signed checkpoint, its size, and the proof that the log of size from is the beginning of it. There
// is no proof if from is zero or more than the size. Growth returns audit.ErrNotYet if there is no checkpoint. It also
// returns broker.ErrLedgerUnavailable while the ledger takes no entries, so that no checkpoint is shown then.
func (l *Log) Growth(ctx context.Context, from int64) (size int64, signed string, proof tlog.TreeProof, err error) {
	if err := l.CheckRollback(); err != nil {
		return 0, "", nil, err
	}
	err = withTree(ctx, l.live, func(tree signedTree) error {
		size, signed = tree.N, tree.note
		if from > 0 && from <= tree.N {
			proof, err = tlog.ProveTree(tree.N, from, tree)
		}
		return err
	})
	return size, signed, proof, err
}

// Cosign stores a witness's cosignature of the checkpoint of a size. The first one that a witness gave stays.
func (l *Log) Cosign(ctx context.Context, witness string, size int64, line string) error {
	_, err := l.seals.Exec(ctx, `
		INSERT INTO cosignatures (size, witness, line, time) VALUES (@size, @witness, @line, clock_timestamp())
		ON CONFLICT DO NOTHING`, pgx.NamedArgs{"size": size, "witness": witness, "line": line})
	return postgres.Unavailable("keeping a cosignature", err)
}
