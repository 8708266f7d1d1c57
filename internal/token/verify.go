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
	// maxToken is far above any token that we issue, in bytes.
	maxToken = 64 << 10
	// leeway is how far the issuer's clock may be ahead. A token's end is not stretched by it.
	leeway = 5 * time.Second
)

// header is all that a token may have in its header. Anything else, such as jku, jwk, x5c, b64 or crit, asks a
// verifier to trust what the token's sender says about keys, or to read it in another way.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// Config says which tokens a Verifier accepts.
type Config struct {
	// Issuer is the iss of the tokens, exactly.
	Issuer string
	// Audiences are those of the resource server: at least one.
	Audiences []string
	// Keys returns the issuer's keys as they are known now. It is called once for each token.
	Keys func() KeySet
	Now  func() time.Time
}

// Verifier reads access tokens. It is safe for concurrent use.
type Verifier struct {
	cfg Config
	any bool
	// signed are texts whose signature one of the keys has made.
	signed jws.Verified[crypto.PublicKey]
}

// NewVerifier is for a resource server: it accepts tokens for its own audiences only. ErrConfig when something is
// missing.
func NewVerifier(cfg Config) (*Verifier, error) {
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		return nil, ErrConfig
	}
	return newVerifier(&Verifier{cfg: cfg})
}

// NewIssuerVerifier is for the issuer itself, which looks at tokens for whatever audience. Who accepts what it verified as
// a permission, without looking at the audience, opens each resource server to the tokens of all others.
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

// Verify returns the claims of a token of ours that is for one of the audiences and valid now. Whether its presenter
// holds the key that it is bound to is for Claims.Bound to say, and whether it was revoked for introspection. The error
// wraps one of the sentinels of this package and says nothing of the token.
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

// open returns the payload of what the issuer has signed as being of that type. A signature by a key that is still the
// issuer's is verified once.
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

// Digest is the SHA-256 of the payload of a token that was verified, by which, with its id, the record knows it.
func Digest(verified string) [32]byte {
	parts, err := jws.Split(verified, maxToken)
	if err != nil {
		return [32]byte{}
	}
	return sha256.Sum256(parts[1])
}

// accept holds claims that the issuer has signed to what is asked for here, now.
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
