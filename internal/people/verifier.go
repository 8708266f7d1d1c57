// Package people verifies an OpenID Connect ID token and returns a [Person]. It also decides which roles the person's
// groups grant, and who owns a sandbox. It fetches keys only from the provider that the operator configures, and only when
// necessary.
//
// The checks are those of OpenID Connect Core, section 3.1.3.7, done by go-oidc, and additional ones for use as a bearer
// token: exactly one audience, pinned algorithms, a bounded lifetime, Brevet's own clock with a few seconds of leeway, and
// a single parse of the token. Login checks the nonce for logins that began here. Other callers cannot, because the
// presenter of the token did not begin the login here.
//
// The package must never make a Person out of anything but a verified ID token (no access token, no logout token, no SVID),
// never fetch from an address in a token, never turn a flood of bad tokens into a flood of requests to the provider, and
// never put a byte of a token in an error. Roles and owners are pure: no I/O, no clock.
package people

import (
	"cmp"
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

	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/coreos/go-oidc/v3/oidc"
)

const (
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
	cfg.GroupsClaim, cfg.OwnerClaim = cmp.Or(cfg.GroupsClaim, "groups"), cmp.Or(cfg.OwnerClaim, "preferred_username")
	return &Verifier{cfg: cfg, keys: newKeys(cfg)}, nil
}

// checkURL refuses URLs that would be fetched unencrypted from another machine. Its errors never quote the URL, which may
// contain a password.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("the URL cannot be parsed")
	}
	address, notIP := netip.ParseAddr(u.Hostname())
	loopback := u.Hostname() == "localhost" || notIP == nil && address.IsLoopback()
	switch {
	case u.Hostname() == "" || u.Opaque != "":
		return errors.New("the URL has no host")
	case u.User != nil:
		return errors.New("the URL contains userinfo")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback):
		return errors.New("the URL is neither https nor on this machine")
	}
	return nil
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
	return v.identify(ctx, raw, []string{v.cfg.ClientID}, v.cfg.Now())
}

// IdentifyAt is Identify for a token that the caller itself received from the provider at a time in the past, and that may have
// expired since. It verifies the token as of that time, with the keys that the provider has now. So a key that the provider
// withdraws ends what was signed with it. The clock of the replica that received the token may be ahead of this one by the leeway.
func (v *Verifier) IdentifyAt(ctx context.Context, raw string, received time.Time) (Person, error) {
	now := v.cfg.Now()
	if received.After(now.Add(leeway)) {
		return Person{}, errNotYetValid
	}
	if received.After(now) {
		received = now
	}
	return v.identify(ctx, raw, []string{v.cfg.ClientID}, received)
}

// Delegator verifies an ID token that somebody else presents for a person, and returns the person. The audience must be one
// of the delegation audiences: a login token is not accepted here, and a delegation token is not accepted for a login.
// Delegation does not work with a provider that gives a person another subject for each client, because Brevet could not
// tell which approvers must not decide. Errors are those of Identify, and ErrNoDelegation.
func (v *Verifier) Delegator(ctx context.Context, raw string) (Person, error) {
	if len(v.cfg.Delegations) == 0 {
		return Person{}, ErrNoDelegation
	}
	person, err := v.identify(ctx, raw, v.cfg.Delegations, v.cfg.Now())
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

func (v *Verifier) identify(ctx context.Context, raw string, audiences []string, now time.Time) (Person, error) {
	h, c, err := parse(raw)
	if err != nil {
		return Person{}, err
	}
	if err := h.check(); err != nil {
		return Person{}, err
	}
	person, audience, err := v.read(c, audiences, now)
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
	// With exactly one key and one algorithm, no other can verify the token.
	token, err := oidc.NewVerifier(v.cfg.Issuer, &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key}}, &oidc.Config{
		ClientID: audience, SupportedSigningAlgs: []string{h.Algorithm},
		Now: func() time.Time { return now.Add(-leeway) },
	}).Verify(ctx, raw)
	if err != nil {
		return Person{}, errSignature // the cause may quote the token
	}
	if token.Issuer != person.issuer || token.Subject != person.subject ||
		!token.Expiry.Equal(person.expires) || !token.IssuedAt.Equal(person.issued) {
		return Person{}, fmt.Errorf("%w: the parsers disagree about the token", errMalformed)
	}
	return person, nil
}

// Person is a person with a verified ID token. Only a [Verifier] makes one; the zero value is nobody.
type Person struct {
	issuer  string
	subject string
	name    string
	handle  string
	groups  []string
	issued  time.Time
	expires time.Time
	// loggedIn is zero if the token does not say.
	loggedIn time.Time
}

// ID returns the permanent ID of the person: the issuer, a #, and the subject. Neither part contains another #.
func (p Person) ID() string {
	if p.IsZero() {
		return ""
	}
	return p.issuer + "#" + p.subject
}

// ParseID returns the ID of a person of the issuer. text is that ID or the subject alone.
func ParseID(issuer, text string) (string, error) {
	subject := strings.TrimPrefix(text, issuer+"#")
	if err := checkSubject(subject); err != nil {
		return "", fmt.Errorf("%q is not a person of %s: %w", text, issuer, err)
	}
	return issuer + "#" + subject, nil
}

// Issuer returns the provider that issued the token.
func (p Person) Issuer() string { return p.issuer }

// Subject returns the provider's identifier of the person: printable ASCII without spaces, at most 255 bytes.
func (p Person) Subject() string { return p.subject }

// Name returns the display name, at most 200 bytes long and without control characters. It is untrusted text: people may be
// able to choose their name, so show it as inert text and never compare it.
func (p Person) Name() string { return p.name }

// Handle returns the owner claim, or "" if the token has none. [Owners.Owns] compares it.
func (p Person) Handle() string { return p.handle }

// Groups returns the person's groups at the time of the login, sorted and without duplicates. The caller may modify the
// slice.
func (p Person) Groups() []string { return slices.Clone(p.groups) }

// Issued returns the time at which the provider issued the token.
func (p Person) Issued() time.Time { return p.issued }

// LoggedInWithin reports whether the person proved to the provider who they are within the given time before now, as the token's
// auth_time says (OpenID Connect Core, section 2). It is false if the token has none. The time of issue proves nothing: a provider
// issues tokens for as long as its own session lives, whoever sits at the browser.
func (p Person) LoggedInWithin(age time.Duration, now time.Time) bool {
	return !p.loggedIn.IsZero() && now.Sub(p.loggedIn) <= age
}

// Expires returns the expiry time of the token. Because of the leeway it can be a few seconds in the past.
func (p Person) Expires() time.Time { return p.expires }

// IsZero reports whether p is the zero value.
func (p Person) IsZero() bool { return p.subject == "" }

var (
	// ErrToken means that the token is invalid. The person has to log in again.
	ErrToken error = refusal.New("people", "id_token_invalid", "the ID token is invalid")
	// ErrNoDelegation means that no delegation audience is configured, so nobody can act on behalf of another person.
	ErrNoDelegation error = refusal.New("people", "delegation_off", "no delegation audience is configured")
	// ErrProviderUnavailable means that the provider's keys are not available at the moment, so no token can be verified.
	ErrProviderUnavailable error = refusal.New("people", "provider_unavailable", "the provider's keys are not available at the moment")
)

// The reasons to refuse an ID token. Each wraps ErrToken. Do not show them to clients: the details belong in the record.
var (
	errMalformed   = refusal.Of(ErrToken, "people", "id_token_malformed", "the ID token is malformed")
	errTooLarge    = refusal.Of(ErrToken, "people", "id_token_too_large", "the ID token is too large")
	errHeader      = refusal.Of(ErrToken, "people", "id_token_header", "the ID token's header has an unsupported parameter")
	errType        = refusal.Of(ErrToken, "people", "id_token_type", "the token is not an ID token")
	errAlgorithm   = refusal.Of(ErrToken, "people", "id_token_algorithm", "the signature algorithm is not accepted")
	errIssuer      = refusal.Of(ErrToken, "people", "id_token_issuer", "the issuer is not exactly the configured one")
	errAudience    = refusal.Of(ErrToken, "people", "id_token_audience", "the audience is not exactly the expected one")
	errExpired     = refusal.Of(ErrToken, "people", "id_token_expired", "the ID token has expired")
	errNotYetValid = refusal.Of(ErrToken, "people", "id_token_not_yet_valid", "the ID token is not valid yet")
	errLifetime    = refusal.Of(ErrToken, "people", "id_token_lifetime", "the lifetime of the ID token is too long")
	errSubject     = refusal.Of(ErrToken, "people", "id_token_subject", "the subject is not accepted")
	errPairwise    = refusal.Of(ErrToken, "people", "id_token_pairwise", "the provider uses pairwise subjects")
	errClaims      = refusal.Of(ErrToken, "people", "id_token_claims", "a claim is not accepted")
	errKey         = refusal.Of(ErrToken, "people", "id_token_key", "the provider has no such key")
	errNonce       = refusal.Of(ErrToken, "people", "id_token_nonce", "the ID token does not belong to this login")
	errSignature   = refusal.Of(ErrToken, "people", "id_token_signature", "the ID token does not verify")
)
