package client

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/brevet-dev/brevet/internal/secret"
)

// DigestOf is what a credential is searched for by, the Credential of a Filter: the SHA-256, in hex, of the claims of a
// JWT, and else of the whole token, password or private key. The credential itself need not be sent anywhere.
func DigestOf(credential secret.Text) string {
	text := credential.Reveal()
	if claims := claimsOf(text); claims != nil {
		text = string(claims)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// claimsOf is the payload of a JWT (RFC 7515) whatever it is signed by, or nothing.
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
