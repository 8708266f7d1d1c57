package mint_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
)

func decode(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestInconsistentIntentIsNotSigned(t *testing.T) {
	claims := []byte(`{"aud":"https://gateway.acme.example","exp":1,"text":"<&>"}`)
	key := broker.Key{ID: "kid-1", Algorithm: "ES256", Version: 3}
	good := broker.Intent{
		Kind: "jwt", KeyID: "kid-1", Algorithm: "ES256", Claims: claims, ClaimsDigest: sha256.Sum256(claims),
	}
	for _, tc := range []struct {
		name   string
		change func(*broker.Intent)
		ok     bool
	}{
		{"as ordered", func(*broker.Intent) {}, true},
		{"another kind", func(i *broker.Intent) { i.Kind = "lease" }, false},
		{"no kind", func(i *broker.Intent) { i.Kind = "" }, false},
		{"another kid", func(i *broker.Intent) { i.KeyID = "kid-2" }, false},
		{"another algorithm", func(i *broker.Intent) { i.Algorithm = "EdDSA" }, false},
		{"claims changed by one byte", func(i *broker.Intent) { i.Claims = []byte(strings.Replace(string(claims), "1", "2", 1)) }, false},
		{"claims gone", func(i *broker.Intent) { i.Claims = nil }, false},
		{"a type that no token has", func(i *broker.Intent) { i.Type = "at+jwt" }, false},
		{"digest gone", func(i *broker.Intent) { i.ClaimsDigest = [32]byte{} }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			intent := good
			tc.change(&intent)
			input, err := mint.SigningInput(intent, key)
			if !tc.ok {
				if !errors.Is(err, broker.ErrMintMismatch) || input != "" {
					t.Fatalf("got %q, %v; want nothing and ErrMintMismatch", input, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			head, body, _ := strings.Cut(input, ".")
			if got, want := string(decode(t, head)), `{"alg":"ES256","kid":"kid-1","typ":"at+jwt"}`; got != want {
				t.Errorf("header: got %s, want %s", got, want)
			}
			if got := string(decode(t, body)); got != string(claims) {
				t.Errorf("claims: got %s, want %s", got, claims)
			}
		})
	}
}

func TestClipRedactsSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"permission denied":                          "permission denied",
		"1 error occurred:\n\t* permission denied\n": "1 error occurred: * permission denied",
		"bad token hvs.CAESIJ1234567890abcdefghij":   "bad token [...]",
		"s.0123456789abcdefghijklmn":                 "[...]",
		"red \x1b[31m text\u202e":                    "red [31m text",
		"":                                           "",
		strings.Repeat("word ", 100):                 strings.TrimSpace(strings.Repeat("word ", 32)) + " ...",
	} {
		if got := mint.Clip(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
