package tamper_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// log keeps and signs the tree over a ledger. It does not share code with the verifier.
type log struct {
	name     string
	signer   note.Signer
	verifier note.Verifier
	hashes   []tlog.Hash // as tlog stores them
	last     audit.Checkpoint
}

func newLog(t testing.TB, name string) *log {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	l := &log{name: name}
	if l.signer, err = note.NewSigner(private); err == nil {
		l.verifier, err = note.NewVerifier(public)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *log) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = l.hashes[index]
	}
	return found, nil
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (l *log) size(t testing.TB, on querier) (size int64) {
	t.Helper()
	if err := on.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		t.Fatal(err)
	}
	return size
}

// sealUpTo signs a checkpoint if there are at least every new entries. It returns the number of entries.
func (l *log) sealUpTo(t testing.TB, conn *pgx.Conn, every int64) int64 {
	t.Helper()
	size := l.size(t, conn)
	if size-l.last.N < every {
		return size
	}
	before := l.last.N
	l.grow(t, conn)
	batch := &pgx.Batch{}
	for level := range 2 {
		for n := before >> (8 * (level + 1)); n < size>>(8*(level+1)); n++ {
			hashes, root := l.tile(t, level, n)
			batch.Queue(`INSERT INTO tree_tiles (level, number, hashes, root) VALUES ($1, $2, $3, $4)`, level, n, hashes, root)
		}
	}
	batch.Queue(`INSERT INTO checkpoints (size, root, time, note) VALUES ($1, $2, now(), $3)`, size, l.last.Hash[:], l.sign(t, l.last))
	if err := conn.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	return size
}

// grow reads the new entries.
func (l *log) grow(t testing.TB, on querier) {
	t.Helper()
	rows, err := on.Query(t.Context(), `SELECT leaf_hash FROM entries WHERE index >= $1 ORDER BY index`, l.last.N)
	if err != nil {
		t.Fatal(err)
	}
	leaves, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range leaves {
		made, err := tlog.StoredHashesForRecordHash(l.last.N, tlog.Hash(leaf), l)
		if err != nil {
			t.Fatal(err)
		}
		l.hashes = append(l.hashes, made...)
		l.last.N++
	}
	l.last = l.at(t, l.last.N)
}

// at returns the checkpoint of a size.
func (l *log) at(t testing.TB, size int64) audit.Checkpoint {
	t.Helper()
	root, err := tlog.TreeHash(size, l)
	if err != nil {
		t.Fatal(err)
	}
	return audit.Checkpoint{Origin: l.name, Tree: tlog.Tree{N: size, Hash: root}}
}

func (l *log) tile(t testing.TB, level int, number int64) (hashes, root []byte) {
	t.Helper()
	hashes, err := tlog.ReadTileData(tlog.Tile{H: 8, L: level, N: number, W: 256}, l)
	if err != nil {
		t.Fatal(err)
	}
	above := l.hashes[tlog.StoredHashIndex(8*(level+1), number)]
	return hashes, above[:]
}

func (l *log) sign(t testing.TB, c audit.Checkpoint) string {
	t.Helper()
	signed, err := note.Sign(&note.Note{Text: c.String()}, l.signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}
