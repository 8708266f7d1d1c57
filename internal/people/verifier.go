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

	// leeway is how far the provider's clock may be off.
	leeway = 5 * time.Second

	// maxLife is the longest life of an ID token, of which groups are a part: for as long, somebody who has left a
	// group may still be taken for a member.
	maxLife = 24 * time.Hour
)

// Config is what a Verifier needs. Issuer, ClientID and Now have no default.
type Config struct {
	// Issuer is the provider's issuer, exactly as its ID tokens have it: an https URL, or an http URL of this machine.
	Issuer string
	// ClientID is the one audience of the ID tokens.
	ClientID string
	// Delegations are the audiences of ID tokens that people let others present, none of them ClientID. None lets nobody.
	Delegations []string
	// GroupsClaim is the claim with the groups, an array of strings at the top level; "groups" if empty.
	GroupsClaim string
	// OwnerClaim is the claim with what people are called in the SPIFFE IDs of their sandboxes; "preferred_username" if
	// empty. It has to be one that people cannot change for themselves.
	OwnerClaim string
	// HTTPClient carries the calls to the provider, nil is one of our own. Of it, only the transport is used.
	HTTPClient *http.Client
	// Now is the clock.
	Now func() time.Time
}

// Verifier verifies the ID tokens of one provider. It is safe for concurrent use.
type Verifier struct {
	cfg  Config
	keys *keys
}

// New checks cfg and returns a Verifier. It asks the provider nothing, which may be down or not there yet.
func New(cfg Config) (*Verifier, error) {
	switch {
	case cfg.ClientID == "":
		return nil, errors.New("people: no client id")
	case cfg.Now == nil:
		return nil, errors.New("people: no clock")
	case slices.Contains(cfg.Delegations, cfg.ClientID):
		return nil, errors.New("people: the client of people's own logins cannot be one that they delegate by: whoever got such a token could vote as them")
	case slices.Contains(cfg.Delegations, ""):
		return nil, errors.New("people: an audience to delegate by is empty")
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

// checkURL refuses what would be fetched in the clear from another machine. Its errors never quote the URL, which may
// hold a password.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("the URL cannot be parsed")
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("the URL names no host")
	case u.User != nil:
		return errors.New("the URL holds userinfo")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("the URL is not https, and not of this machine")
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// Issuer is the provider's.
func (v *Verifier) Issuer() string { return v.cfg.Issuer }

// Identify returns the person that an ID token proves. The cheap checks come first, so that junk costs no signature and
// no fetch; nothing of the token is believed before its signature is verified.
//
// Errors are ErrToken, and ErrProviderUnavailable when the keys could not be had; Reason tells more. When ctx ends
// first, its error is wrapped in ErrProviderUnavailable.
func (v *Verifier) Identify(ctx context.Context, raw string) (Person, error) {
	return v.identify(ctx, raw, []string{v.cfg.ClientID})
}

// Delegator returns the person whose ID token somebody else presents: it has to be for one of the audiences that are there
// for this alone, so that no login of the person serves for it, and the token serves for no login. A provider that calls the
// person something else for each client is of no use here: nobody could tell who must not decide. Errors are as for
// Identify, and ErrNoDelegation.
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

// Login is Identify for whoever has begun the login: its nonce has to be in the token (OpenID Connect Core, 3.1.3.7).
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
		return Person{}, fmt.Errorf("%w: it does not fit the key", errAlgorithm)
	}
	token, err := v.verifier(h.Algorithm, key, audience).Verify(ctx, raw)
	if err != nil {
		return Person{}, errSignature // the cause may quote the token
	}
	if token.Issuer != person.issuer || token.Subject != person.subject ||
		!token.Expiry.Equal(person.expires) || !token.IssuedAt.Equal(person.issued) {
		return Person{}, fmt.Errorf("%w: two readings of one token", errMalformed)
	}
	return person, nil
}

// verifier knows exactly one key and one algorithm. Whatever go-oidc does with them, no other can verify the token.
func (v *Verifier) verifier(algorithm string, key crypto.PublicKey, audience string) *oidc.IDTokenVerifier {
	return oidc.NewVerifier(v.cfg.Issuer, &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key}}, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: []string{algorithm},
		Now: func() time.Time { return v.cfg.Now().Add(-leeway) },
	})
}
