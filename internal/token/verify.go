package token

import (
	"crypto"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
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
	claims, err := parseClaims(payload)
	if err != nil {
		return Claims{}, err
	}
	if err := v.accept(claims); err != nil {
		return Claims{}, err
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

// accept checks signed claims against the configuration and the current time.
func (v *Verifier) accept(c received) error {
	now := v.cfg.Now()
	switch {
	case c.Issuer != v.cfg.Issuer:
		return ErrIssuer
	case !v.any && !slices.Contains(v.cfg.Audiences, c.Audience):
		return ErrAudience
	case !now.Before(c.ExpiresAt()):
		return ErrExpired
	case time.Unix(max(c.IssuedAt, c.NotBefore), 0).After(now.Add(leeway)):
		return ErrNotYetValid
	}
	return nil
}
