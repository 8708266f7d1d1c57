package attest

import (
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Kind says which document proved an identity.
type Kind string

// The two kinds of SVID.
const (
	KindX509 Kind = "x509-svid"
	KindJWT  Kind = "jwt-svid"
)

// Identity is a workload whose SVID was verified. Only an [Attestor] makes one; the zero value is nobody.
type Identity struct {
	id         spiffeid.ID
	kind       Kind
	expires    time.Time
	thumbprint string
}

// ID is the workload's SPIFFE ID. It always has a path.
func (i Identity) ID() spiffeid.ID { return i.id }

// TrustDomain is the trust domain whose bundle verified the SVID.
func (i Identity) TrustDomain() spiffeid.TrustDomain { return i.id.TrustDomain() }

// Kind tells the document that proved the identity. When both were presented it is KindX509, the stronger one.
func (i Identity) Kind() Kind { return i.kind }

// Expires is the end of the SVID's life, and the earlier one when two were presented. For a JWT-SVID it can lie in
// the past by the leeway that clocks are given.
func (i Identity) Expires() time.Time { return i.expires }

// Thumbprint is the base64url SHA-256 of the client's certificate (RFC 8705, x5t#S256), and "" when the identity was
// proved by a JWT-SVID alone.
func (i Identity) Thumbprint() string { return i.thumbprint }

// IsZero reports whether this is nobody.
func (i Identity) IsZero() bool { return i == Identity{} }
