// Package jws takes signed tokens apart (RFC 7515, compact serialisation), strictly, and checks a signature by a key. It
// exists because two parsers that read one token differently are a way around both: what it lets through has only one
// reading. It must never choose a key, or an algorithm, by what a token says.
package jws

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"
)

// What is wrong with a token. No error quotes it.
var (
	ErrMalformed = errors.New("malformed token")
	ErrTooLarge  = errors.New("the token is too large")
	ErrSignature = errors.New("the token's signature does not verify")
)

// maxUnixTime is the end of the year 9999. It keeps times within what RFC 3339 can print.
const maxUnixTime = 253402300799

// Parts are the header, the payload and the signature of a token.
type Parts [3][]byte

// Split decodes the parts of a token of at most limit bytes. Go's decoder skips line breaks, and its lax mode ignores
// stray bits at the end, so that many texts would be one token: strict mode and the alphabet are both needed.
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

// Verify is nil when the signature of a token that was split is one by the key with that JWS algorithm. That the
// algorithm is one to accept, and fits the key, is for the caller to know.
func Verify(token string, parts Parts, algorithm string, key crypto.PublicKey) error {
	method := jwt.GetSigningMethod(algorithm)
	switch pss, ok := method.(*jwt.SigningMethodRSAPSS); {
	case algorithm == "Ed25519": // RFC 9864's name of what RFC 8037 calls EdDSA with this curve
		method = jwt.SigningMethodEdDSA
	case ok: // the library takes a salt of any length, and RFC 7518, section 3.5, has one of the hash's
		method = &jwt.SigningMethodRSAPSS{
			SigningMethodRSA: pss.SigningMethodRSA, Options: pss.Options, VerifyOptions: &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash},
		}
	}
	if method == nil || method.Verify(token[:strings.LastIndexByte(token, '.')], parts[2], key) != nil {
		return ErrSignature
	}
	return nil
}

// MayVerify tells whether a JWK is one to verify signatures with, by its use and key_ops (RFC 7517, sections 4.2 and 4.3).
func MayVerify(jwk []byte) bool {
	var said struct {
		Use        string   `json:"use"`
		Operations []string `json:"key_ops"`
	}
	return json.Unmarshal(jwk, &said) == nil && (said.Use == "" || said.Use == "sig") &&
		(said.Operations == nil || slices.Contains(said.Operations, "verify"))
}

// Thumbprint is the RFC 7638 thumbprint of a public key, by SHA-256 and in base64url.
func Thumbprint(public crypto.PublicKey) (string, error) {
	sum, err := (&jose.JSONWebKey{Key: public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", errors.New("the key has no thumbprint")
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// CertificateThumbprint is the x5t#S256 of a certificate in DER (RFC 8705, section 3.1).
func CertificateThumbprint(der []byte) string {
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Seconds reads a NumericDate (RFC 7519, section 2). It takes whole seconds only: a fraction, an exponent or a string is
// read differently by different libraries.
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

// SoleAudience returns what an "aud" names, as a string or as an array of one string (RFC 7519, section 4.1.3).
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
	if len(list) != 1 || list[0] == "" { // which null would be, too
		return "", false
	}
	return list[0], true
}

// IsRSA tells whether a public key is one of RSA.
func IsRSA(key crypto.PublicKey) bool {
	_, ok := key.(*rsa.PublicKey)
	return ok
}
