package tlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"
)

// maxEntries is the largest page of Entries.
const maxEntries = 1000

// Checkpoint returns the last signed checkpoint that at least this many witnesses have cosigned, zero or more, with its
// cosignatures. It returns audit.ErrNotYet if there is none.
func (l *Log) Checkpoint(ctx context.Context, witnesses int) (string, error) {
	var signed string
	err := l.audit.QueryRow(ctx, `
		SELECT c.note || coalesce((SELECT string_agg(s.line, '' ORDER BY s.witness) FROM cosignatures AS s WHERE s.size = c.size), '')
		FROM checkpoints AS c
		WHERE c.size = CASE @witnesses::int WHEN 0 THEN (SELECT max(size) FROM checkpoints) ELSE (
			SELECT size FROM cosignatures GROUP BY size HAVING count(*) >= @witnesses ORDER BY size DESC LIMIT 1) END`,
		pgx.NamedArgs{"witnesses": witnesses}).Scan(&signed)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", audit.ErrNotYet
	}
	return signed, postgres.Unavailable("reading the last checkpoint", err)
}

// ProveEntry proves that an entry is in the tree of a size, and returns its leaf hash. The size is at most that of the last
// checkpoint, and zero stands for that size. For a larger size ProveEntry returns audit.ErrNotYet.
func (l *Log) ProveEntry(ctx context.Context, index, size int64) (leaf tlog.Hash, of int64, proof tlog.RecordProof, err error) {
	err = withTree(ctx, l.audit, func(tree signedTree) error {
		if of, err = tree.covers(size); err != nil {
			return err
		}
		if index < 0 || index >= of {
			return tree.beyond(index)
		}
		hashes, err := tree.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
		if err == nil {
			leaf = hashes[0]
			proof, err = tlog.ProveRecord(of, index, tree)
		}
		return err
	})
	return leaf, of, proof, err
}

// ProveGrowth proves that the tree of size from is the beginning of the tree of size to. The rules for sizes are those of
// ProveEntry.
func (l *Log) ProveGrowth(ctx context.Context, from, to int64) (of int64, proof tlog.TreeProof, err error) {
	err = withTree(ctx, l.audit, func(tree signedTree) error {
		if of, err = tree.covers(to); err != nil {
			return err
		}
		if from < 1 || from > of {
			return tree.beyond(from - 1)
		}
		proof, err = tlog.ProveTree(of, from, tree)
		return err
	})
	return of, proof, err
}

// Tile returns the first hashes of a tile (c2sp.org/tlog-tiles) of the last checkpoint's tree. Their number is width, and
// zero stands for 256. Tile returns broker.ErrNotFound if the tile is not that wide.
func (l *Log) Tile(ctx context.Context, level int, number int64, width int) (data []byte, err error) {
	if width == 0 {
		width = tileWidth
	}
	err = withTree(ctx, l.audit, func(tree signedTree) error {
		if level < 0 || level > 7 || number < 0 || width < 1 || width > tileWidth {
			return broker.ErrNotFound
		}
		if row := tree.N >> (tileHeight * level); number > row/tileWidth || number*tileWidth+int64(width) > row {
			return broker.ErrNotFound
		}
		data, err = readTile(ctx, tree.tx, tlog.Tile{H: tileHeight, L: level, N: number, W: width})
		return err
	})
	return data, err
}

// Receipt proves all existing entries of an issuance, and of the approved request that it redeemed. It returns
// audit.ErrNotYet while the last checkpoint does not cover all of them, and broker.ErrNotFound if there is no such issuance.
func (l *Log) Receipt(ctx context.Context, id string) (r audit.Receipt, err error) {
	parsed, err := record.ParseID(id)
	if err != nil {
		return r, broker.ErrNotFound
	}
	r.Issuance = id
	err = withTree(ctx, l.audit, func(tree signedTree) error {
		err := tree.tx.QueryRow(ctx, `SELECT coalesce(approves::text, '') FROM issuances WHERE id = $1`, [16]byte(parsed)).Scan(&r.Approves)
		if errors.Is(err, pgx.ErrNoRows) {
			return broker.ErrNotFound
		}
		if err != nil {
			return err
		}
		return tree.proveAll(ctx, &r, `id IN (SELECT t::uuid FROM unnest(@ids::text[]) AS t WHERE t <> '')`,
			pgx.NamedArgs{"ids": []string{id, r.Approves}})
	})
	return r, err
}

// TaskReceipt proves all existing entries of a task: those of its requests and of what became of them, and its end. The
// errors are those of Receipt, and audit.ErrTooLarge for a task with more than 10,000 entries.
func (l *Log) TaskReceipt(ctx context.Context, spiffeID, task string) (r audit.Receipt, err error) {
	if record.Unmatchable(spiffeID, task) {
		return r, broker.ErrNotFound
	}
	r.SPIFFEID, r.Task = spiffeID, task
	err = withTree(ctx, l.audit, func(tree signedTree) error {
		return tree.proveAll(ctx, &r, `id IN (
			SELECT id FROM issuances WHERE spiffe_id = @spiffe_id AND task = @task
			UNION ALL SELECT command FROM task_ends WHERE spiffe_id = @spiffe_id AND task = @task)`,
			pgx.NamedArgs{"spiffe_id": spiffeID, "task": task})
	})
	return r, err
}

// maxProven is how many entries a receipt may hold.
const maxProven = 10_000

// proveAll puts the entries that match into a receipt, with their proofs.
func (t signedTree) proveAll(ctx context.Context, r *audit.Receipt, which string, args pgx.NamedArgs) error {
	args["limit"] = maxProven + 1
	rows, err := t.tx.Query(ctx, `SELECT index, convert_from(body, 'UTF8') FROM entries WHERE `+which+` ORDER BY index LIMIT @limit`, args)
	r.Entries, err = postgres.Collect(rows, err, func(row pgx.CollectableRow) (e audit.ReceiptEntry, err error) {
		err = row.Scan(&e.Index, &e.Body)
		return e, err
	})
	switch {
	case err != nil:
		return err
	case len(r.Entries) == 0:
		return broker.ErrNotFound
	case len(r.Entries) > maxProven:
		return audit.ErrTooLarge
	case r.Entries[len(r.Entries)-1].Index >= t.N:
		return audit.ErrNotYet
	}
	for i := range r.Entries {
		if r.Entries[i].Proof, err = tlog.ProveRecord(t.N, r.Entries[i].Index, t); err != nil {
			return err
		}
	}
	r.Version, r.Checkpoint = 1, t.note
	return nil
}

// Entries returns up to limit entries in order, from an index on. limit is 1 to 1000. A page ends earlier once it holds
// maxPageBytes.
func (l *Log) Entries(ctx context.Context, from int64, limit int) ([]audit.LogEntry, error) {
	if limit < 1 || limit > maxEntries {
		return nil, record.ErrPageSize
	}
	rows, err := l.audit.Query(ctx, `SELECT index, convert_from(body, 'UTF8') FROM entries WHERE index >= @from ORDER BY index LIMIT @limit`,
		pgx.NamedArgs{"from": from, "limit": limit})
	if err != nil {
		return nil, postgres.Unavailable("reading entries", err)
	}
	defer rows.Close()
	var page []audit.LogEntry
	for size := 0; size < record.MaxPageBytes && rows.Next(); {
		var e audit.LogEntry
		if err := rows.Scan(&e.Index, &e.Body); err != nil {
			return nil, postgres.Unavailable("reading entries", err)
		}
		page = append(page, e)
		size += len(e.Body)
	}
	rows.Close()
	return page, postgres.Unavailable("reading entries", rows.Err())
}

// signedTree is the tree of the last checkpoint, as one transaction sees it.
type signedTree struct {
	tlog.Tree
	tlog.HashReader
	tx   pgx.Tx
	note string
}

// covers returns the size of the tree to prove something of. It returns an error if the checkpoint does not cover that size.
func (t signedTree) covers(size int64) (int64, error) {
	switch {
	case size == 0:
		return t.N, nil
	case size < 0:
		return 0, broker.ErrNotFound
	case size > t.N:
		return 0, t.beyond(size - 1)
	}
	return size, nil
}

// beyond returns audit.ErrNotYet for an entry that only a later tree can hold, and broker.ErrNotFound for any other index.
func (t signedTree) beyond(index int64) error {
	if index < t.N {
		return broker.ErrNotFound
	}
	return audit.ErrNotYet
}

// withTree runs do with the tree of the last checkpoint. It does not check results against the signed root: the client that
// requests them does.
func withTree(ctx context.Context, pool *pgxpool.Pool, do func(signedTree) error) error {
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		tree := signedTree{HashReader: treeOf(ctx, tx), tx: tx}
		var root []byte
		err := tx.QueryRow(ctx, `SELECT size, root, note FROM checkpoints ORDER BY size DESC LIMIT 1`).Scan(&tree.N, &root, &tree.note)
		if errors.Is(err, pgx.ErrNoRows) {
			return audit.ErrNotYet
		}
		if err != nil {
			return err
		}
		copy(tree.Hash[:], root)
		return do(tree)
	})
	if err == nil || errors.Is(err, audit.ErrNotYet) || errors.Is(err, broker.ErrNotFound) || errors.Is(err, audit.ErrTooLarge) {
		return err
	}
	return fmt.Errorf("reading the tree: %w", postgres.Unavailable("proving", err))
}
