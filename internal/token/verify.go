// Package token defines Brevet's access tokens (RFC 9068), the list of revoked ones (Token Status List), and the one
// strict parser for both. The broker uses it to fix what tokens contain, and introspection and resource servers to read
// them.
//
// It is pure: it does no I/O and reads no clock directly. It must never accept a token that has two interpretations, a
// token of another type, or a token whose audience the caller did not ask for.
package token

import (
	"crypto"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-jose/go-jose/v4"
	strict "github.com/go-json-experiment/json"
)

const (
	// maxToken is far larger than any token that we issue, in bytes.
	maxToken = 64 << 10
	// leeway is how far the issuer's clock may be ahead of ours. It does not extend a token's expiry.
	leeway = 5 * time.Second
)

// header has all members that a token's header may have. Any other member, such as jku, jwk, x5c, b64 or crit, would make
// a verifier trust the sender's claims about keys, or interpret the token differently.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// Config defines which tokens a Verifier accepts.
type Config struct {
	// Issuer must equal the tokens' iss exactly.
	Issuer string
	// Audiences are the audiences of the resource server: at least one.
	Audiences []string
	// Keys returns the issuer's currently known keys. Verifier calls it once for each token.
	Keys func() KeySet
	Now  func() time.Time
}

// Verifier reads access tokens. It is safe for concurrent use.
type Verifier struct {
	cfg Config
	any bool
	// signed caches the texts with a valid signature, and the key that signed each one.
	signed jws.Verified[crypto.PublicKey]
}

// NewVerifier returns a Verifier for a resource server: it accepts tokens only for the server's own audiences. It returns
// ErrConfig if a setting is missing.
func NewVerifier(cfg Config) (*Verifier, error) {
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		return nil, ErrConfig
	}
	return newVerifier(&Verifier{cfg: cfg})
}

// NewIssuerVerifier returns a Verifier for the issuer itself, which reads tokens for any audience. Do not treat a token
// verified this way as a permission without checking its audience: that would open each resource server to the tokens of
// all others.
func NewIssuerVerifier(cfg Config) (*Verifier, error) {
	if len(cfg.Audiences) != 0 {
		return nil, ErrConfig
	}
	return newVerifier(&Verifier{cfg: cfg, any: true})
}

func newVerifier(v *Verifier) (*Verifier, error) {
	if v.cfg.Issuer == "" || v.cfg.Keys == nil || v.cfg.Now == nil {
		return nil, ErrConfig
	}
	return v, nil
}

// Verify returns the claims of a token from our issuer that is for one of the audiences and valid now. It does not check
// whether the presenter holds the key that the token is bound to (use Claims.Bound), or whether the token was revoked
// (use introspection). The error wraps one of the sentinels of this package and reveals nothing about the token.
func (v *Verifier) Verify(raw string) (Claims, error) {
	payload, err := v.open(raw, Type)
	if err != nil {
		return Claims{}, err
	}
	// Accept a payload only if it has a single interpretation: no duplicate members, no names in the wrong case, and no fractions
	// where a whole number is required. Ignore unknown members (RFC 9068, section 2.2).
	var claims received
	if strict.Unmarshal(payload, &claims, numbers) != nil || claims.IssuedAt <= 0 || claims.Expires <= claims.IssuedAt || claims.Expires > maxUnixTime ||
		slices.Contains([]string{claims.Issuer, claims.Subject, claims.ClientID, claims.Audience, claims.ID}, "") {
		return Claims{}, ErrMalformed // the parser's text quotes the payload
	}
	now := v.cfg.Now()
	switch {
	case claims.Issuer != v.cfg.Issuer:
		return Claims{}, ErrIssuer
	case !v.any && !slices.Contains(v.cfg.Audiences, claims.Audience):
		return Claims{}, ErrAudience
	case !now.Before(claims.ExpiresAt()):
		return Claims{}, ErrExpired
	case time.Unix(max(claims.IssuedAt, claims.NotBefore), 0).After(now.Add(leeway)):
		return Claims{}, ErrNotYetValid
	}
	return claims.Claims, nil
}

// open returns the payload of a text that the issuer signed with this typ. It verifies a signature only once, as long as
// the issuer keeps the key.
func (v *Verifier) open(raw, typ string) ([]byte, error) {
	parts, err := jws.Split(raw, maxToken)
	switch {
	case errors.Is(err, jws.ErrTooLarge):
		return nil, ErrTooLarge
	case err != nil:
		return nil, ErrMalformed
	}
	var head header
	if strict.Unmarshal(parts[0], &head, strict.RejectUnknownMembers(true)) != nil || head.Type != typ || head.KeyID == "" {
		return nil, ErrMalformed
	}
	if _, ok := fits[head.Algorithm]; !ok {
		return nil, ErrAlgorithm
	}
	key, ok := v.cfg.Keys().keys[head.KeyID]
	if !ok {
		return nil, ErrKey
	}
	if key.Algorithm != head.Algorithm {
		return nil, ErrAlgorithm
	}
	digest := sha256.Sum256([]byte(raw))
	if by, ok := v.signed.Get(digest); ok && jws.SameKey(by, key.Key) {
		return parts[1], nil
	}
	if jws.Verify(raw, parts, head.Algorithm, key.Key) != nil {
		return nil, ErrSignature
	}
	v.signed.Put(digest, key.Key)
	return parts[1], nil
}

// Digest returns the SHA-256 of the payload of a verified token. The record identifies a token by this digest and its id.
func Digest(verified string) [32]byte {
	parts, err := jws.Split(verified, maxToken)
	if err != nil {
		return [32]byte{}
	}
	return sha256.Sum256(parts[1])
}

// maxJWKS bounds a JWKS in bytes, and maxKeys its number of keys.
const maxJWKS, maxKeys = 64 << 10, 64

// fits reports, for each signature algorithm of our tokens, whether a key suits it.
var fits = map[string]func(crypto.PublicKey) bool{
	"ES256": jws.OnCurve(elliptic.P256()), "EdDSA": jws.IsEd25519,
}

// KeySet is the issuer's public keys, each for one algorithm. The zero value holds none.
type KeySet struct{ keys map[string]jose.JSONWebKey }

// Parse reads a JWKS (RFC 7517). It ignores keys of unknown types and uses, as the RFC requires. It returns ErrKeySet if
// the document is not a JWKS, if no usable key is left, or if it contains what no issuer publishes: a private key, or two
// keys with the same kid.
func Parse(jwks []byte) (KeySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if len(jwks) > maxJWKS || json.Unmarshal(jwks, &document) != nil || len(document.Keys) > maxKeys {
		return KeySet{}, ErrKeySet
	}
	set := KeySet{keys: make(map[string]jose.JSONWebKey, len(document.Keys))}
	for _, raw := range document.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil {
			continue
		}
		if !key.IsPublic() {
			return KeySet{}, fmt.Errorf("%w: it contains a private key", ErrKeySet)
		}
		fit, known := fits[key.Algorithm]
		if !known || !fit(key.Key) || key.KeyID == "" || !jws.MayVerify(raw) {
			continue
		}
		if _, twice := set.keys[key.KeyID]; twice {
			return KeySet{}, fmt.Errorf("%w: two keys have the same kid", ErrKeySet)
		}
		set.keys[key.KeyID] = key
	}
	if len(set.keys) == 0 {
		return KeySet{}, fmt.Errorf("%w: no key signs access tokens", ErrKeySet)
	}
	return set, nil
}
