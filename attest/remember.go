package attest

import (
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"time"
)

// trusted is the validity period common to all certificates of a verified chain, with the authorities that it was verified
// against.
type trusted struct {
	authorities []*x509.Certificate
	from, until time.Time
}

// holds reports whether the chain would verify again: the authorities are the same objects, and all certificates of the chain are
// valid at that time.
func (t trusted) holds(authorities []*x509.Certificate, now time.Time) bool {
	return !now.Before(t.from) && !now.After(t.until) && slices.Equal(t.authorities, authorities)
}

// trustedBy returns the entry to cache for a chain that was just verified.
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

// digestOf returns the key of a chain in the cache.
func digestOf(chain []*x509.Certificate) (digest [sha256.Size]byte) {
	h := sha256.New()
	for _, cert := range chain {
		h.Write(cert.Raw) // DER encodes its own length, so two chains cannot collide
	}
	h.Sum(digest[:0])
	return digest
}
