package audit_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/merkle/testonly"
	"golang.org/x/mod/sumdb/tlog"
)

// stored is a tree in the form that tlog stores.
type stored []tlog.Hash

func (s stored) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = s[index]
	}
	return found, nil
}

// treeOf returns the tree over records, and its leaves.
func treeOf(t *testing.T, records [][]byte) (tree stored, leaves []tlog.Hash) {
	t.Helper()
	for n, record := range records {
		made, err := tlog.StoredHashes(int64(n), record, tree)
		if err != nil {
			t.Fatal(err)
		}
		tree, leaves = append(tree, made...), append(leaves, tlog.RecordHash(record))
	}
	return tree, leaves
}

// The tree is that of RFC 6962. The first check uses the known answers of another implementation.
func TestRootsMatchRFC6962(t *testing.T) {
	_, leaves := treeOf(t, testonly.LeafInputs())
	for size, want := range append([][]byte{testonly.EmptyRootHash()}, testonly.RootHashes()[1:]...) {
		if got := audit.RootOf(leaves[:size]); !bytes.Equal(got[:], want) {
			t.Errorf("size %d: got %x, want %x", size, got, want)
		}
	}
}

// Another implementation accepts each proof that is made here, and accepts it for nothing else.
func TestProofsMatchRFC6962(t *testing.T) {
	var records [][]byte
	for n := range 600 {
		records = append(records, fmt.Appendf(nil, "entry %d", n))
	}
	tree, leaves := treeOf(t, records)
	rootOf := func(size int64) []byte {
		root := audit.RootOf(leaves[:size])
		return root[:]
	}
	for size := int64(1); size <= int64(len(leaves)); size += 1 + size/16 {
		for n := int64(0); n < size; n += 1 + size/23 {
			made, err := tlog.ProveRecord(size, n, tree)
			if err != nil {
				t.Fatal(err)
			}
			hashes := path(made)
			if err := proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(n), uint64(size), leaves[n][:], hashes, rootOf(size)); err != nil {
				t.Errorf("entry %d of %d: %v", n, size, err)
			}
			other := leaves[(n+1)%int64(len(leaves))]
			if proof.VerifyInclusion(rfc6962.DefaultHasher, uint64(n), uint64(size), other[:], hashes, rootOf(size)) == nil {
				t.Errorf("entry %d of %d is proven to be another", n, size)
			}
			if n == 0 {
				continue
			}
			grown, err := tlog.ProveTree(size, n, tree)
			if err != nil {
				t.Fatal(err)
			}
			if err := proof.VerifyConsistency(rfc6962.DefaultHasher, uint64(n), uint64(size), path(grown), rootOf(n), rootOf(size)); err != nil {
				t.Errorf("from %d to %d: %v", n, size, err)
			}
		}
	}
}

func path[P tlog.RecordProof | tlog.TreeProof](hashes P) (all [][]byte) {
	for _, h := range hashes {
		all = append(all, h[:])
	}
	return all
}
