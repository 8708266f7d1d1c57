package jws

import (
	"crypto"
	"crypto/sha256"
	"sync"
)

// MostVerified bounds what one Verified holds: some megabytes.
const MostVerified = 1 << 14

// Verified is what was found to verify, by its SHA-256: the same is shown again and again, and its signatures do not
// change. What does change, the time and the keys, is for the caller to look at each time. It is safe for concurrent use, and
// its zero value holds nothing.
type Verified[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
}

// Get returns what was put.
func (r *Verified[V]) Get(digest [sha256.Size]byte) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.found[digest]
	return v, ok
}

// Put forgets everything when there is too much: what is still in use is verified once more.
func (r *Verified[V]) Put(digest [sha256.Size]byte, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil || len(r.found) >= MostVerified {
		r.found = map[[sha256.Size]byte]V{}
	}
	r.found[digest] = v
}

// SameKey compares public keys, all types of which have this method (crypto.PublicKey).
func SameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
