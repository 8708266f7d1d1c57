package attest

import (
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

	// No JWT-SVID that was made to live longer than this is accepted, however little of its life remains.
	maxJWTTotalLife = time.Hour
)

// Bundles gives the bundle of one trust domain at a time. It returns an error when it has none for it, and must be
// safe for concurrent use. [Sources] is one.
type Bundles interface {
	x509bundle.Source
	jwtbundle.Source
}

// Config is what an Attestor needs. Bundles, TrustDomains, Audience and Now have no default.
type Config struct {
	// Bundles holds the keys of the accepted trust domains.
	Bundles Bundles
	// TrustDomains are the ones whose SVIDs are accepted. A bundle for any other domain is not looked at.
	TrustDomains []spiffeid.TrustDomain
	// Audience is the one audience that a JWT-SVID must have: our own issuer URL.
	Audience string
	// Now is the clock. go-spiffe looks at the system's clock as well, with a minute of leeway, so that a clock that
	// is further off accepts no JWT-SVID at all.
	Now func() time.Time
	// MaxJWTLife is the longest remaining life of a JWT-SVID, 5 minutes by default and an hour at most.
	MaxJWTLife time.Duration
	// Leeway is how far another clock may be off when it signs a JWT-SVID, 5 seconds by default.
	Leeway time.Duration
	// OnRefusal, if set, is told of every handshake that failed because of the client's certificate: there is no
	// request yet that could be refused and recorded. It is called on the connection's goroutine.
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
	tokens jws.Verified[crypto.PublicKey] // that verified them
}

// New checks cfg and returns an Attestor. An empty audience or list of trust domains is an error: to go-spiffe, an
// empty audience means that any will do.
func New(cfg Config) (*Attestor, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	a := &Attestor{
		bundles:    cfg.Bundles,
		domains:    make(map[spiffeid.TrustDomain]bool, len(cfg.TrustDomains)),
		audience:   cfg.Audience,
		now:        cfg.Now,
		maxJWTLife: cfg.MaxJWTLife,
		leeway:     cfg.Leeway,
		onRefusal:  cfg.OnRefusal,
	}
	for _, td := range cfg.TrustDomains {
		a.domains[td] = true
	}
	if a.maxJWTLife == 0 {
		a.maxJWTLife = defaultMaxJWTLife
	}
	if a.leeway == 0 {
		a.leeway = defaultLeeway
	}
	if a.onRefusal == nil {
		a.onRefusal = func(net.Addr, error) {}
	}
	return a, nil
}

func (cfg Config) check() error {
	switch {
	case cfg.Bundles == nil:
		return errors.New("attest: no bundles")
	case cfg.Now == nil:
		return errors.New("attest: no clock")
	case cfg.Audience == "":
		return errors.New("attest: no audience")
	case len(cfg.TrustDomains) == 0:
		return errors.New("attest: no trust domains")
	case cfg.MaxJWTLife < 0 || cfg.MaxJWTLife > maxJWTTotalLife:
		return fmt.Errorf("attest: the longest life of a JWT-SVID must be between 0 and %s", maxJWTTotalLife)
	case cfg.Leeway < 0 || cfg.Leeway > maxLeeway:
		return fmt.Errorf("attest: the leeway must be between 0 and %s", maxLeeway)
	}
	for _, td := range cfg.TrustDomains {
		if td.IsZero() || len(td.Name()) > maxDomainBytes {
			return fmt.Errorf("attest: trust domain %q is not valid", td.Name())
		}
	}
	return nil
}

// TrustDomains are the accepted ones, by name.
func (a *Attestor) TrustDomains() []spiffeid.TrustDomain {
	return slices.SortedFunc(maps.Keys(a.domains), spiffeid.TrustDomain.Compare)
}

// Identify verifies whatever the client presented: a certificate, a bearer token, or both. Both must be of the same
// SPIFFE ID, since otherwise a token stolen from B would make A's connection speak for B. Neither is ErrNoIdentity.
func (a *Attestor) Identify(state *tls.ConnectionState, bearer string) (Identity, error) {
	withCert := state != nil && len(state.PeerCertificates) > 0
	switch {
	case withCert && bearer != "":
		return a.identifyBoth(state, bearer)
	case withCert:
		return a.X509(state)
	case bearer != "":
		return a.JWT(bearer)
	}
	return Identity{}, ErrNoIdentity
}

func (a *Attestor) identifyBoth(state *tls.ConnectionState, bearer string) (Identity, error) {
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

// acceptDomain refuses an ID of a trust domain that is not configured, whatever the bundles hold.
func (a *Attestor) acceptDomain(id spiffeid.ID) error {
	if !a.domains[id.TrustDomain()] {
		return fmt.Errorf("%w: %s", ErrTrustDomain, id.TrustDomain())
	}
	return nil
}
