package jws

import (
	"crypto"
	"crypto/sha256"
	"sync"
)

// MostVerified is the maximum number of entries in one Verified: some megabytes.
const MostVerified = 1 << 14

// Verified caches results of verification by the SHA-256 of the input: callers present the same token many times, and its
// signature does not change. The caller must check the time and the keys on each use, because those do change. Verified
// is safe for concurrent use, and its zero value is empty.
type Verified[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
}

// Get returns the cached value, if any.
func (r *Verified[V]) Get(digest [sha256.Size]byte) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.found[digest]
	return v, ok
}

// Put adds a value. It clears the whole cache first if it is full; what is still in use is then verified once more.
func (r *Verified[V]) Put(digest [sha256.Size]byte, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil || len(r.found) >= MostVerified {
		r.found = map[[sha256.Size]byte]V{}
	}
	r.found[digest] = v
}

// SameKey compares public keys. All types of public keys have an Equal method (see crypto.PublicKey).
func SameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
