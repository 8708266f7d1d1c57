package attest_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
)

func TestJWTRefuses(t *testing.T) {
	for name, bad := range badTokens {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			token := bad.make(t, w)
			id, err := w.JWT(token)
			wantReason(t, id, err, bad.reason)
			for part := range strings.SplitSeq(token, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("got the token's bytes in %q", err)
				}
			}
		})
	}
	for name, text := range badIDs {
		t.Run("sub "+name, func(t *testing.T) {
			w := newWorld(t)
			id, err := w.JWT(with(map[string]any{"sub": text})(t, w))
			wantReason(t, id, err, "spiffe_id_invalid")
		})
	}
}

func TestJWTAccepts(t *testing.T) {
	const a = "spiffe://acme.test/agents/a"
	for name, tc := range map[string]struct {
		make func(testing.TB, *world) string
		left time.Duration
	}{
		"plain":              {with(nil), 4 * time.Minute},
		"audience as a list": {with(map[string]any{"aud": []string{audience}}), 4 * time.Minute},
		"other claims":       {with(map[string]any{"jti": "1", "iss": "x", "nested": map[string]any{"a": 1}}), 4 * time.Minute},
		"no iat":             {with(map[string]any{"iat": nil}), 4 * time.Minute},
		"typ JOSE":           {head(map[string]any{"typ": "JOSE"}), 4 * time.Minute},
		"typ absent":         {head(map[string]any{"typ": nil}), 4 * time.Minute},
		"H9 exp 5 s ago":     {at("exp", -5), -5 * time.Second},
		"H10 5 min 5 s left": {at("exp", 305), 305 * time.Second},
		"H10 an hour in all": {at("iat", -3360), 4 * time.Minute},
		"H11 nbf in 5 s":     {at("nbf", 5), 4 * time.Minute},
		"H11 iat in 5 s":     {at("iat", 5), 4 * time.Minute},
		"ES384":              {underKey("ES384", crypto.SHA384, curve(elliptic.P384())), 4 * time.Minute},
		"ES512":              {underKey("ES512", crypto.SHA512, curve(elliptic.P521())), 4 * time.Minute},
		"RS256":              {underKey("RS256", crypto.SHA256, rsaOf(2048)), 4 * time.Minute},
		"RS512":              {underKey("RS512", crypto.SHA512, rsaOf(2048)), 4 * time.Minute},
		"PS256":              {pssToken, 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id, err := w.JWT(tc.make(t, w))
			if err != nil {
				t.Fatalf("got %v, want an identity", err)
			}
			wantIdentity(t, id, a, attest.KindJWT, w.clock.Now().Add(tc.left))
			if got := id.Thumbprint(); got != "" {
				t.Errorf("got thumbprint %q, want none", got)
			}
		})
	}
}

func pssToken(t testing.TB, w *world) string {
	t.Helper()
	key := rsaKey(t, 2048)
	bundle := w.acme.bundle()
	if err := bundle.AddJWTAuthority("extra", key.Public()); err != nil {
		t.Fatal(err)
	}
	w.bundles.Add(bundle)
	input := b64(marshal(t, map[string]any{"alg": "PS256", "kid": "extra"})) + "." +
		b64(marshal(t, w.acme.claims("/agents/a", w.clock.Now())))
	digest := sha256.Sum256([]byte(input))
	sig, err := rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + b64(sig)
}

// The same token works many times, until its key leaves the bundle. A JWT-SVID does not protect against replay.
func TestJWTIsVerifiedAgain(t *testing.T) {
	w := newWorld(t)
	token := with(nil)(t, w)
	for range 2 {
		if _, err := w.JWT(token); err != nil {
			t.Fatal(err)
		}
	}
	empty := spiffebundle.New(w.acme.td)
	w.bundles.Add(empty)
	id, err := w.JWT(token)
	wantReason(t, id, err, "svid_authority")
	w.bundles.Remove(w.acme.td)
	id, err = w.JWT(token)
	wantReason(t, id, err, "bundle_unavailable")
}

// Only a signed token is ever accepted, and nothing panics.
func FuzzJWT(f *testing.F) {
	w := newWorld(f)
	signed := map[string]bool{}
	for _, make := range []func(testing.TB, *world) string{with(nil), with(map[string]any{"aud": []string{audience}})} {
		token := make(f, w)
		signed[token[:strings.LastIndex(token, ".")]] = true
		f.Add(token)
	}
	for name, bad := range badTokens {
		if !strings.HasPrefix(name, "H15") && bad.reason != "svid_weak_key" {
			f.Add(bad.make(f, w))
		}
	}
	w.bundles.Add(w.acme.bundle()) // without the keys that the rows above added
	f.Fuzz(func(t *testing.T, token string) {
		id, err := w.JWT(token)
		if err != nil {
			if !id.IsZero() || refusal.Reason(err) == "internal" {
				t.Errorf("got %v and %v, want a refusal", id.ID(), err)
			}
			return
		}
		if end := strings.LastIndex(token, "."); end < 0 || !signed[token[:end]] {
			t.Errorf("got %s for a token that was never signed: %q", id.ID(), token)
		}
	})
}

func BenchmarkJWT(b *testing.B) {
	w := newWorld(b)
	token := with(nil)(b, w)
	for b.Loop() {
		if _, err := w.JWT(token); err != nil {
			b.Fatal(err)
		}
	}
}
