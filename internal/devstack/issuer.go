package devstack

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// IssuerConfig configures an Issuer.
type IssuerConfig struct {
	TrustDomain spiffeid.TrustDomain
	// Dir holds the authorities' private keys, so that identities outlive a restart. If it is "", they stay in memory.
	Dir string
	// Now is the clock; nil is the system's clock.
	Now func() time.Time
	// X509TTL and JWTTTL are the lifetimes of SVIDs; zero means one hour and five minutes.
	X509TTL, JWTTTL time.Duration
	// Hosts holds the host names and IP addresses that a workload's X.509-SVIDs contain in addition to its SPIFFE ID, for
	// clients that do not support SPIFFE. A registration entry of SPIRE can have such names too.
	Hosts map[spiffeid.ID][]string
	// RefreshHint tells federated trust domains how often to fetch our bundle. Zero means every minute, which is often, so
	// that a developer who rotates sees the effect soon.
	RefreshHint time.Duration
}

// Issuer issues X.509-SVIDs and JWT-SVIDs of one trust domain, as the SPIFFE standards define them. It does not attest
// workloads: any caller, and any process that can open a socket that it serves, gets the identity. It is safe for
// concurrent use.
type Issuer struct {
	cfg IssuerConfig

	mu        sync.Mutex
	state     issuerState
	federated map[spiffeid.TrustDomain]*spiffebundle.Bundle
	changed   chan struct{} // closed, and replaced, at each change of any bundle
}

// NewIssuer creates an issuer, or resumes the one that is stored in Dir.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if cfg.TrustDomain.IsZero() {
		return nil, fmt.Errorf("creating an issuer: the trust domain is empty")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.X509TTL == 0 {
		cfg.X509TTL = time.Hour
	}
	if cfg.JWTTTL == 0 {
		cfg.JWTTTL = 5 * time.Minute
	}
	if cfg.RefreshHint == 0 {
		cfg.RefreshHint = time.Minute
	}
	i := &Issuer{
		cfg: cfg, federated: make(map[spiffeid.TrustDomain]*spiffebundle.Bundle), changed: make(chan struct{}),
	}
	found, err := i.load()
	if err != nil {
		return nil, fmt.Errorf("resuming the issuer: %w", err)
	}
	if !found {
		if err := i.Rotate(); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// TrustDomain returns the trust domain whose identities the issuer issues.
func (i *Issuer) TrustDomain() spiffeid.TrustDomain { return i.cfg.TrustDomain }

// Bundle returns the bundle that verifies the SVIDs: all X.509 and JWT authorities, with sequence number and refresh hint.
func (i *Issuer) Bundle() *spiffebundle.Bundle {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.bundle()
}

func (i *Issuer) bundle() *spiffebundle.Bundle {
	bundle := spiffebundle.New(i.cfg.TrustDomain)
	for _, authority := range i.state.authorities {
		bundle.AddX509Authority(authority.cert)
		// AddJWTAuthority fails only on an empty kid, and a thumbprint is never empty.
		_ = bundle.AddJWTAuthority(authority.kid, authority.jwt.Public())
	}
	bundle.SetSequenceNumber(i.state.sequence)
	bundle.SetRefreshHint(i.cfg.RefreshHint)
	return bundle
}

// X509SVID creates a key for a workload and issues a certificate for it. It returns ErrForeignID if id is not an identity
// of the trust domain.
func (i *Issuer) X509SVID(id spiffeid.ID) (*x509svid.SVID, error) {
	if err := i.check(id); err != nil {
		return nil, fmt.Errorf("issuing an X.509-SVID: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuing an X.509-SVID: %w", err)
	}
	ca, signer := i.CA()
	template := svidTemplate(id, i.cfg.Now(), i.cfg.X509TTL)
	for _, host := range i.cfg.Hosts[id] {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, err := sign(template, ca, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("issuing an X.509-SVID: %w", err)
	}
	return &x509svid.SVID{ID: id, Certificates: []*x509.Certificate{cert}, PrivateKey: key}, nil
}

// JWTSVID issues a token for a workload. There must be at least one audience. The token is signed with ES256; its header
// holds alg, kid and typ, its claims are sub, aud, exp and iat. It returns ErrForeignID if id is not an identity of the
// trust domain.
func (i *Issuer) JWTSVID(id spiffeid.ID, audience ...string) (string, error) {
	if err := i.check(id); err != nil {
		return "", fmt.Errorf("issuing a JWT-SVID: %w", err)
	}
	if len(audience) == 0 {
		return "", fmt.Errorf("issuing a JWT-SVID: no audience")
	}
	kid, key := i.JWTKey()
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: kid}},
		new(jose.SignerOptions).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("issuing a JWT-SVID: %w", err)
	}
	now := i.cfg.Now()
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Subject: id.String(), Audience: audience,
		Expiry: jwt.NewNumericDate(now.Add(i.cfg.JWTTTL)), IssuedAt: jwt.NewNumericDate(now),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("issuing a JWT-SVID: %w", err)
	}
	return token, nil
}

func (i *Issuer) check(id spiffeid.ID) error {
	if !id.MemberOf(i.cfg.TrustDomain) || id.Path() == "" {
		return fmt.Errorf("%w: %q in %s", ErrForeignID, id, i.cfg.TrustDomain)
	}
	return nil
}

// CA returns the current X.509 authority with its key, so that tests can forge certificates that the issuer would not
// sign.
func (i *Issuer) CA() (*x509.Certificate, crypto.Signer) {
	current := i.current()
	return current.cert, current.ca
}

// JWTKey returns the current JWT authority with its key, so that tests can forge tokens that the issuer would not sign.
func (i *Issuer) JWTKey() (kid string, signer crypto.Signer) {
	current := i.current()
	return current.kid, current.jwt
}

func (i *Issuer) current() authority {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state.authorities[i.state.active]
}

// Rotate creates a new X.509 and a new JWT authority, which sign from now on. SVIDs of the old authorities stay valid
// until Prune.
func (i *Issuer) Rotate() error { return i.add((*issuerState).activateLast) }

// Prepare adds a new X.509 and a new JWT authority to the bundle, so that verifiers have them before they sign.
func (i *Issuer) Prepare() error { return i.add(func(*issuerState) {}) }

// Activate makes the authorities that were prepared last sign from now on. Workloads get new SVIDs at once.
func (i *Issuer) Activate() error { return i.change((*issuerState).activateLast) }

func (i *Issuer) add(then func(*issuerState)) error {
	fresh, err := newAuthority(i.cfg.TrustDomain, i.cfg.Now())
	if err != nil {
		return fmt.Errorf("making authorities: %w", err)
	}
	return i.change(func(state *issuerState) {
		state.authorities = append(state.authorities[:len(state.authorities):len(state.authorities)], fresh)
		then(state)
	})
}

// Prune removes all authorities but the active ones from the bundle. SVIDs of the removed ones are no longer valid.
func (i *Issuer) Prune() error {
	return i.change(func(state *issuerState) {
		state.authorities, state.active = state.authorities[state.active:state.active+1:state.active+1], 0
	})
}

// RotateEvery prepares, activates and prunes authorities until ctx ends, as a SPIRE server does. Each authority signs for
// the given lifetime.
func (i *Issuer) RotateEvery(ctx context.Context, lifetime time.Duration) error {
	tick := time.NewTicker(lifetime / 3)
	defer tick.Stop()
	for {
		for _, step := range []func() error{i.Prepare, i.Activate, i.Prune} {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if err := step(); err != nil {
				return err
			}
		}
	}
}

// change stores the next state before it takes effect.
func (i *Issuer) change(next func(*issuerState)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	state := i.state
	state.sequence++
	next(&state)
	if err := i.save(state); err != nil {
		return fmt.Errorf("storing the authorities: %w", err)
	}
	i.state = state
	i.announce()
	return nil
}

// Announce makes the Workload API send every workload its SVIDs again.
func (i *Issuer) Announce() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.announce()
}

func (i *Issuer) announce() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// Federate also serves another trust domain's bundle to our workloads. It replaces an earlier bundle of that domain and
// ignores a bundle of our own domain, which is never merged with another.
func (i *Issuer) Federate(b *spiffebundle.Bundle) {
	if b.TrustDomain() == i.cfg.TrustDomain {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.federated[b.TrustDomain()] = b.Clone()
	i.announce()
}

// Unfederate stops serving another trust domain's bundle.
func (i *Issuer) Unfederate(td spiffeid.TrustDomain) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.federated, td)
	i.announce()
}

// bundles returns the bundles that workloads may verify with now, and a channel that closes when one of them changes.
func (i *Issuer) bundles() (own *spiffebundle.Bundle, federated []*spiffebundle.Bundle, changed <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, bundle := range i.federated {
		federated = append(federated, bundle)
	}
	return i.bundle(), federated, i.changed
}

// BundleHandler returns a SPIFFE bundle endpoint: it answers GET with the current bundle as a JWKS document. The server
// around it decides which TLS profile it has, https_web or https_spiffe.
func (i *Issuer) BundleHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		text, err := i.Bundle().Marshal()
		if err != nil {
			http.Error(w, "no bundle", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // an error means that the client has gone
	})
}
