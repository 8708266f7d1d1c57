package tlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// sealEvery is the time between two checks for something to sign.
	sealEvery = 500 * time.Millisecond
	// sealTimeout bounds one checkpoint, and so how long a replica that hangs keeps the others from signing.
	sealTimeout = 10 * time.Second
	// maxSeal is how many entries one checkpoint adds at most. A ledger that existed before its tree catches up in steps.
	maxSeal = 1 << 16
)

// Notary signs the checkpoints of one log.
type Notary interface {
	// Origin is the name of the log.
	Origin() string
	// Keys are the public keys that a checkpoint may be signed with, as in c2sp.org/signed-note. Keys with another name
	// belong to an earlier name of the log.
	Keys(ctx context.Context) ([]string, error)
	// Sign returns the text as a signed note.
	Sign(ctx context.Context, text string) ([]byte, error)
}

// Seal signs a checkpoint whenever the ledger has grown, until ctx ends. Only one replica signs at any time. Seal checks
// each checkpoint against the last one that this replica knows. While they disagree, the ledger takes no entries.
func (l *Log) Seal(ctx context.Context, notary Notary) error {
	for fault := ""; ctx.Err() == nil; {
		more, err := l.SealOnce(ctx, notary)
		fault = l.report(ctx, fault, err)
		if err != nil || !more {
			wait.For(ctx, sealEvery)
		}
	}
	return ctx.Err()
}

// report logs what prevents checkpoints from being signed, whenever that changes, and returns it.
func (l *Log) report(ctx context.Context, before string, err error) string {
	switch {
	case ctx.Err() != nil || errors.Is(err, postgres.ErrWentBack):
		return before // judge logs it
	case err != nil && err.Error() != before:
		l.log.WarnContext(ctx, "no checkpoint signed", "error", err)
	case err == nil && before != "":
		l.log.InfoContext(ctx, "checkpoints are signed again")
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// SealOnce checks once for something to sign, as Seal does all the time, and reports whether there is more.
func (l *Log) SealOnce(ctx context.Context, notary Notary) (more bool, err error) {
	more, err = l.sealOnce(ctx, notary)
	l.judge(ctx, err)
	return more, err
}

// sealOnce checks the last checkpoint, and signs a new one if the ledger has grown and no other replica is signing.
func (l *Log) sealOnce(ctx context.Context, notary Notary) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sealTimeout)
	defer cancel()
	keys, err := keysOf(ctx, notary)
	if err != nil {
		return false, err
	}
	conn, err := l.seals.Acquire(ctx)
	if err != nil {
		return false, postgres.Unavailable("connecting", err)
	}
	defer conn.Release()
	var next audit.Checkpoint
	var size int64
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var last audit.Checkpoint
		if last, size, err = l.lastSealed(ctx, tx, notary.Origin(), keys); err != nil || size == last.N {
			next = last
			return err
		}
		more = size-last.N > maxSeal
		next, err = seal(ctx, tx, notary, last, min(size, last.N+maxSeal))
		return err
	})
	if warned := postgres.Warned(conn.Conn()); err == nil && warned != nil {
		err = errors.Join(warned, conn.Conn().Close(ctx))
	}
	if err == nil {
		before := l.sealed.Swap(&next)
		if next.N == size || next.N > sizeOf(before) {
			l.onSealed(next.N)
		}
	}
	return more, err
}

// logKeys are the public keys of a log, by the name that the log had.
type logKeys map[string]note.Verifiers

func keysOf(ctx context.Context, notary Notary) (logKeys, error) {
	texts, err := notary.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the log's keys: %w", err)
	}
	named := map[string][]note.Verifier{}
	for _, text := range texts {
		v, err := note.NewVerifier(text)
		if err != nil {
			return nil, fmt.Errorf("reading the log's keys: %w", err)
		}
		named[v.Name()] = append(named[v.Name()], v)
	}
	keys := logKeys{}
	for name, all := range named {
		keys[name] = note.VerifierList(all...)
	}
	return keys, nil
}

// open reads a checkpoint that one of the keys has signed, and returns it with the log's current name.
func (k logKeys) open(signed, origin string) (audit.Checkpoint, error) {
	name, _, _ := strings.Cut(signed, "\n")
	keys, ok := k[name]
	if !ok {
		return audit.Checkpoint{}, fmt.Errorf("%w: it is of the log %q, not %q", audit.ErrUnsigned, name, origin)
	}
	c, err := audit.OpenCheckpoint([]byte(signed), name, keys)
	c.Origin = origin
	return c, err
}

// lastSealed returns the last checkpoint and the size of the ledger. It returns ErrWentBack if the checkpoint does not
// follow from what this replica has seen.
func (l *Log) lastSealed(ctx context.Context, tx pgx.Tx, origin string, keys logKeys) (last audit.Checkpoint, size int64, err error) {
	last.Origin = origin
	var signed string
	err = tx.QueryRow(ctx, `
		SELECT h.size, coalesce(c.note, '') FROM ledger_head AS h
		LEFT JOIN LATERAL (SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1) AS c ON true`).Scan(&size, &signed)
	if err != nil {
		return last, 0, postgres.Unavailable("reading the last checkpoint", err)
	}
	if signed != "" {
		if last, err = keys.open(signed, origin); err != nil {
			return last, 0, fmt.Errorf("%w: %w", postgres.ErrWentBack, err)
		}
	}
	seen := l.sealed.Load()
	switch {
	case size < last.N || seen != nil && last.N < seen.N:
		return last, 0, fmt.Errorf("%w: it has %d entries and a checkpoint of %d; there was one of %d", postgres.ErrWentBack, size, last.N, sizeOf(seen))
	case seen == nil || *seen == last:
		return last, size, nil
	}
	return last, size, continues(ctx, tx, *seen)
}

// continues returns ErrWentBack if the ledger does not begin with the tree of a checkpoint.
func continues(ctx context.Context, q querier, c audit.Checkpoint) error {
	if c.N == 0 {
		return nil
	}
	root, err := tlog.TreeHash(c.N, treeOf(ctx, q))
	if err != nil {
		return postgres.Unavailable("reading the tree", err)
	}
	if root != c.Hash {
		return fmt.Errorf("%w: its first %d entries are not those of then", postgres.ErrWentBack, c.N)
	}
	return nil
}

func sizeOf(c *audit.Checkpoint) int64 {
	if c == nil {
		return 0
	}
	return c.N
}

// seal grows the tree from the last checkpoint to a size, and signs that. If another replica is signing, seal leaves it to
// that replica.
func seal(ctx context.Context, tx pgx.Tx, notary Notary, last audit.Checkpoint, size int64) (audit.Checkpoint, error) {
	var mine bool
	// The lock is that of a row, because a login that can only read can take an advisory lock, and then nobody would sign.
	err := tx.QueryRow(ctx, `SELECT true FROM deployment FOR UPDATE SKIP LOCKED`).Scan(&mine)
	if errors.Is(err, pgx.ErrNoRows) {
		return last, nil
	}
	if err == nil { // a separate statement, which sees what was committed before the lock was free
		err = tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM checkpoints WHERE size > @size)`, pgx.NamedArgs{"size": last.N}).Scan(&mine)
	}
	if err != nil || !mine {
		return last, postgres.Unavailable("taking turns", err)
	}
	tree, err := growFrom(last.N, treeOf(ctx, tx))
	if err != nil {
		return last, postgres.Unavailable("reading the tree", err)
	}
	if tree.Hash != last.Hash && last.N > 0 {
		return last, fmt.Errorf("%w: its first %d entries are not those that were signed", postgres.ErrWentBack, last.N)
	}
	rows, err := tx.Query(ctx, `SELECT leaf_hash FROM entries WHERE index >= @from AND index < @to ORDER BY index`,
		pgx.NamedArgs{"from": last.N, "to": size})
	leaves, err := postgres.Collect(rows, err, record.ScanHash)
	if err == nil && int64(len(leaves)) != size-last.N {
		err = fmt.Errorf("%w: %d of %d entries are there", postgres.ErrWentBack, len(leaves), size-last.N)
	}
	if err == nil {
		err = tree.add(leaves)
	}
	if err != nil {
		return last, postgres.Unavailable("growing the tree", err)
	}
	next := audit.Checkpoint{Origin: last.Origin, Tree: tree.Tree}
	signed, err := notary.Sign(ctx, next.String())
	if err != nil {
		return last, fmt.Errorf("signing: %w", err)
	}
	return next, postgres.Unavailable("keeping the checkpoint", keep(ctx, tx, next, signed, tree.whole(last.N)))
}

// keep stores a checkpoint, and the tiles that have become whole. The database takes their hashes from the rows below them.
func keep(ctx context.Context, tx pgx.Tx, c audit.Checkpoint, signed []byte, tiles []wholeTile) error {
	for _, t := range tiles {
		_, err := tx.Exec(ctx, `INSERT INTO tree_tiles (level, number, root) VALUES (@level, @number, @root)`,
			pgx.NamedArgs{"level": t.level, "number": t.number, "root": t.root[:]})
		if err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO checkpoints (size, root, time, note) VALUES (@size, @root, clock_timestamp(), @note)`,
		pgx.NamedArgs{"size": c.N, "root": c.Hash[:], "note": string(signed)})
	return err
}
