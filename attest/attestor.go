// Package attest turns an SVID into an [Identity]. It accepts an X.509-SVID from a mutual TLS connection and a JWT-SVID sent as a
// bearer token, and checks both against the bundle of the SVID's own trust domain. It also keeps those bundles current, from the
// Workload API, from files and from SPIFFE federation endpoints.
//
// go-spiffe does the checks of the SPIFFE specifications. This package adds the checks that go-spiffe leaves to its caller. It
// checks key usages, and that the ID has a path. It takes the time from Config.Now. A JWT-SVID must have a short lifetime, exactly
// one audience, and no header members other than alg, kid and typ.
//
// It must never create an Identity from anything but a verified SVID, never merge the bundles of two trust domains, never use the
// system's certificate store for an SVID, and never put a byte of a token in an error. On any failure it returns an error that
// wraps one of the Err variables, and the zero Identity.
package attest

import (
	"cmp"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	defaultMaxJWTLife = 5 * time.Minute
	defaultLeeway     = 5 * time.Second
	maxLeeway         = time.Minute

	// The longest total life of a JWT-SVID: from iat, or else nbf, to exp. A JWT-SVID with a longer one is rejected even if it
	// expires soon.
	maxJWTTotalLife = time.Hour
)

// Bundles returns the bundle of a trust domain, or an error if it has none. It must be safe for concurrent use. [Sources]
// implements it.
type Bundles interface {
	x509bundle.Source
	jwtbundle.Source
}

// Config holds the settings of an Attestor. Bundles, TrustDomains, Audience and Now have no default.
type Config struct {
	// Bundles holds the keys of the accepted trust domains.
	Bundles Bundles
	// TrustDomains are the domains whose SVIDs are accepted. A bundle for any other domain is ignored.
	TrustDomains []spiffeid.TrustDomain
	// Audience is the only audience that a JWT-SVID may have: our own issuer URL.
	Audience string
	// Now is the clock. go-spiffe also compares the times of a JWT-SVID with the system's clock, with a minute of leeway. If Now
	// and the system's clock differ too much, go-spiffe rejects every JWT-SVID.
	Now func() time.Time
	// MaxJWTLife is the longest remaining life of a JWT-SVID, 5 minutes by default and an hour at most.
	MaxJWTLife time.Duration
	// Leeway is how far the clock of a JWT-SVID's signer may differ from ours, 5 seconds by default.
	Leeway time.Duration
	// OnRefusal, if set, runs for each handshake that fails because of the client's certificate. Such a handshake leads to no
	// request, so only OnRefusal can record the refusal. It runs on the goroutine of the connection.
	OnRefusal func(remote net.Addr, err error)
}

// Attestor verifies SVIDs. It is safe for concurrent use.
type Attestor struct {
	bundles    Bundles
	domains    map[spiffeid.TrustDomain]bool
	audience   string
	now        func() time.Time
	maxJWTLife time.Duration
	leeway     time.Duration
	onRefusal  func(net.Addr, error)

	chains jws.Verified[trusted]
	tokens jws.Verified[crypto.PublicKey] // the key that verified the token
}

// New checks cfg and returns an Attestor. An empty list of trust domains is an error. An empty audience is one too, because
// go-spiffe accepts any audience if none is given.
func New(cfg Config) (*Attestor, error) {
	switch {
	case cfg.Bundles == nil:
		return nil, errors.New("attest: no bundles")
	case cfg.Now == nil:
		return nil, errors.New("attest: no clock")
	case cfg.Audience == "":
		return nil, errors.New("attest: no audience")
	case len(cfg.TrustDomains) == 0:
		return nil, errors.New("attest: no trust domains")
	case cfg.MaxJWTLife < 0 || cfg.MaxJWTLife > maxJWTTotalLife:
		return nil, fmt.Errorf("attest: the maximum lifetime of a JWT-SVID must be between 0 and %s", maxJWTTotalLife)
	case cfg.Leeway < 0 || cfg.Leeway > maxLeeway:
		return nil, fmt.Errorf("attest: the leeway must be between 0 and %s", maxLeeway)
	}
	a := &Attestor{
		bundles:    cfg.Bundles,
		domains:    make(map[spiffeid.TrustDomain]bool, len(cfg.TrustDomains)),
		audience:   cfg.Audience,
		now:        cfg.Now,
		maxJWTLife: cmp.Or(cfg.MaxJWTLife, defaultMaxJWTLife),
		leeway:     cmp.Or(cfg.Leeway, defaultLeeway),
		onRefusal:  cfg.OnRefusal,
	}
	for _, td := range cfg.TrustDomains {
		if td.IsZero() || len(td.Name()) > maxDomainBytes {
			return nil, fmt.Errorf("attest: trust domain %q is not valid", td.Name())
		}
		a.domains[td] = true
	}
	if a.onRefusal == nil {
		a.onRefusal = func(net.Addr, error) {}
	}
	return a, nil
}

// TrustDomains returns the accepted trust domains, sorted by name.
func (a *Attestor) TrustDomains() []spiffeid.TrustDomain {
	return slices.SortedFunc(maps.Keys(a.domains), spiffeid.TrustDomain.Compare)
}

// Identify verifies what the client presented: a certificate, a bearer token, or both. Both must have the same SPIFFE ID:
// otherwise a token stolen from B would let A's connection act as B. If the client presented neither, the error is ErrNoIdentity.
func (a *Attestor) Identify(state *tls.ConnectionState, bearer string) (Identity, error) {
	withCert := state != nil && len(state.PeerCertificates) > 0
	switch {
	case !withCert && bearer == "":
		return Identity{}, ErrNoIdentity
	case !withCert:
		return a.JWT(bearer)
	case bearer == "":
		return a.X509(state)
	}
	id, err := a.X509(state)
	if err != nil {
		return Identity{}, err
	}
	token, err := a.JWT(bearer)
	if err != nil {
		return Identity{}, err
	}
	if id.id != token.id {
		return Identity{}, fmt.Errorf("%w: %s and %s", ErrMismatch, id.id, token.id)
	}
	if token.expires.Before(id.expires) {
		id.expires = token.expires
	}
	return id, nil
}

// acceptDomain rejects an ID of a trust domain that is not configured, whatever the bundles hold.
func (a *Attestor) acceptDomain(id spiffeid.ID) error {
	if !a.domains[id.TrustDomain()] {
		return fmt.Errorf("%w: %s", ErrTrustDomain, id.TrustDomain())
	}
	return nil
}

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

// Expires returns the end of the SVID's life, or the earlier end if the client presented two SVIDs. For a JWT-SVID, that time may
// already have passed, by at most Config.Leeway.
func (i Identity) Expires() time.Time { return i.expires }

// Thumbprint returns the base64url SHA-256 of the client's certificate (RFC 8705, x5t#S256). It is "" if a JWT-SVID alone proved
// the identity.
func (i Identity) Thumbprint() string { return i.thumbprint }

// IsZero reports whether i is the zero value.
func (i Identity) IsZero() bool { return i == Identity{} }

// The limits of SPIFFE-ID, section 2.3, which spiffeid.FromString does not enforce.
const (
	maxIDBytes     = 2048
	maxDomainBytes = 255
)

// ParseID parses the SPIFFE ID of a workload, as spiffeid.FromString does. The ID must also have a path, be at most 2048 bytes
// long and name a trust domain of at most 255 bytes. Errors are ErrID.
func ParseID(s string) (spiffeid.ID, error) {
	if len(s) > maxIDBytes {
		return spiffeid.ID{}, fmt.Errorf("%w: longer than %d bytes", ErrID, maxIDBytes)
	}
	id, err := spiffeid.FromString(s)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%w: %w", ErrID, err)
	}
	if len(id.TrustDomain().Name()) > maxDomainBytes {
		return spiffeid.ID{}, fmt.Errorf("%w: trust domain longer than %d bytes", ErrID, maxDomainBytes)
	}
	if id.Path() == "" {
		return spiffeid.ID{}, fmt.Errorf("%w: it names a trust domain, not a workload", ErrID)
	}
	return id, nil
}

// TLSConfig returns the configuration of a server that requests an X.509-SVID from its clients. A client may present none and
// send a JWT-SVID instead. If it presents a certificate that does not verify, the handshake fails. The server speaks TLS 1.3
// only.
//
// Session tickets are disabled: Go does not verify the peer's certificate again on a resumed session, so a ticket would outlive
// the SVID and even its authority. VerifyConnection does the verification, because Go calls it for resumed sessions too, unlike
// VerifyPeerCertificate.
func (a *Attestor) TLSConfig(getCert func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         getCert,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		// http.Server adds these protocols only to its own copy of the configuration. GetConfigForClient returns another one, so
		// set them here.
		NextProtos:       []string{"h2", "http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error { return a.verifyConnection(nil, state) },
	}
	perConnection := base.Clone()
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		cfg := perConnection.Clone()
		remote := hello.Conn.RemoteAddr()
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return a.verifyConnection(remote, state) }
		return cfg, nil
	}
	return base
}

func (a *Attestor) verifyConnection(remote net.Addr, state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	if _, err := a.verifyX509(&state); err != nil {
		a.onRefusal(remote, err)
		return err
	}
	return nil
}
