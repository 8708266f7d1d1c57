package attest

import (
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Kind says which kind of SVID proved an identity.
type Kind string

// The two kinds of SVID.
const (
	KindX509 Kind = "x509-svid"
	KindJWT  Kind = "jwt-svid"
)

// Identity is a workload whose SVID was verified. Only an [Attestor] creates one. The zero value stands for no workload.
type Identity struct {
	id         spiffeid.ID
	kind       Kind
	expires    time.Time
	thumbprint string
}

// ID returns the workload's SPIFFE ID. It always has a path.
func (i Identity) ID() spiffeid.ID { return i.id }

// TrustDomain returns the trust domain whose bundle verified the SVID.
func (i Identity) TrustDomain() spiffeid.TrustDomain { return i.id.TrustDomain() }

// Kind returns the kind of SVID that proved the identity. If the client presented both, it is KindX509, the stronger one.
func (i Identity) Kind() Kind { return i.kind }

// Expires returns the end of the SVID's life, or the earlier end if the client presented two SVIDs. For a JWT-SVID it can lie in
// the past, by at most the leeway for clocks.
func (i Identity) Expires() time.Time { return i.expires }

// Thumbprint returns the base64url SHA-256 of the client's certificate (RFC 8705, x5t#S256). It is "" if a JWT-SVID alone proved
// the identity.
func (i Identity) Thumbprint() string { return i.thumbprint }

// IsZero reports whether i is the zero value.
func (i Identity) IsZero() bool { return i == Identity{} }
