package mint_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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

// The clock may differ by 5 seconds, and claims that any parser could read in another way are refused.
func TestClaimsMustBeThoseOfTheIntent(t *testing.T) {
	const aud = "https://gateway.acme.example"
	now := time.Unix(1_800_000_000, 0)
	in := func(d time.Duration) int64 { return now.Add(d).Unix() }
	for _, tc := range []struct {
		name, claims string
		late         time.Duration // how far the clock is ahead
		want         error
	}{
		{"as ordered", fmt.Sprintf(`{"aud":%q,"exp":%d,"iat":%d,"nbf":%d,"sub":"x"}`, aud, in(time.Minute), in(0), in(0)), 0, nil},
		{"without iat", fmt.Sprintf(`{"aud":%q,"exp":%d}`, aud, in(time.Minute)), 0, nil},
		{"another audience", fmt.Sprintf(`{"aud":"https://other.example","exp":%d}`, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"no audience", fmt.Sprintf(`{"exp":%d}`, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"a list of audiences", fmt.Sprintf(`{"aud":[%q],"exp":%d}`, aud, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"two audiences", fmt.Sprintf(`{"aud":%q,"aud":%q,"exp":%d}`, aud, aud, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"another case", fmt.Sprintf(`{"AUD":%q,"exp":%d}`, aud, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"a later expiry", fmt.Sprintf(`{"aud":%q,"exp":%d}`, aud, in(time.Minute+time.Second)), 0, broker.ErrMintMismatch},
		{"no expiry", fmt.Sprintf(`{"aud":%q}`, aud), 0, broker.ErrMintMismatch},
		{"an expiry in text", fmt.Sprintf(`{"aud":%q,"exp":"%d"}`, aud, in(time.Minute)), 0, broker.ErrMintMismatch},
		{"issued in 5 s", fmt.Sprintf(`{"aud":%q,"exp":%d,"iat":%d}`, aud, in(time.Minute), in(5*time.Second)), 0, nil},
		{"issued in 6 s", fmt.Sprintf(`{"aud":%q,"exp":%d,"iat":%d}`, aud, in(time.Minute), in(6*time.Second)), 0, broker.ErrMintMismatch},
		{"valid in 6 s", fmt.Sprintf(`{"aud":%q,"exp":%d,"nbf":%d}`, aud, in(time.Minute), in(6*time.Second)), 0, broker.ErrMintMismatch},
		{"expired 4 s ago", fmt.Sprintf(`{"aud":%q,"exp":%d}`, aud, in(time.Minute)), 64 * time.Second, nil},
		{"expired 5 s ago", fmt.Sprintf(`{"aud":%q,"exp":%d}`, aud, in(time.Minute)), 65 * time.Second, broker.ErrVaultUnavailable},
		{"not JSON", `{"aud"`, 0, broker.ErrMintMismatch},
		{"nothing", ``, 0, broker.ErrMintMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			intent := broker.Intent{Audience: aud, Expires: now.Add(time.Minute), Claims: []byte(tc.claims)}
			if err := mint.CheckClaims(intent, now.Add(tc.late)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if err := mint.CheckClaims(broker.Intent{Expires: now, Claims: fmt.Appendf(nil, `{"exp":%d}`, now.Unix())}, now); !errors.Is(err, broker.ErrMintMismatch) {
		t.Errorf("an intent without an audience: got %v, want ErrMintMismatch", err)
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
