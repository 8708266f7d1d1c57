package audit

import "golang.org/x/mod/sumdb/tlog"

// Canonical exports canonical for tests.
var Canonical = canonical

// RootOf returns the root of the tree over leaves, as Verify computes it.
func RootOf(leaves []tlog.Hash) tlog.Hash {
	var f frontier
	for _, leaf := range leaves {
		f.push(leaf)
	}
	return f.root()
}
