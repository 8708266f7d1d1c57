package mint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

// federatedScope is oneScope for the token exchange of another system.
func federatedScope(algorithm string) string {
	return strings.Replace(oneScope, "audience: '"+gateway+"'",
		"audience: sts.amazonaws.com, federation: {subject: 'repo:{repo}:task', algorithm: "+algorithm+"}", 1)
}

// rsaKey creates what brevet bootstrap creates: a signing key, its RS256 key, and a login for exactly the policy.
func (a *admin) rsaKey(t *testing.T, name string) mint.Config {
	t.Helper()
	a.key(t, name, "ecdsa-p256")
	a.write(t, "transit/keys/"+name+"-rs256", map[string]any{"type": "rsa-2048"})
	return dial(t, a, name, mint.Auth{TokenFile: file(t, a.token(t, name, "10m"))})
}

// TestFederatedTokenMatchesTheIntent signs real orders with the real Vault.
func TestFederatedTokenMatchesTheIntent(t *testing.T) {
	m := open(t, realVault(t).rsaKey(t, "federate"))
	jtis := map[string]bool{}
	for _, algorithm := range []string{"RS256", "ES256", "RS256"} {
		result, book, err := issueOf(t, m, time.Now, federatedScope(algorithm))
		if err != nil {
			t.Fatalf("%s: %v", algorithm, err)
		}
		raw := result.Credential.Secret.Reveal()
		if got := independently(t, m, raw); got != string(book.last.Intent.Claims) {
			t.Errorf("%s: got claims %s, want those of the record %s", algorithm, got, book.last.Intent.Claims)
		}
		claims := jwt.MapClaims{}
		parsed, _, err := jwt.NewParser().ParseUnverified(raw, claims)
		if err != nil {
			t.Fatal(err)
		}
		key, err := m.KeyFor(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"alg": algorithm, "kid": key.ID, "typ": "JWT"}, parsed.Header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", algorithm, diff)
		}
		at := float64(book.last.Time.Unix())
		want := jwt.MapClaims{
			"iss": brevetURL, "sub": "repo:acme/api:task", "aud": "sts.amazonaws.com", "jti": book.last.ID, "iat": at, "nbf": at,
			"exp": float64(book.last.Expires.Unix()), "client_id": "spiffe://acme.example/research/agent-7", "scope": "github.issues.read", "task": "t-1",
		}
		if diff := cmp.Diff(want, claims); diff != "" {
			t.Errorf("%s: claims (-want +got):\n%s", algorithm, diff)
		}
		jtis[book.last.ID] = true
	}
	if len(jtis) != 3 {
		t.Errorf("got %d jtis for 3 tokens", len(jtis))
	}
}

// pss makes Vault sign with another padding than RS256 has.
type pss struct{ next http.RoundTripper }

func (p pss) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/sign/") {
		return p.next.RoundTrip(r)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	text = bytes.Replace(text, []byte(`"pkcs1v15"`), []byte(`"pss"`), 1)
	other := r.Clone(r.Context())
	other.Body, other.ContentLength, other.GetBody = io.NopCloser(bytes.NewReader(text)), int64(len(text)), nil
	return p.next.RoundTrip(other)
}

func TestOtherRSASignatureIsNotReleased(t *testing.T) {
	a := realVault(t)
	cfg := a.rsaKey(t, "padding")
	cfg.Auth = mint.Auth{TokenFile: file(t, a.RootToken())} // the broker's own policy refuses PSS
	cfg.Transport = func(next http.RoundTripper) http.RoundTripper { return pss{next} }
	m := open(t, cfg)
	if result, _, err := issueOf(t, m, time.Now, federatedScope("RS256")); !errors.Is(err, broker.ErrMintMismatch) || result.Credential != nil {
		t.Errorf("got %v, %v; want nothing and ErrMintMismatch", result.Credential, err)
	}
}

// counter counts the requests for a path.
type counter struct {
	next  http.RoundTripper
	path  string
	count *atomic.Int32
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, c.path) {
		c.count.Add(1)
	}
	return c.next.RoundTrip(r)
}

// A broker whose catalogue needs no RS256 runs as before on a Vault that an earlier version prepared. The key works as soon as
// brevet bootstrap has created it, without a restart.
func TestRS256KeyIsOptional(t *testing.T) {
	a := realVault(t)
	a.key(t, "plain", "ecdsa-p256")
	for name, policy := range map[string]string{
		"no key":            mint.Policy("transit", "plain", "brevet"),
		"an earlier policy": strings.ReplaceAll(mint.Policy("transit", "plain", "brevet"), "plain-rs256", "plain-none"),
	} {
		t.Run(name, func(t *testing.T) {
			a.write(t, "sys/policies/acl/plain", map[string]any{"policy": policy})
			cfg := dial(t, a, "plain", mint.Auth{TokenFile: file(t, a.token(t, "plain", "10m"))})
			cfg.Refresh = 50 * time.Millisecond
			log := &journal{}
			cfg.Log = log.logger()
			var reads atomic.Int32
			cfg.Transport = func(next http.RoundTripper) http.RoundTripper { return counter{next, "/keys/plain-rs256", &reads} }
			m := open(t, cfg)
			run(t, m)
			signs(t, m)
			if err := m.Ready(t.Context()); err != nil {
				t.Errorf("ready: got %v", err)
			}
			if _, err := m.KeyFor("ES256"); err != nil {
				t.Errorf("ES256: got %v", err)
			}
			if got := len(keysOf(t, m)); got != 1 {
				t.Errorf("got %d keys in the JWKS, want 1", got)
			}
			_, book, err := issueOf(t, m, time.Now, federatedScope("RS256"))
			if !errors.Is(err, broker.ErrVaultRefused) || !strings.Contains(err.Error(), `Vault has no key "plain-rs256" at "transit" that this broker may use: run brevet bootstrap`) {
				t.Errorf("got %v", err)
			}
			if book.last.ID != "" {
				t.Error("the request was recorded as allowed, and no key could sign it")
			}
			until(t, "more reads of the missing key", func() bool { return reads.Load() >= 4 })
			if text := log.String(); strings.Count(text, "logged in") != 1 || strings.Contains(text, "RS256") {
				t.Errorf("the missing key is logged, or causes logins: %s", text)
			}
		})
	}
	// As brevet bootstrap does.
	a.write(t, "sys/policies/acl/plain", map[string]any{"policy": mint.Policy("transit", "plain", "brevet")})
	cfg := dial(t, a, "plain", mint.Auth{TokenFile: file(t, a.token(t, "plain", "10m"))})
	cfg.Refresh = 50 * time.Millisecond
	m := open(t, cfg)
	run(t, m)
	a.write(t, "transit/keys/plain-rs256", map[string]any{"type": "rsa-2048"})
	until(t, "the RS256 key", func() bool { _, err := m.KeyFor("RS256"); return err == nil })
	if _, _, err := issueOf(t, m, time.Now, federatedScope("RS256")); err != nil {
		t.Errorf("with the key: got %v", err)
	}
}

// The key for access tokens signs no RS256 token, and the RS256 key signs no access token.
func TestKeysKeepToTheirAlgorithms(t *testing.T) {
	a := realVault(t)
	a.key(t, "edward", "ed25519")
	m := open(t, dial(t, a, "edward", mint.Auth{TokenFile: file(t, a.token(t, "edward", "10m"))}))
	_, err := m.KeyFor("ES256")
	if !errors.Is(err, broker.ErrVaultRefused) || !strings.Contains(err.Error(), `no key in Vault signs with ES256: the key "edward" signs with EdDSA`) {
		t.Errorf("ES256 of an EdDSA key: got %v", err)
	}
	m = open(t, a.rsaKey(t, "apart"))
	if key, err := m.Key(); err != nil || key.Algorithm != "ES256" {
		t.Errorf("got %v, %v for access tokens, want ES256", key, err)
	}
}

// A key that can leave Vault, or of another type, stops signing at once. What it signed stays verifiable.
func TestUnfitRS256KeyDoesNotSign(t *testing.T) {
	a := realVault(t)
	cfg := a.rsaKey(t, "leaky")
	cfg.Refresh = 50 * time.Millisecond
	m := open(t, cfg)
	run(t, m)
	key, err := m.KeyFor("RS256")
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "transit/keys/leaky-rs256/config", map[string]any{"exportable": true})
	until(t, "the key to be given up", func() bool { _, err := m.KeyFor("RS256"); return errors.Is(err, broker.ErrVaultRefused) })
	if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("an order from just before: got %v, want ErrVaultUnavailable", err)
	}
	if got := len(keysOf(t, m)); got != 2 {
		t.Errorf("got %d keys in the JWKS, want 2", got)
	}
	if err := m.Ready(t.Context()); err != nil {
		t.Errorf("ready for access tokens: got %v", err)
	}
	signs(t, m)
	a.key(t, "other", "ecdsa-p256")
	a.write(t, "transit/keys/other-rs256", map[string]any{"type": "ecdsa-p256"})
	m = open(t, dial(t, a, "other", mint.Auth{TokenFile: file(t, a.token(t, "other", "10m"))}))
	if _, err := m.KeyFor("RS256"); !errors.Is(err, mint.ErrKeyUnfit) || !strings.Contains(err.Error(), "need rsa-2048 or rsa-3072 or rsa-4096") {
		t.Errorf("a key of another type: got %v", err)
	}
}

// TestRS256KeyRotatesByTheSameRules follows one rotation from end to end, with our clock ahead of Vault's.
func TestRS256KeyRotatesByTheSameRules(t *testing.T) {
	a := realVault(t)
	turned := &clock{now: time.Now()}
	cfg := a.rsaKey(t, "spin")
	cfg.Now, cfg.Refresh = turned.Now, 50*time.Millisecond
	m := open(t, cfg)
	run(t, m)
	first, err := m.KeyFor("RS256")
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "transit/keys/spin-rs256/rotate", nil)
	rotated := time.Now()
	until(t, "the new version in the JWKS", func() bool { return len(keysOf(t, m)) == 3 })
	if key, err := m.KeyFor("RS256"); err != nil || key != first {
		t.Errorf("before the overlap: got %v, %v; want the first version", key, err)
	}
	wantKeys(t, m, "before the overlap", "1 signs published", "1 signs published", "2 published")
	signed := func(when string) string {
		result, _, err := issueOf(t, m, turned.Now, federatedScope("RS256"))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		raw := result.Credential.Secret.Reveal()
		independently(t, m, raw)
		return raw
	}
	before := signed("before the overlap")

	turned.Set(rotated.Add(5*time.Minute + 20*time.Second)) // JWKS max age, refresh and slack
	until(t, "the new version to sign", func() bool { key, err := m.KeyFor("RS256"); return err == nil && key.Version == 2 })
	wantKeys(t, m, "during the overlap", "1 signs published", "1 published", "2 signs published")
	independently(t, m, before)
	signed("during the overlap")

	turned.Set(rotated.Add(21 * time.Minute)) // and the longest life of a token
	until(t, "the old version to leave", func() bool { return len(keysOf(t, m)) == 2 })
	until(t, "a key that was read lately", func() bool { _, err := m.KeyFor("RS256"); return err == nil && m.Ready(t.Context()) == nil })
	wantKeys(t, m, "after the overlap", "1 signs published", "1", "2 signs published")
	signed("after the overlap")
}

func TestJWKSHoldsNoPrivateMemberOfTheRSAKey(t *testing.T) {
	m := open(t, realVault(t).rsaKey(t, "public"))
	document, err := m.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(document, &set); err != nil || len(set.Keys) != 2 {
		t.Fatalf("got %s, %v; want two keys", document, err)
	}
	got := set.Keys[1]
	for member, want := range map[string]string{"kty": "RSA", "alg": "RS256", "use": "sig", "e": "AQAB"} {
		if got[member] != want {
			t.Errorf("%s: got %q, want %q", member, got[member], want)
		}
	}
	if len(got) != 6 || len(got["n"]) < 342 || got["kid"] == "" {
		t.Errorf("got members %v, want kty, alg, use, kid, e and an n of 2048 bits", got)
	}
}
