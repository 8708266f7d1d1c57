package client

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/brevet-dev/brevet/internal/secret"
)

// DigestOf returns the value of Filter.Credential that finds a credential: a SHA-256 in hex. It covers the claims of a JWT, and
// otherwise the whole token, password or private key. The credential itself is not sent.
func DigestOf(credential secret.Text) string {
	text := credential.Reveal()
	if claims := claimsOf(text); claims != nil {
		text = string(claims)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// claimsOf returns the payload of a JWT (RFC 7515), whatever its signature, or nil for any other text.
func claimsOf(text string) []byte {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return nil
	}
	for i, part := range parts[:2] {
		data, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || !json.Valid(data) {
			return nil
		}
		if i == 1 {
			return data
		}
	}
	return nil
}
