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

	// A JWT-SVID with a longer total life than this is rejected, however little of its life remains.
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
	// Now is the clock. go-spiffe also checks the system's clock, with a minute of leeway. If the two clocks differ by more, no
	// JWT-SVID is accepted.
	Now func() time.Time
	// MaxJWTLife is the longest remaining life of a JWT-SVID, 5 minutes by default and an hour at most.
	MaxJWTLife time.Duration
	// Leeway is how far the clock of a JWT-SVID's signer may differ from ours, 5 seconds by default.
	Leeway time.Duration
	// OnRefusal, if set, is called for every handshake that failed because of the client's certificate: at that point there is no
	// request yet to refuse and record. It is called on the connection's goroutine.
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

// New checks cfg and returns an Attestor. An empty audience or list of trust domains is an error: go-spiffe accepts any audience
// if none is given.
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
		return fmt.Errorf("attest: the maximum lifetime of a JWT-SVID must be between 0 and %s", maxJWTTotalLife)
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

// TrustDomains returns the accepted trust domains, sorted by name.
func (a *Attestor) TrustDomains() []spiffeid.TrustDomain {
	return slices.SortedFunc(maps.Keys(a.domains), spiffeid.TrustDomain.Compare)
}

// Identify verifies what the client presented: a certificate, a bearer token, or both. Both must have the same SPIFFE ID:
// otherwise a token stolen from B would let A's connection act as B. If the client presented neither, the error is ErrNoIdentity.
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

// acceptDomain rejects an ID of a trust domain that is not configured, whatever the bundles hold.
func (a *Attestor) acceptDomain(id spiffeid.ID) error {
	if !a.domains[id.TrustDomain()] {
		return fmt.Errorf("%w: %s", ErrTrustDomain, id.TrustDomain())
	}
	return nil
}
