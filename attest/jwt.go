package attest

import (
	"crypto"
	"crypto/elliptic"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
)

// JWT verifies a JWT-SVID in compact serialisation and returns its identity. The cheap checks come first, so that a junk token
// costs no signature check. No claim is trusted before the signature is verified.
//
// A jti is neither required nor remembered: workloads use one cached SVID many times. Mutual TLS and DPoP protect against replay.
func (a *Attestor) JWT(token string) (Identity, error) { return a.jwt(token, a.audience) }

// ActorAudience returns the audience of an actor's JWT-SVID. With such an SVID, a workload agrees to receive a token that another
// workload delegates to it. The audience is a separate one, so that a holder of the SVID cannot call as that workload.
func ActorAudience(issuer string) string { return issuer + "/actor" }

// Actor is like JWT, for an SVID with the audience ActorAudience. JWT rejects such an SVID.
func (a *Attestor) Actor(token string) (Identity, error) {
	return a.jwt(token, ActorAudience(a.audience))
}

func (a *Attestor) jwt(token, audience string) (Identity, error) {
	parts, err := jws.Split(token, maxTokenBytes)
	switch {
	case errors.Is(err, jws.ErrTooLarge):
		return Identity{}, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		return Identity{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	// Both calls reject duplicate members, invalid UTF-8 and trailing data, and match names case-sensitively.
	var header tokenHeader
	if err := json.Unmarshal(parts[0], &header, json.RejectUnknownMembers(true)); err != nil {
		return Identity{}, fmt.Errorf("%w: header", ErrMalformed)
	}
	var claims tokenClaims
	if err := json.Unmarshal(parts[1], &claims); err != nil {
		return Identity{}, fmt.Errorf("%w: claims", ErrMalformed)
	}
	if header.KeyID == "" {
		return Identity{}, fmt.Errorf("%w: no key id", ErrMalformed)
	}
	if typ := string(header.Type); typ != "" && typ != `"JWT"` && typ != `"JOSE"` {
		return Identity{}, fmt.Errorf("%w: its type is not that of a JWT-SVID", ErrMalformed)
	}
	if _, ok := keyFits[header.Algorithm]; !ok {
		return Identity{}, ErrAlgorithm
	}
	id, err := ParseID(claims.Subject)
	if err != nil {
		return Identity{}, err
	}
	if sole, ok := jws.SoleAudience(claims.Audience); !ok || sole != audience {
		return Identity{}, ErrAudience
	}
	expires, err := a.checkTimes(claims)
	if err != nil {
		return Identity{}, err
	}
	// The checks above do not depend on which trust domains are accepted, so their errors do not reveal them.
	if err := a.acceptDomain(id); err != nil {
		return Identity{}, err
	}
	key, err := a.jwtKey(id.TrustDomain(), header)
	if err != nil {
		return Identity{}, err
	}
	digest := sha256.Sum256([]byte(token))
	if known, ok := a.tokens.Get(digest); ok && jws.SameKey(known, key) {
		return Identity{id: id, kind: KindJWT, expires: expires}, nil
	}
	// Pass go-spiffe a bundle with only this key, so that no other key can verify the token.
	bundle := jwtbundle.FromJWTAuthorities(id.TrustDomain(), map[string]crypto.PublicKey{header.KeyID: key})
	svid, err := jwtsvid.ParseAndValidate(token, bundle, []string{audience})
	if err != nil {
		return Identity{}, ErrSignature // the cause may quote the token
	}
	// The salt of an RSASSA-PSS signature must be as long as its hash (RFC 7518, section 3.5). go-spiffe accepts any length.
	if strings.HasPrefix(header.Algorithm, "PS") && jws.Verify(token, parts, header.Algorithm, key) != nil {
		return Identity{}, ErrSignature
	}
	if svid.ID != id || !svid.Expiry.Equal(expires) {
		return Identity{}, fmt.Errorf("%w: the parsers disagree about the token", ErrMalformed)
	}
	a.tokens.Put(digest, key)
	return Identity{id: id, kind: KindJWT, expires: expires}, nil
}

// checkTimes returns the end of the token's life. It accepts a token that starts up to a.leeway later than now, or that expired up
// to a.leeway ago.
func (a *Attestor) checkTimes(claims tokenClaims) (time.Time, error) {
	now := a.now()
	expires, err := jws.Seconds(claims.Expires)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: exp", ErrMalformed)
	}
	start := time.Time{}
	for _, claim := range [][]byte{claims.NotBefore, claims.IssuedAt} {
		if claim == nil {
			continue
		}
		t, err := jws.Seconds(claim)
		if err != nil {
			return time.Time{}, fmt.Errorf("%w: nbf or iat", ErrMalformed)
		}
		if t.After(now.Add(a.leeway)) {
			return time.Time{}, ErrNotYetValid
		}
		start = t
	}
	switch {
	case expires.Before(now.Add(-a.leeway)):
		return time.Time{}, ErrExpired
	case expires.After(now.Add(a.maxJWTLife + a.leeway)):
		return time.Time{}, fmt.Errorf("%w: %s left", ErrLifetime, expires.Sub(now))
	case !start.IsZero() && expires.Sub(start) > maxJWTTotalLife:
		return time.Time{}, fmt.Errorf("%w: %s in total", ErrLifetime, expires.Sub(start))
	}
	return expires, nil
}

// jwtKey returns the key that the header names, from the bundle of the subject's trust domain.
func (a *Attestor) jwtKey(td spiffeid.TrustDomain, header tokenHeader) (crypto.PublicKey, error) {
	bundle, err := a.bundles.GetJWTBundleForTrustDomain(td)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBundleUnavailable, td, err)
	}
	if bundle == nil || bundle.TrustDomain() != td {
		return nil, fmt.Errorf("%w: the source returned the wrong bundle for %s", ErrBundleUnavailable, td)
	}
	key, ok := bundle.FindJWTAuthority(header.KeyID)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrAuthority, td)
	}
	if !strongKey(key) {
		return nil, fmt.Errorf("%w: in the bundle of %s", ErrWeakKey, td)
	}
	if !keyFits[header.Algorithm](key) {
		return nil, fmt.Errorf("%w: it does not match the key", ErrAlgorithm)
	}
	return key, nil
}

// keyFits maps each algorithm of JWT-SVID, section 2.1, to a check that a key is of the right type for it. The specification
// allows neither EdDSA nor a symmetric algorithm.
var keyFits = map[string]func(crypto.PublicKey) bool{
	"RS256": jws.IsRSA, "RS384": jws.IsRSA, "RS512": jws.IsRSA,
	"PS256": jws.IsRSA, "PS384": jws.IsRSA, "PS512": jws.IsRSA,
	"ES256": jws.OnCurve(elliptic.P256()), "ES384": jws.OnCurve(elliptic.P384()), "ES512": jws.OnCurve(elliptic.P521()),
}

// maxTokenBytes is far more than a real JWT-SVID needs. It is small enough that nobody can overload Brevet with large tokens.
const maxTokenBytes = 8 << 10

// tokenHeader has the only members that a JWT-SVID may have in its header (JWT-SVID, section 2). Some others, such as jku, jwk and
// x5c, ask a verifier to trust keys that the sender of the token chose.
type tokenHeader struct {
	Algorithm string         `json:"alg"`
	KeyID     string         `json:"kid"`
	Type      jsontext.Value `json:"typ"`
}

// tokenClaims are the claims that are checked. Times stay text until they are known to be integers.
type tokenClaims struct {
	Subject   string         `json:"sub"`
	Audience  jsontext.Value `json:"aud"`
	Expires   jsontext.Value `json:"exp"`
	NotBefore jsontext.Value `json:"nbf"`
	IssuedAt  jsontext.Value `json:"iat"`
}
