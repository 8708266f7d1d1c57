package client_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
)

func TestDigestOf(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	claims := `{"jti":"x"}`
	for name, tc := range map[string]struct{ credential, hashed string }{
		"a JWT":                  {b64([]byte(`{"alg":"ES256"}`)) + "." + b64([]byte(claims)) + ".c2ln", claims},
		"a JWT without an end":   {b64([]byte(`{}`)) + "." + b64([]byte(claims)) + ".", claims},
		"a Vault token":          {"hvs.CAESIJ", "hvs.CAESIJ"},
		"dots alone":             {"a.b.c", "a.b.c"},
		"three parts, no claims": {b64([]byte(`{}`)) + "." + b64([]byte("no JSON")) + ".x", b64([]byte(`{}`)) + "." + b64([]byte("no JSON")) + ".x"},
		"nothing":                {"", ""},
	} {
		want := sha256.Sum256([]byte(tc.hashed))
		if got := client.DigestOf(secret.New(tc.credential)); got != hex.EncodeToString(want[:]) {
			t.Errorf("%s: got %s, want %x", name, got, want)
		}
	}
}
