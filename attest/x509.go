package attest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// The limits on what a client may present. They are checked before any signature, so that a hostile chain costs little. Real
// chains have one to three certificates of about a kilobyte.
const (
	maxChain     = 8
	maxCertBytes = 16 << 10
	maxSANs      = 64
)

// minRSABits is the shortest RSA key that is accepted, in an SVID as well as in a bundle.
const minRSABits = 2048

// X509 returns the identity of the client at the other end of a finished TLS handshake. It verifies the certificate again on each
// call: a connection may outlive its SVID, and the bundle may have dropped the authority since.
func (a *Attestor) X509(state *tls.ConnectionState) (Identity, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return Identity{}, ErrNoIdentity
	}
	if !state.HandshakeComplete {
		return Identity{}, fmt.Errorf("%w: the handshake is not complete", ErrProfile)
	}
	return a.verifyX509(state)
}

func (a *Attestor) verifyX509(state *tls.ConnectionState) (Identity, error) {
	if state.DidResume {
		return Identity{}, ErrResumed
	}
	chain := state.PeerCertificates
	if err := checkChain(chain); err != nil {
		return Identity{}, err
	}
	leaf := chain[0]
	id, err := workloadID(leaf)
	if err != nil {
		return Identity{}, err
	}
	if err := a.acceptDomain(id); err != nil {
		return Identity{}, err
	}
	if err := checkProfile(leaf); err != nil {
		return Identity{}, err
	}
	bundle, err := a.x509Bundle(id.TrustDomain())
	if err != nil {
		return Identity{}, err
	}
	if err := a.verifyChain(id, chain, bundle); err != nil {
		return Identity{}, err
	}
	return Identity{id: id, kind: KindX509, expires: leaf.NotAfter, thumbprint: jws.CertificateThumbprint(leaf.Raw)}, nil
}

// verifyChain verifies a chain against the bundle at the current time. For a chain in the cache it does not compute the
// signatures again.
func (a *Attestor) verifyChain(id spiffeid.ID, chain []*x509.Certificate, bundle *x509bundle.Bundle) error {
	now, authorities, digest := a.now(), bundle.X509Authorities(), digestOf(chain)
	if known, ok := a.chains.Get(digest); ok && known.holds(authorities, now) {
		return nil
	}
	verified, chains, err := x509svid.Verify(chain, bundle, x509svid.WithTime(now))
	if err != nil {
		return a.verifyError(err, chain[0])
	}
	if verified != id {
		return fmt.Errorf("%w: the parsers disagree about the ID", ErrMalformed)
	}
	a.chains.Put(digest, trustedBy(authorities, chains[0]))
	return nil
}

// checkChain bounds the presented chain. It checks every certificate, because the client chooses them all.
func checkChain(chain []*x509.Certificate) error {
	if len(chain) > maxChain {
		return fmt.Errorf("%w: a chain of %d certificates", ErrTooLarge, len(chain))
	}
	for _, cert := range chain {
		if len(cert.Raw) > maxCertBytes {
			return fmt.Errorf("%w: a certificate of %d bytes", ErrTooLarge, len(cert.Raw))
		}
		if n := len(cert.URIs) + len(cert.DNSNames) + len(cert.IPAddresses) + len(cert.EmailAddresses); n > maxSANs {
			return fmt.Errorf("%w: a certificate with %d names", ErrTooLarge, n)
		}
		if !strongKey(cert.PublicKey) {
			return fmt.Errorf("%w: in the presented chain", ErrWeakKey)
		}
	}
	return nil
}

// checkProfile checks a leaf against X509-SVID, sections 4.1 to 4.4. x509svid.Verify checks some of it again.
func checkProfile(leaf *x509.Certificate) error {
	const signing = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	switch {
	case leaf.IsCA:
		return fmt.Errorf("%w: it is a CA", ErrProfile)
	case !keyUsageCritical(leaf):
		return fmt.Errorf("%w: key usage is missing or not critical", ErrProfile)
	case leaf.KeyUsage&signing != 0:
		return fmt.Errorf("%w: it may sign certificates or CRLs", ErrProfile)
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return fmt.Errorf("%w: it may not sign", ErrProfile)
	}
	anyUsage := len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0
	if anyUsage && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return fmt.Errorf("%w: its extended key usage is not for clients", ErrProfile)
	}
	return nil
}

func strongKey(key any) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return key.Curve == elliptic.P256() || key.Curve == elliptic.P384() || key.Curve == elliptic.P521()
	case ed25519.PublicKey:
		return true
	}
	return false
}

// x509Bundle returns the authorities of one trust domain, without those whose key is too weak.
func (a *Attestor) x509Bundle(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	bundle, err := a.bundles.GetX509BundleForTrustDomain(td)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBundleUnavailable, td, err)
	}
	if bundle == nil || bundle.TrustDomain() != td {
		return nil, fmt.Errorf("%w: the source returned the wrong bundle for %s", ErrBundleUnavailable, td)
	}
	strong := slices.DeleteFunc(bundle.X509Authorities(), func(c *x509.Certificate) bool { return !strongKey(c.PublicKey) })
	return x509bundle.FromX509Authorities(td, strong), nil
}

// verifyError returns the error for a chain that did not verify. It separates expiry from lack of trust, because the remedy
// differs.
func (a *Attestor) verifyError(err error, leaf *x509.Certificate) error {
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return fmt.Errorf("%w: %w", ErrSignature, err)
	}
	if a.now().Before(leaf.NotBefore) {
		return fmt.Errorf("%w: %w", ErrNotYetValid, err)
	}
	return fmt.Errorf("%w: %w", ErrExpired, err)
}
