package tlog

import (
	"context"
	"fmt"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// tileHeight is how many levels of the tree one tile holds, as in c2sp.org/tlog-tiles; a whole tile is tileWidth wide.
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readTile reads the first hashes of a tile, as many as it is wide. If the tile is not whole yet, it takes them from the
// entries, or from the roots of the tiles below.
func readTile(ctx context.Context, q querier, t tlog.Tile) ([]byte, error) {
	var data []byte
	err := q.QueryRow(ctx, `
		SELECT coalesce(
			(SELECT substr(hashes, 1, @width * 32) FROM tree_tiles WHERE level = @level AND number = @number),
			CASE WHEN @level = 0 THEN (
				SELECT string_agg(leaf_hash, ''::bytea ORDER BY index) FROM entries
				WHERE index >= @number * 256 AND index < @number * 256 + @width
			) ELSE (
				SELECT string_agg(root, ''::bytea ORDER BY number) FROM tree_tiles
				WHERE level = @level - 1 AND number >= @number * 256 AND number < @number * 256 + @width
			) END)`,
		pgx.NamedArgs{"level": t.L, "number": t.N, "width": t.W}).Scan(&data)
	if err == nil && len(data) != t.W*tlog.HashSize {
		err = fmt.Errorf("%w: %d of the %d hashes of %s are there", postgres.ErrWentBack, len(data)/tlog.HashSize, t.W, t.Path())
	}
	return data, err
}

// treeOf reads the hashes of the tree over the entries. It trusts the tables, so the result of a computation with these
// hashes has to be checked against a root.
func treeOf(ctx context.Context, q querier) tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		widest := map[tlog.Tile]int{}
		for _, index := range indexes {
			t := tlog.TileForIndex(tileHeight, index)
			place := tlog.Tile{H: t.H, L: t.L, N: t.N}
			widest[place] = max(widest[place], t.W)
		}
		tiles := make(map[tlog.Tile][]byte, len(widest))
		for place, width := range widest {
			wide := place
			wide.W = width
			data, err := readTile(ctx, q, wide)
			if err != nil {
				return nil, err
			}
			tiles[place] = data
		}
		hashes := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			t := tlog.TileForIndex(tileHeight, index)
			place := tlog.Tile{H: t.H, L: t.L, N: t.N}
			t.W = widest[place]
			hash, err := tlog.HashFromTile(t, tiles[place], index)
			if err != nil {
				return nil, fmt.Errorf("reading the tree: %w", err)
			}
			hashes[i] = hash
		}
		return hashes, nil
	})
}

// growth is a tree that is being extended, with the hashes that it has read and added.
type growth struct {
	tlog.Tree
	below  tlog.HashReader
	hashes map[int64]tlog.Hash
}

// growFrom begins with the tree of a size. The caller checks its root.
func growFrom(size int64, below tlog.HashReader) (*growth, error) {
	g := &growth{below: below, hashes: map[int64]tlog.Hash{}}
	root, err := tlog.TreeHash(size, g)
	g.Tree = tlog.Tree{N: size, Hash: root}
	return g, err
}

// ReadHashes implements [tlog.HashReader], and keeps the hashes that it had to read.
func (g *growth) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	var missing []int64
	for _, index := range indexes {
		if _, ok := g.hashes[index]; !ok {
			missing = append(missing, index)
		}
	}
	if len(missing) > 0 {
		read, err := g.below.ReadHashes(missing)
		if err != nil {
			return nil, err
		}
		for i, index := range missing {
			g.hashes[index] = read[i]
		}
	}
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = g.hashes[index]
	}
	return found, nil
}

// add extends the tree.
func (g *growth) add(leaves []tlog.Hash) error {
	for _, leaf := range leaves {
		made, err := tlog.StoredHashesForRecordHash(g.N, leaf, g)
		if err != nil {
			return fmt.Errorf("growing the tree: %w", err)
		}
		for i, hash := range made {
			g.hashes[tlog.StoredHashIndex(0, g.N)+int64(i)] = hash
		}
		g.N++
	}
	var err error
	g.Hash, err = tlog.TreeHash(g.N, g)
	return err
}

// wholeTile is a tile that has become whole.
type wholeTile struct {
	level  int
	number int64
	root   tlog.Hash
}

// whole returns the tiles that have become whole since the tree had a size, the lower levels first.
func (g *growth) whole(since int64) []wholeTile {
	var tiles []wholeTile
	for level := range 8 {
		up := tileHeight * (level + 1)
		for number := since >> up; number < g.N>>up; number++ {
			tiles = append(tiles, wholeTile{level, number, g.hashes[tlog.StoredHashIndex(up, number)]})
		}
	}
	return tiles
}
