package attest

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"sync"
	"time"
)

// mostRemembered bounds what is remembered of each kind of SVID: some megabytes.
const mostRemembered = 1 << 14

// remembered is what was found to verify, by the SHA-256 of the SVID: workloads prove themselves with the same one for
// each call, and its signatures do not change. What does change, the time and the bundle, is looked at in each call.
type remembered[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
}

func (r *remembered[V]) get(svid [sha256.Size]byte) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.found[svid]
	return v, ok
}

// put forgets everything when there is too much: what is still in use is verified once more.
func (r *remembered[V]) put(svid [sha256.Size]byte, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil || len(r.found) >= mostRemembered {
		r.found = map[[sha256.Size]byte]V{}
	}
	r.found[svid] = v
}

// trusted is a chain that ends at one of the authorities, and when all of its certificates are valid.
type trusted struct {
	authorities []*x509.Certificate
	from, until time.Time
}

// holds tells whether it would verify again: with the same authorities, the very objects, and at a time at which all of
// the chain is valid.
func (t trusted) holds(authorities []*x509.Certificate, now time.Time) bool {
	return !now.Before(t.from) && !now.After(t.until) && slices.Equal(t.authorities, authorities)
}

// trustedBy is what there is to remember of a chain that has just verified.
func trustedBy(authorities, chain []*x509.Certificate) trusted {
	t := trusted{authorities: authorities, from: chain[0].NotBefore, until: chain[0].NotAfter}
	for _, cert := range chain[1:] {
		if cert.NotBefore.After(t.from) {
			t.from = cert.NotBefore
		}
		if cert.NotAfter.Before(t.until) {
			t.until = cert.NotAfter
		}
	}
	return t
}

// digestOf names a chain.
func digestOf(chain []*x509.Certificate) (digest [sha256.Size]byte) {
	h := sha256.New()
	for _, cert := range chain {
		h.Write(cert.Raw) // DER tells its own length
	}
	h.Sum(digest[:0])
	return digest
}

// sameKey compares public keys, all types of which have this method (crypto.PublicKey).
func sameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
