package attest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"

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
	// If the cache has the chain, do not read its leaf again.
	var digest [sha256.Size]byte
	h := sha256.New()
	for _, cert := range chain {
		h.Write(cert.Raw) // DER encodes its own length, so two chains cannot collide
	}
	h.Sum(digest[:0])
	known, ok := a.chains.Get(digest)
	leaf, proven := chain[0], known.proven
	if !ok {
		var err error
		if proven, err = a.read(leaf); err != nil {
			return Identity{}, err
		}
	}

	// Take the authorities of the trust domain, without those whose key is too weak.
	td := proven.TrustDomain()
	bundle, err := a.bundles.GetX509BundleForTrustDomain(td)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %s: %w", ErrBundleUnavailable, td, err)
	}
	if bundle == nil || bundle.TrustDomain() != td {
		return Identity{}, fmt.Errorf("%w: the source returned the wrong bundle for %s", ErrBundleUnavailable, td)
	}
	authorities := slices.DeleteFunc(bundle.X509Authorities(), func(c *x509.Certificate) bool { return !strongKey(c.PublicKey) })

	// If the same authorities have verified the chain, do not verify its signatures again.
	now := a.now()
	if ok && !now.Before(known.from) && !now.After(known.until) && slices.Equal(known.authorities, authorities) {
		return proven, nil
	}
	verified, chains, err := x509svid.Verify(chain, x509bundle.FromX509Authorities(td, authorities), x509svid.WithTime(now))
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		if now.Before(leaf.NotBefore) {
			return Identity{}, fmt.Errorf("%w: %w", ErrNotYetValid, err)
		}
		return Identity{}, fmt.Errorf("%w: %w", ErrExpired, err)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	if verified != proven.id {
		return Identity{}, fmt.Errorf("%w: the parsers disagree about the ID", ErrMalformed)
	}
	fresh := trusted{proven: proven, authorities: authorities, from: leaf.NotBefore, until: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotBefore.After(fresh.from) {
			fresh.from = cert.NotBefore
		}
		if cert.NotAfter.Before(fresh.until) {
			fresh.until = cert.NotAfter
		}
	}
	a.chains.Put(digest, fresh)
	return proven, nil
}

// read returns the identity that a leaf states. The result depends on nothing but the leaf and the configuration.
func (a *Attestor) read(leaf *x509.Certificate) (Identity, error) {
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
	return Identity{id: id, kind: KindX509, expires: leaf.NotAfter, thumbprint: jws.CertificateThumbprint(leaf.Raw)}, nil
}

// trusted is what the cache keeps of a verified chain: the identity that it proves, the authorities that verified it, and the period
// in which all its certificates are valid. Within this period, and while the bundle still has exactly these authorities, the chain
// needs no second verification.
type trusted struct {
	proven      Identity
	authorities []*x509.Certificate
	from, until time.Time
}

// checkChain limits the size of the chain and rejects weak keys. It checks every certificate, because the client chooses them all.
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
	usage, found := extension(leaf, oidKeyUsage)
	const signing = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	switch {
	case leaf.IsCA:
		return fmt.Errorf("%w: it is a CA", ErrProfile)
	case !found || !usage.Critical:
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

var (
	oidKeyUsage       = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
)

const tagURI = 6 // uniformResourceIdentifier, RFC 5280, 4.2.1.6

// workloadID returns the ID in the one URI name of a leaf. It reads the signed bytes, not the URL that crypto/x509 has parsed. The
// text of that URL lacks an empty fragment, and its scheme is in lower case, so a forbidden ID could look like an allowed one.
func workloadID(leaf *x509.Certificate) (spiffeid.ID, error) {
	var names []asn1.RawValue
	if ext, ok := extension(leaf, oidSubjectAltName); ok {
		if rest, err := asn1.Unmarshal(ext.Value, &names); err != nil || len(rest) > 0 {
			return spiffeid.ID{}, fmt.Errorf("%w: subject alternative names", ErrMalformed)
		}
	}
	var uris []string
	for _, name := range names {
		if name.Class == asn1.ClassContextSpecific && name.Tag == tagURI {
			uris = append(uris, string(name.Bytes))
		}
	}
	if len(uris) != 1 {
		return spiffeid.ID{}, fmt.Errorf("%w: %d URI names, not one", ErrProfile, len(uris))
	}
	return ParseID(uris[0])
}

// extension finds an extension. crypto/x509 rejects a certificate that has one twice.
func extension(leaf *x509.Certificate, oid asn1.ObjectIdentifier) (pkix.Extension, bool) {
	for _, ext := range leaf.Extensions {
		if ext.Id.Equal(oid) {
			return ext, true
		}
	}
	return pkix.Extension{}, false
}
