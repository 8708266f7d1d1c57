package people

import (
	"context"
	"crypto"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	defaultGroupsClaim = "groups"
	defaultOwnerClaim  = "preferred_username"

	// leeway is the tolerated difference between the provider's clock and Brevet's.
	leeway = 5 * time.Second

	// maxLife is the longest lifetime of an ID token. The token contains the groups, so for this long a person who has left a
	// group may still count as a member.
	maxLife = 24 * time.Hour
)

// Config configures a Verifier. Issuer, ClientID and Now are required.
type Config struct {
	// Issuer is the provider's issuer, exactly as in its ID tokens: an https URL, or an http URL of this machine.
	Issuer string
	// ClientID is the only audience of ID tokens for logins.
	ClientID string
	// Delegations are the audiences of ID tokens that people let others present. They must not contain ClientID. If there are
	// none, delegation is off.
	Delegations []string
	// GroupsClaim is the name of the claim with the groups, an array of strings at the top level. The default is "groups".
	GroupsClaim string
	// OwnerClaim is the name of the claim with the person's name in the SPIFFE IDs of their sandboxes. The default is
	// "preferred_username". People must not be able to change this claim themselves.
	OwnerClaim string
	// HTTPClient supplies the transport for calls to the provider. If it is nil, the verifier uses its own transport. Only the
	// transport is used.
	HTTPClient *http.Client
	// Now is the clock.
	Now func() time.Time
}

// Verifier verifies the ID tokens of one provider. It is safe for concurrent use.
type Verifier struct {
	cfg  Config
	keys *keys
}

// New checks cfg and returns a Verifier. It does not contact the provider, which may be down.
func New(cfg Config) (*Verifier, error) {
	switch {
	case cfg.ClientID == "":
		return nil, errors.New("people: no client id")
	case cfg.Now == nil:
		return nil, errors.New("people: no clock")
	case slices.Contains(cfg.Delegations, cfg.ClientID):
		return nil, errors.New("people: the client id must not be a delegation audience: a delegation token could then be used to vote")
	case slices.Contains(cfg.Delegations, ""):
		return nil, errors.New("people: a delegation audience is empty")
	}
	cfg.Delegations = slices.Clone(cfg.Delegations)
	if err := checkURL(cfg.Issuer); err != nil {
		return nil, fmt.Errorf("people: issuer: %w", err)
	}
	if strings.ContainsAny(cfg.Issuer, "?#") {
		return nil, errors.New("people: issuer: the URL has a query or a fragment")
	}
	if cfg.GroupsClaim == "" {
		cfg.GroupsClaim = defaultGroupsClaim
	}
	if cfg.OwnerClaim == "" {
		cfg.OwnerClaim = defaultOwnerClaim
	}
	return &Verifier{cfg: cfg, keys: newKeys(cfg)}, nil
}

// checkURL refuses URLs that would be fetched unencrypted from another machine. Its errors never quote the URL, which may
// contain a password.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("the URL cannot be parsed")
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("the URL has no host")
	case u.User != nil:
		return errors.New("the URL contains userinfo")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("the URL is neither https nor on this machine")
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// Issuer returns the provider's issuer URL.
func (v *Verifier) Issuer() string { return v.cfg.Issuer }

// Identify verifies an ID token and returns its person. The cheap checks come first, so that an invalid token costs no
// signature check and no fetch. The result is returned only after the signature is verified.
//
// It returns an error that wraps ErrToken if the token is invalid, or ErrProviderUnavailable if the keys could not be
// fetched; refusal.Reason returns the detail. If ctx ends first, the error wraps ErrProviderUnavailable and the error of
// ctx.
func (v *Verifier) Identify(ctx context.Context, raw string) (Person, error) {
	return v.identify(ctx, raw, []string{v.cfg.ClientID})
}

// Delegator verifies an ID token that somebody else presents for a person, and returns the person. The audience must be one
// of the delegation audiences: a login token is not accepted here, and a delegation token is not accepted for a login.
// Delegation does not work with a provider that gives a person another subject for each client, because Brevet could not
// tell which approvers must not decide. Errors are those of Identify, and ErrNoDelegation.
func (v *Verifier) Delegator(ctx context.Context, raw string) (Person, error) {
	if len(v.cfg.Delegations) == 0 {
		return Person{}, ErrNoDelegation
	}
	person, err := v.identify(ctx, raw, v.cfg.Delegations)
	if err == nil && v.keys.namesDiffer() {
		return Person{}, errPairwise
	}
	return person, err
}

// Login is Identify for the party that began the login: the token must contain its nonce (OpenID Connect Core, 3.1.3.7).
func (v *Verifier) Login(ctx context.Context, raw, nonce string) (Person, error) {
	if _, c, err := parse(raw); err != nil {
		return Person{}, err
	} else if nonce == "" || subtle.ConstantTimeCompare([]byte(c.Nonce), []byte(nonce)) != 1 {
		return Person{}, errNonce
	}
	return v.Identify(ctx, raw)
}

func (v *Verifier) identify(ctx context.Context, raw string, audiences []string) (Person, error) {
	h, c, err := parse(raw)
	if err != nil {
		return Person{}, err
	}
	if err := h.check(); err != nil {
		return Person{}, err
	}
	person, audience, err := v.read(c, audiences)
	if err != nil {
		return Person{}, err
	}
	key, err := v.keys.find(ctx, h.KeyID)
	if err != nil {
		return Person{}, err
	}
	if !keyFits[h.Algorithm](key) {
		return Person{}, fmt.Errorf("%w: it does not match the key", errAlgorithm)
	}
	token, err := v.verifier(h.Algorithm, key, audience).Verify(ctx, raw)
	if err != nil {
		return Person{}, errSignature // the cause may quote the token
	}
	if token.Issuer != person.issuer || token.Subject != person.subject ||
		!token.Expiry.Equal(person.expires) || !token.IssuedAt.Equal(person.issued) {
		return Person{}, fmt.Errorf("%w: the parsers disagree about the token", errMalformed)
	}
	return person, nil
}

// verifier returns a go-oidc verifier with exactly one key and one algorithm, so that no other can verify the token.
func (v *Verifier) verifier(algorithm string, key crypto.PublicKey, audience string) *oidc.IDTokenVerifier {
	return oidc.NewVerifier(v.cfg.Issuer, &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key}}, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: []string{algorithm},
		Now: func() time.Time { return v.cfg.Now().Add(-leeway) },
	})
}
