package tlog

import (
	"context"
	"errors"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

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
