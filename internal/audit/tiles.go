package audit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// tiles checks each tile that the ledger stores against the level below it. Tiles of level 0 are kept only near their entries.
type tiles struct {
	upper  map[place]Tile
	near   map[int64]Tile // of level 0, by number: those that entries may still need
	seen   [8]int64       // by level, the number of the tile that should come next
	blamed map[place]bool
	found  findings
}

type place struct {
	level  int
	number int64
}

// add takes the next tile, after those above it.
func (s *tiles) add(t Tile) {
	if !t.whole() {
		s.differs(t.Level, t.Number, "the tile is incomplete")
		return
	}
	if t.Number != s.seen[t.Level] {
		s.missing(t.Level, t.Number)
	}
	s.seen[t.Level] = t.Number + 1
	root := t.made()
	if !bytes.Equal(t.Root, root[:]) {
		s.differs(t.Level, t.Number, "its root does not match its hashes")
	}
	above, ok := s.upper[place{t.Level + 1, t.Number / tileWidth}]
	if ok && above.hash(t.Number%tileWidth) != root {
		s.differs(t.Level, t.Number, fmt.Sprintf("its root is not in tile %d of level %d", t.Number/tileWidth, t.Level+1))
	}
	if t.Level > 0 {
		s.upper[place{t.Level, t.Number}] = t
	} else {
		delete(s.near, t.Number-2)
		s.near[t.Number] = t
	}
}

// leaf returns the hash of an entry, if a tile holds it.
func (s *tiles) leaf(index int64) (tlog.Hash, bool) {
	t, ok := s.near[index/tileWidth]
	if !ok {
		return tlog.Hash{}, false
	}
	return t.hash(index % tileWidth), true
}

// missing reports the tiles between the last one and number as missing.
func (s *tiles) missing(level int, number int64) {
	first := Tile{Level: level, Number: s.seen[level]}
	s.found.add(Finding{
		Code: TileMissing, Index: first.first(), Through: Tile{Level: level, Number: number - 1}.last(),
		Where: first.name(), What: fmt.Sprintf("tiles %d to %d of level %d are missing", first.Number, number-1, level),
	})
}

// differs reports a tile once.
func (s *tiles) differs(level int, number int64, what string) {
	if s.blamed[place{level, number}] {
		return
	}
	t := Tile{Level: level, Number: number}
	s.blamed[place{level, number}] = true
	s.found.add(Finding{Code: TileDiffers, Index: t.first(), Through: t.last(), Where: t.name(), What: what})
}

func (t Tile) name() string {
	return fmt.Sprintf("tree_tiles of level %d, number %d", t.Level, t.Number)
}

// end reports missing and surplus tiles. The entries that a checkpoint covers are in whole tiles, as far as they fill them.
func (s *tiles) end(sealed, entries int64) {
	for level := range s.seen {
		if due := sealed >> (8 * (level + 1)); s.seen[level] < due {
			s.missing(level, due)
		}
		if n := entries >> (8 * (level + 1)); s.seen[level] > n {
			s.differs(level, s.seen[level]-1, "it covers more entries than exist")
		}
	}
}

// tileWidth is the number of hashes in a whole tile.
const tileWidth = 256

// frontier is a tree that grows to the right. It holds the roots of its complete subtrees, the largest first.
type frontier struct {
	size  int64
	roots []tlog.Hash
}

func (f *frontier) push(leaf tlog.Hash) {
	for range bits.TrailingZeros64(^uint64(f.size)) {
		last := len(f.roots) - 1
		leaf, f.roots = tlog.NodeHash(f.roots[last], leaf), f.roots[:last]
	}
	f.roots = append(f.roots, leaf)
	f.size++
}

func (f *frontier) root() tlog.Hash {
	if f.size == 0 {
		return sha256.Sum256(nil)
	}
	root := f.roots[len(f.roots)-1]
	for i := len(f.roots) - 2; i >= 0; i-- {
		root = tlog.NodeHash(f.roots[i], root)
	}
	return root
}

// hash returns the nth hash of a tile.
func (t Tile) hash(n int64) (h tlog.Hash) {
	copy(h[:], t.Hashes[n*tlog.HashSize:])
	return h
}

func (t Tile) whole() bool {
	return len(t.Hashes) == tileWidth*tlog.HashSize && t.Level >= 0 && t.Level < 8 && t.Number >= 0
}

// made computes the root of a tile's hashes.
func (t Tile) made() tlog.Hash {
	var f frontier
	for n := range int64(tileWidth) {
		f.push(t.hash(n))
	}
	return f.root()
}

// first and last return the range of entries that a tile covers.
func (t Tile) first() int64 { return t.Number << (8 * (t.Level + 1)) }
func (t Tile) last() int64  { return (t.Number+1)<<(8*(t.Level+1)) - 1 }
