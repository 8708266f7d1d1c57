package audit

import (
	"crypto/sha256"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

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

func (f *frontier) clone() *frontier {
	return &frontier{f.size, append([]tlog.Hash(nil), f.roots...)}
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
