package jws_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"testing"

	"github.com/brevet-dev/brevet/internal/jws"
)

// RFC 7518, section 3.5: the salt of PS256 is as long as its hash. Wycheproof has signatures with other salts, which must not verify.
func TestPS256SaltIsAsLongAsTheHash(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signed := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"PS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{}`))
	digest := sha256.Sum256([]byte(signed))
	for salt, want := range map[int]error{32: nil, rsa.PSSSaltLengthEqualsHash: nil, 20: jws.ErrSignature, 64: jws.ErrSignature, rsa.PSSSaltLengthAuto: jws.ErrSignature} {
		signature, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: salt})
		if err != nil {
			t.Fatal(err)
		}
		token := signed + "." + base64.RawURLEncoding.EncodeToString(signature)
		parts, err := jws.Split(token, 1<<12)
		if err != nil {
			t.Fatal(err)
		}
		if err := jws.Verify(token, parts, "PS256", key.Public()); !errors.Is(err, want) {
			t.Errorf("a salt of %d: got %v, want %v", salt, err, want)
		}
	}
}

func TestJWKUseIsEnforced(t *testing.T) {
	t.Parallel()
	for jwk, want := range map[string]bool{
		`{}`: true, `{"use":"sig"}`: true, `{"use":"enc"}`: false, `{"key_ops":["verify"]}`: true, `{"key_ops":["sign","verify"]}`: true,
		`{"key_ops":["sign"]}`: false, `{"key_ops":["encrypt"]}`: false, `{"key_ops":[]}`: false, `{"use":"sig","key_ops":["deriveKey"]}`: false,
		`{"key_ops":"verify"}`: false, `x`: false,
	} {
		if got := jws.MayVerify([]byte(jwk)); got != want {
			t.Errorf("%s: got %t, want %t", jwk, got, want)
		}
	}
}
