// Package dpop makes and checks DPoP proofs (RFC 9449). With a proof, the sender of a request shows that it holds the key
// that its token is bound to, or will be bound to.
//
// It is pure: it does no I/O and reads no clock directly. It must never take the URL of a request from the request
// itself: a proof is valid only for an origin that the operator has configured.
package dpop

import (
	"crypto"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strings"
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
	"ES256": jws.OnCurve(elliptic.P256()),
	"ES384": jws.OnCurve(elliptic.P384()),
	// Two names for one algorithm: RFC 8037 defines EdDSA, and RFC 9864 replaces it with the name of the curve.
	"EdDSA": jws.IsEd25519, "Ed25519": jws.IsEd25519,
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
	if len(values) == 0 {
		return Proof{}, ErrMissing
	}
	if len(values) > 1 {
		return Proof{}, ErrMalformed
	}
	proof := values[0]
	parts, err := jws.Split(proof, maxProof)
	if err != nil {
		return Proof{}, ErrMalformed
	}
	var head header
	if json.Unmarshal(parts[0], &head, json.RejectUnknownMembers(true)) != nil || head.Type != Type {
		return Proof{}, ErrMalformed
	}
	var c claims
	if json.Unmarshal(parts[1], &c) != nil || c.ID == "" || len(c.ID) > maxID {
		return Proof{}, ErrMalformed
	}
	// Any caller can supply any key: the proof only proves that the caller holds the key with this thumbprint.
	fit, ok := fits[head.Algorithm]
	if !ok {
		return Proof{}, ErrAlgorithm
	}
	var members jwk
	if json.Unmarshal(head.Key, &members, json.RejectUnknownMembers(true)) != nil {
		return Proof{}, ErrKey
	}
	var key jose.JSONWebKey
	if key.UnmarshalJSON(head.Key) != nil || !key.IsPublic() || !fit(key.Key) || !jws.MayVerify(head.Key) {
		return Proof{}, ErrKey
	}
	if jws.Verify(proof, parts, head.Algorithm, key.Key) != nil {
		return Proof{}, ErrSignature
	}
	thumbprint, err := jws.Thumbprint(key.Key)
	if err != nil {
		return Proof{}, ErrKey
	}
	issued, err := jws.Seconds(c.IssuedAt)
	if err != nil {
		return Proof{}, ErrMalformed
	}
	switch { // the nonce comes last, so a caller is asked to retry only if that would help
	case c.Method != want.Method:
		return Proof{}, ErrMethod
	case !slices.ContainsFunc(want.URLs, func(ours string) bool { return sameURL(c.URL, ours) }):
		return Proof{}, ErrURL
	case issued.After(want.Now.Add(early)) || issued.Before(want.Now.Add(-late)):
		return Proof{}, ErrTime
	case c.Token != hashOf(want.Token):
		return Proof{}, ErrToken
	case want.Thumbprint != "" && want.Thumbprint != thumbprint:
		return Proof{}, ErrBinding
	case want.Nonces != nil && !want.Nonces.gave(c.Nonce, want.Now):
		return Proof{}, ErrNonce
	}
	return Proof{
		Thumbprint: thumbprint, Digest: sha256.Sum256([]byte(thumbprint + "." + c.ID)), Until: issued.Add(late + time.Second),
	}, nil
}

// hashOf returns the ath of a proof for a token, or "" if there is no token.
func hashOf(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// sameURL reports whether two URLs are the same, ignoring query and fragment. A URL that no request can have equals no
// other one.
func sameURL(a, b string) bool {
	one, ok := normal(a)
	other, okay := normal(b)
	return ok && okay && one == other
}

// normal returns the URL in the normal form of RFC 3986, section 6.2: host in lower case, no default port, no unnecessary
// escapes. It rejects a URL with a user or with dot segments, which no request has either.
func normal(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" {
		return "", false
	}
	host := strings.ToLower(u.Host) // url.Parse has already lower-cased the scheme
	switch u.Scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	default:
		return "", false
	}
	path := unescape(u.EscapedPath())
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return "", false
		}
	}
	if path == "" {
		path = "/"
	}
	return u.Scheme + "://" + strings.TrimSuffix(host, ":") + path, true
}

// unescape decodes escaped unreserved characters, and writes all other escapes in upper case.
func unescape(path string) string {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) {
			out.WriteByte(path[i])
			continue
		}
		escape := path[i : i+3]
		i += 2
		if text, err := url.PathUnescape(escape); err == nil && unreserved.MatchString(text) {
			out.WriteString(text)
		} else {
			out.WriteString(strings.ToUpper(escape))
		}
	}
	return out.String()
}

// unreserved matches an unreserved character (RFC 3986, section 2.3).
var unreserved = regexp.MustCompile(`^[A-Za-z0-9._~-]$`)
