package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// readBack finds out, on a connection of its own, what became of a batch whose answer was lost.
func (l *Ledger) readBack(ctx context.Context, batch []*job, lost error) []answer {
	present, err := l.prove(ctx, batch)
	if err != nil {
		return same(batch, unavailable("reading back", err))
	}
	answers := make([]answer, len(batch))
	for i, j := range batch {
		if !present[j.entry.leaf] {
			answers[i].err = unavailable("committing", lost)
		}
	}
	return answers
}

// prove returns the leaves of the batch that are committed, for good. Taking the head's lock waits for a statement
// that may still be running, and keeps others out; the commit of this transaction is durable only when all before
// it are.
func (l *Ledger) prove(ctx context.Context, batch []*job) (map[tlog.Hash]bool, error) {
	conn, err := pgx.ConnectConfig(ctx, l.write.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := l.checkPrimary(ctx, conn); err != nil {
		return nil, err
	}
	var leaves []tlog.Hash
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE ledger_head SET size = size`); err != nil {
			return err
		}
		args := contents(batch)
		rows, err := tx.Query(ctx,
			`SELECT leaf_hash FROM entries WHERE id = ANY (@ids::uuid[]) AND leaf_hash = ANY (@leaves::bytea[])`,
			pgx.NamedArgs{"ids": args["ids"], "leaves": args["leaves"]})
		if err != nil {
			return err
		}
		leaves, err = pgx.CollectRows(rows, scanHash)
		return err
	})
	if err == nil && conn.PgConn().CustomData()[warning] != nil {
		err = errWarned
	}
	present := make(map[tlog.Hash]bool, len(leaves))
	for _, leaf := range leaves {
		present[leaf] = true
	}
	return present, err
}
