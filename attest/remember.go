package attest

import (
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"time"
)

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
