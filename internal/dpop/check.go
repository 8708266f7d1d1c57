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
	// Header is the header field that carries a proof. NonceHeader carries the nonce for the next proof.
	Header, NonceHeader = "DPoP", "DPoP-Nonce"
	// Algorithms lists the JWS algorithms of proofs, in the form that metadata and challenges use.
	Algorithms = "ES256 ES384 EdDSA Ed25519"
	// Type is the typ header of a proof.
	Type = "dpop+jwt"

	// early is how far a proof's time may be ahead of our clock, and late how far behind it.
	early, late = 5 * time.Second, 60 * time.Second
	// maxProof bounds a proof and maxID its jti, in bytes.
	maxProof, maxID = 8 << 10, 256
)

// fits reports, for each algorithm, whether a key suits it.
var fits = map[string]func(crypto.PublicKey) bool{
	"ES256": onCurve(elliptic.P256()),
	"ES384": onCurve(elliptic.P384()),
	// Two names for one algorithm: RFC 8037 defines EdDSA, and RFC 9864 replaces it with the name of the curve.
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

// Expected describes the request that a proof must match.
type Expected struct {
	Method string
	// URLs are the URLs of the request, one per configured origin. Query and fragment are ignored.
	URLs []string
	Now  time.Time
	// Nonces must have issued the proof's nonce; nil requires no nonce.
	Nonces *Nonces
	// Token is the access token that the request presents; empty if it presents none.
	Token string
	// Thumbprint is the thumbprint of the key that must have signed the proof; empty accepts any key.
	Thumbprint string
}

// Proof is a proof that was checked. It may be used once: pass it to a ReplayCache, or to a store that all replicas
// share.
type Proof struct {
	// Thumbprint is the RFC 7638 thumbprint of the signing key, as in the jkt of a cnf.
	Thumbprint string
	// Digest identifies this proof among all proofs of all keys. Check no longer accepts the proof from Until on.
	Digest [sha256.Size]byte
	Until  time.Time
}

// header has all members that a proof's header may have.
type header struct {
	Type      string         `json:"typ"`
	Algorithm string         `json:"alg"`
	Key       jsontext.Value `json:"jwk"`
}

// jwk has all members that a proof's key may have (RFC 7517): no private members, and no certificates.
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

// Check makes all checks of RFC 9449, section 4.3, on the values of a request's DPoP header. The caller must then check
// whether the proof was used before. The error wraps one of the sentinels of this package. It is ErrNonce only if nothing
// but the nonce is wrong.
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

// verified returns the claims of a proof and the thumbprint of the key that signed them.
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

// match checks signed claims against the request. It checks the nonce last, so a caller is asked to retry only if that
// would help.
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

// keyOf reads the key inside a proof. Any caller can supply any key: the proof only proves that the caller holds the key
// with this thumbprint.
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

// hashOf returns the ath of a proof for a token, or "" if there is no token.
func hashOf(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
