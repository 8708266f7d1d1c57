// Package jws strictly parses signed tokens (RFC 7515, compact serialisation) and verifies a signature with a given key.
// It exists because two parsers that read one token differently allow an attacker to bypass both: what jws accepts has
// only one interpretation. It must never choose a key or an algorithm based on the token.
package jws

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"
)

// The errors for a bad token. No error quotes the token.
var (
	ErrMalformed = errors.New("malformed token")
	ErrTooLarge  = errors.New("the token is too large")
	ErrSignature = errors.New("the token's signature does not verify")
)

// maxUnixTime is the end of the year 9999. It keeps times within what RFC 3339 can represent.
const maxUnixTime = 253402300799

// Parts are the decoded header, payload and signature of a token.
type Parts [3][]byte

// Split decodes the parts of a token of at most limit bytes. Go's decoder skips line breaks, and its lax mode ignores
// stray bits at the end, so many texts would decode to the same token. Split therefore uses strict mode and also rejects
// line breaks.
func Split(token string, limit int) (Parts, error) {
	var parts Parts
	if len(token) > limit {
		return parts, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(token))
	}
	if strings.Count(token, ".") != len(parts)-1 {
		return parts, fmt.Errorf("%w: not three parts", ErrMalformed)
	}
	for i, part := range strings.Split(token, ".") {
		if part == "" || strings.ContainsAny(part, "\r\n") {
			return parts, fmt.Errorf("%w: part %d", ErrMalformed, i)
		}
		decoded, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil {
			return parts, fmt.Errorf("%w: part %d", ErrMalformed, i)
		}
		parts[i] = decoded
	}
	return parts, nil
}

// Verify returns nil if the signature of a split token was made by the key with that JWS algorithm. The caller must know
// that the algorithm is acceptable and fits the key.
func Verify(token string, parts Parts, algorithm string, key crypto.PublicKey) error {
	method := jwt.GetSigningMethod(algorithm)
	switch pss, ok := method.(*jwt.SigningMethodRSAPSS); {
	case algorithm == "Ed25519": // RFC 9864's name for what RFC 8037 calls EdDSA with this curve
		method = jwt.SigningMethodEdDSA
	case ok: // the library accepts a salt of any length; RFC 7518, section 3.5, requires that of the hash
		method = &jwt.SigningMethodRSAPSS{
			SigningMethodRSA: pss.SigningMethodRSA, Options: pss.Options, VerifyOptions: &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash},
		}
	}
	if method == nil || method.Verify(token[:strings.LastIndexByte(token, '.')], parts[2], key) != nil {
		return ErrSignature
	}
	return nil
}

// MayVerify reports whether a JWK's use and key_ops allow verifying signatures (RFC 7517, sections 4.2 and 4.3).
func MayVerify(jwk []byte) bool {
	var said struct {
		Use        string   `json:"use"`
		Operations []string `json:"key_ops"`
	}
	return json.Unmarshal(jwk, &said) == nil && (said.Use == "" || said.Use == "sig") &&
		(said.Operations == nil || slices.Contains(said.Operations, "verify"))
}

// Thumbprint returns the RFC 7638 thumbprint of a public key, with SHA-256 and in base64url.
func Thumbprint(public crypto.PublicKey) (string, error) {
	sum, err := (&jose.JSONWebKey{Key: public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", errors.New("the key has no thumbprint")
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// CertificateThumbprint returns the x5t#S256 of a certificate in DER (RFC 8705, section 3.1).
func CertificateThumbprint(der []byte) string {
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Seconds reads a NumericDate (RFC 7519, section 2). It accepts whole seconds only, because libraries read a fraction, an
// exponent or a string in different ways.
func Seconds(v jsontext.Value) (time.Time, error) {
	text := string(v)
	if len(text) == 0 || text[0] < '0' || text[0] > '9' {
		return time.Time{}, ErrMalformed
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > maxUnixTime {
		return time.Time{}, ErrMalformed
	}
	return time.Unix(n, 0).UTC(), nil
}

// SoleAudience returns the audience in an "aud" that is a string or an array of one string (RFC 7519, section 4.1.3).
func SoleAudience(aud jsontext.Value) (string, bool) {
	var list []string
	if aud.Kind() == '"' {
		list = make([]string, 1)
		if json.Unmarshal(aud, &list[0]) != nil {
			return "", false
		}
	} else if aud.Kind() != '[' || json.Unmarshal(aud, &list) != nil {
		return "", false
	}
	if len(list) != 1 || list[0] == "" { // null decodes to "" too
		return "", false
	}
	return list[0], true
}

// IsRSA reports whether a public key is an RSA key.
func IsRSA(key crypto.PublicKey) bool {
	_, ok := key.(*rsa.PublicKey)
	return ok
}

// IsEd25519 reports whether a public key is an Ed25519 key.
func IsEd25519(key crypto.PublicKey) bool {
	_, ok := key.(ed25519.PublicKey)
	return ok
}

// OnCurve returns a function that reports whether a public key is an ECDSA key on that curve.
func OnCurve(curve elliptic.Curve) func(crypto.PublicKey) bool {
	return func(key crypto.PublicKey) bool {
		k, ok := key.(*ecdsa.PublicKey)
		return ok && k.Curve == curve
	}
}

// MaxVerified is the maximum number of entries in one Verified: some megabytes.
const MaxVerified = 1 << 14

// Verified caches results of verification by the SHA-256 of the input: callers present the same token many times, and its
// signature does not change. The caller must check the time and the keys on each use, because those do change. Verified
// is safe for concurrent use, and its zero value is empty.
type Verified[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
}

// Get returns the cached value, if any.
func (r *Verified[V]) Get(digest [sha256.Size]byte) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.found[digest]
	return v, ok
}

// Put adds a value. It clears the whole cache first if it is full; what is still in use is then verified once more.
func (r *Verified[V]) Put(digest [sha256.Size]byte, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil || len(r.found) >= MaxVerified {
		r.found = map[[sha256.Size]byte]V{}
	}
	r.found[digest] = v
}

// SameKey compares public keys. All types of public keys have an Equal method (see crypto.PublicKey).
func SameKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
