package jws_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/internal/jws"
)

// The size is bounded for any number of entries, and the latest entry is always found.
func TestSignatureCacheIsBounded(t *testing.T) {
	var r jws.Verified[int]
	digest := func(i int) [32]byte { return sha256.Sum256(fmt.Append(nil, i)) }
	const many = 2*jws.MaxVerified + 10
	for i := range many {
		r.Put(digest(i), i)
		if got, ok := r.Get(digest(i)); !ok || got != i {
			t.Fatalf("got %d, %v, want %d", got, ok, i)
		}
	}
	left := 0
	for i := range many {
		if _, ok := r.Get(digest(i)); ok {
			left++
		}
	}
	if left > jws.MaxVerified {
		t.Errorf("got %d remembered, want %d at most", left, jws.MaxVerified)
	}
}
