package dpop

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// Header is the header field that carries a proof, and NonceHeader the one that tells the nonce for the next.
	Header, NonceHeader = "DPoP", "DPoP-Nonce"
	// Algorithms are the JWS algorithms of proofs, as metadata and challenges list them.
	Algorithms = "ES256 ES384 EdDSA Ed25519"
	// Type is the typ of a proof's header.
	Type = "dpop+jwt"

	// early and late are how far a proof's time may be ahead of our clock, and behind it.
	early, late = 5 * time.Second, 60 * time.Second
	// maxProof and maxID bound a proof and its jti, in bytes.
	maxProof, maxID = 8 << 10, 256
)

// fits tells which keys each algorithm is used with.
var fits = map[string]func(crypto.PublicKey) bool{
	"ES256": onCurve(elliptic.P256()),
	"ES384": onCurve(elliptic.P384()),
	// Two names of one algorithm: RFC 8037 has EdDSA, and RFC 9864 replaces it by the name of the curve.
	"EdDSA": isEd25519, "Ed25519": isEd25519,
}

func isEd25519(key crypto.PublicKey) bool {
	_, ok := key.(ed25519.PublicKey)
	return ok
}

func onCurve(curve elliptic.Curve) func(crypto.PublicKey) bool {
	return func(key crypto.PublicKey) bool {
		k, ok := key.(*ecdsa.PublicKey)
		return ok && k.Curve == curve
	}
}

// Expected is the request that a proof has to be for.
type Expected struct {
	Method string
	// URLs are the addresses of the request, one by each configured origin. Query and fragment do not matter.
	URLs []string
	Now  time.Time
	// Nonces has to have given the proof's nonce; nil asks for none.
	Nonces *Nonces
	// Token is the access token that the request presents; empty when it presents none.
	Token string
	// Thumbprint is of the key that has to have made the proof; empty takes any.
	Thumbprint string
}

// Proof is a proof that was checked. It is good for one use: pass it to a Memory, or to a store that all replicas share.
type Proof struct {
	// Thumbprint is the RFC 7638 thumbprint of the key that made it, as in the jkt of a cnf.
	Thumbprint string
	// Digest names this one proof among all of all keys. From Until on it would not be accepted any more.
	Digest [sha256.Size]byte
	Until  time.Time
}

// header is all that a proof may have in its header.
type header struct {
	Type      string         `json:"typ"`
	Algorithm string         `json:"alg"`
	Key       jsontext.Value `json:"jwk"`
}

// jwk is all that a proof's key may have (RFC 7517): none of the private members, and no certificates.
type jwk struct {
	Type       string         `json:"kty"`
	Curve      string         `json:"crv"`
	X          string         `json:"x"`
	Y          string         `json:"y"`
	KeyID      string         `json:"kid"`
	Algorithm  string         `json:"alg"`
	Use        string         `json:"use"`
	Operations jsontext.Value `json:"key_ops"`
	Exportable bool           `json:"ext"`
}

type claims struct {
	ID       string         `json:"jti"`
	Method   string         `json:"htm"`
	URL      string         `json:"htu"`
	IssuedAt jsontext.Value `json:"iat"`
	Token    string         `json:"ath"`
	Nonce    string         `json:"nonce"`
}

// Check makes all checks of RFC 9449, section 4.3, of the values of a request's DPoP header. Whether the proof was used
// before is for the caller to find out next. The error wraps one of the sentinels of this package; of a proof that lacks
// nothing but a nonce it is ErrNonce.
func Check(values []string, want Expected) (Proof, error) {
	switch len(values) {
	case 0:
		return Proof{}, ErrMissing
	case 1:
	default:
		return Proof{}, ErrMalformed
	}
	c, thumbprint, err := verified(values[0])
	if err != nil {
		return Proof{}, err
	}
	issued, err := jws.Seconds(c.IssuedAt)
	if err != nil {
		return Proof{}, ErrMalformed
	}
	if err := want.match(c, issued, thumbprint); err != nil {
		return Proof{}, err
	}
	return Proof{
		Thumbprint: thumbprint, Digest: sha256.Sum256([]byte(thumbprint + "." + c.ID)), Until: issued.Add(late + time.Second),
	}, nil
}

// verified returns the claims of a proof, and the thumbprint of the key that has signed them.
func verified(proof string) (claims, string, error) {
	parts, err := jws.Split(proof, maxProof)
	if err != nil {
		return claims{}, "", ErrMalformed
	}
	var head header
	if json.Unmarshal(parts[0], &head, json.RejectUnknownMembers(true)) != nil || head.Type != Type {
		return claims{}, "", ErrMalformed
	}
	var c claims
	if json.Unmarshal(parts[1], &c) != nil || c.ID == "" || len(c.ID) > maxID {
		return claims{}, "", ErrMalformed
	}
	key, err := keyOf(head)
	if err != nil {
		return claims{}, "", err
	}
	if jws.Verify(proof, parts, head.Algorithm, key) != nil {
		return claims{}, "", ErrSignature
	}
	thumbprint, err := jws.Thumbprint(key)
	if err != nil {
		return claims{}, "", ErrKey
	}
	return c, thumbprint, nil
}

// match holds claims that the key has signed to the request. The nonce comes last, so that a caller is told to try again
// only when that would help.
func (want Expected) match(c claims, issued time.Time, thumbprint string) error {
	switch {
	case c.Method != want.Method:
		return ErrMethod
	case !slices.ContainsFunc(want.URLs, func(ours string) bool { return sameURL(c.URL, ours) }):
		return ErrURL
	case issued.After(want.Now.Add(early)) || issued.Before(want.Now.Add(-late)):
		return ErrTime
	case c.Token != hashOf(want.Token):
		return ErrToken
	case want.Thumbprint != "" && want.Thumbprint != thumbprint:
		return ErrBinding
	case want.Nonces != nil && !want.Nonces.gave(c.Nonce, want.Now):
		return ErrNonce
	}
	return nil
}

// keyOf reads the key that a proof brings along. That anybody can bring one is the point: what it proves is the
// thumbprint.
func keyOf(head header) (crypto.PublicKey, error) {
	fit, ok := fits[head.Algorithm]
	if !ok {
		return nil, ErrAlgorithm
	}
	var members jwk
	if json.Unmarshal(head.Key, &members, json.RejectUnknownMembers(true)) != nil {
		return nil, ErrKey
	}
	var key jose.JSONWebKey
	if key.UnmarshalJSON(head.Key) != nil || !key.IsPublic() || !fit(key.Key) || !jws.MayVerify(head.Key) {
		return nil, ErrKey
	}
	return key.Key, nil
}

// hashOf is the ath of a proof for a token, and empty for none.
func hashOf(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
