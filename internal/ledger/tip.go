package ledger

import (
	"context"
	"fmt"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// tip is an entry that this replica knows the ledger to hold.
type tip struct {
	index int64
	leaf  tlog.Hash
}

// within returns ErrWentBack if a ledger of this size does not hold the tip.
func (t *tip) within(size int64) error {
	if t != nil && size <= t.index {
		return fmt.Errorf("%w: it does not have entry %d", postgres.ErrWentBack, t.index)
	}
	return nil
}

// checkTip refuses a connection to a database that does not hold the last entry that this replica has appended. So after a
// failover or a restore, nothing is appended to a database that has gone back.
func (l *Ledger) checkTip(ctx context.Context, conn *pgx.Conn) error {
	known := l.tip.Load()
	if known == nil {
		return nil
	}
	var there bool
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM entries WHERE index = $1 AND leaf_hash = $2)
			OR EXISTS (SELECT FROM tree_tiles WHERE level = 0 AND number = $1 / 256 AND substr(hashes, ($1 % 256)::integer * 32 + 1, 32) = $2)`,
		pgx.QueryExecModeExec, known.index, known.leaf[:]).Scan(&there)
	if err == nil && !there {
		err = fmt.Errorf("%w: entry %d is not as this replica has appended it", postgres.ErrWentBack, known.index)
	}
	return err
}
