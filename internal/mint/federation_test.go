package mint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// tokenKeys creates what brevet bootstrap creates: a signing key for each algorithm, and a login for exactly the policy.
func (a *admin) tokenKeys(t *testing.T, name string) mint.Config {
	t.Helper()
	a.key(t, name, "ecdsa-p256")
	a.write(t, "transit/keys/"+name+"-eddsa", map[string]any{"type": "ed25519"})
	a.write(t, "transit/keys/"+name+"-rs256", map[string]any{"type": "rsa-2048"})
	return dial(t, a, name, mint.Auth{TokenFile: file(t, a.token(t, name, "10m"))})
}

// TestFederatedTokenMatchesTheIntent signs real orders with the real Vault.
func TestFederatedTokenMatchesTheIntent(t *testing.T) {
	m := open(t, realVault(t).tokenKeys(t, "federate"))
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
		key, err := m.Key(algorithm)
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
	cfg := a.tokenKeys(t, "padding")
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

// optional are the keys that a broker may lack, by algorithm: the end of their names, their types, and a scope that needs them.
var optional = map[string]struct{ suffix, kind, types, scope string }{
	"EdDSA": {"-eddsa", "ed25519", "ed25519", strings.Replace(oneScope, "kind: jwt", "kind: jwt, algorithm: EdDSA", 1)},
	"RS256": {"-rs256", "rsa-2048", "rsa-2048 or rsa-3072 or rsa-4096", federatedScope("RS256")},
}

// A broker whose catalogue needs neither EdDSA nor RS256 runs as before on a Vault that an earlier version prepared. A key works as
// soon as brevet bootstrap has created it, without a restart.
func TestOtherKeysAreOptional(t *testing.T) {
	a := realVault(t)
	for algorithm, key := range optional {
		plain := "plain" + key.suffix
		a.key(t, plain, "ecdsa-p256")
		for name, policy := range map[string]string{
			"no key":            mint.Policy("transit", plain, "brevet"),
			"an earlier policy": strings.ReplaceAll(mint.Policy("transit", plain, "brevet"), plain+key.suffix, "none"),
		} {
			t.Run(algorithm+", "+name, func(t *testing.T) {
				a.write(t, "sys/policies/acl/"+plain, map[string]any{"policy": policy})
				cfg := dial(t, a, plain, mint.Auth{TokenFile: file(t, a.token(t, plain, "10m"))})
				cfg.Refresh = 50 * time.Millisecond
				log := &journal{}
				cfg.Log = log.logger()
				var reads atomic.Int32
				cfg.Transport = func(next http.RoundTripper) http.RoundTripper {
					return counter{next, "/keys/" + plain + key.suffix, &reads}
				}
				m := open(t, cfg)
				run(t, m)
				signs(t, m)
				if err := m.Ready(t.Context()); err != nil {
					t.Errorf("ready: got %v", err)
				}
				if _, err := m.Key("ES256"); err != nil {
					t.Errorf("ES256: got %v", err)
				}
				if got := len(keysOf(t, m)); got != 1 {
					t.Errorf("got %d keys in the JWKS, want 1", got)
				}
				_, book, err := issueOf(t, m, time.Now, key.scope)
				if want := fmt.Sprintf("Vault has no key %q at \"transit\" that this broker may use: run brevet bootstrap", plain+key.suffix); !errors.Is(err, broker.ErrVaultRefused) || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
				if book.last.ID != "" {
					t.Error("the request was recorded as allowed, and no key could sign it")
				}
				until(t, "more reads of the missing key", func() bool { return reads.Load() >= 4 })
				if text := log.String(); strings.Count(text, "logged in") != 1 || strings.Contains(text, algorithm) {
					t.Errorf("the missing key is logged, or causes logins: %s", text)
				}
			})
		}
		// As brevet bootstrap does.
		a.write(t, "sys/policies/acl/"+plain, map[string]any{"policy": mint.Policy("transit", plain, "brevet")})
		cfg := dial(t, a, plain, mint.Auth{TokenFile: file(t, a.token(t, plain, "10m"))})
		cfg.Refresh = 50 * time.Millisecond
		m := open(t, cfg)
		run(t, m)
		a.write(t, "transit/keys/"+plain+key.suffix, map[string]any{"type": key.kind})
		until(t, "the key for "+algorithm, func() bool { _, err := m.Key(algorithm); return err == nil })
		if _, _, err := issueOf(t, m, time.Now, key.scope); err != nil {
			t.Errorf("%s, with the key: got %v", algorithm, err)
		}
	}
}

// Each algorithm has its own key. No other algorithm has one.
func TestKeysKeepToTheirAlgorithms(t *testing.T) {
	m := open(t, realVault(t).tokenKeys(t, "apart"))
	ids := map[string]bool{}
	for _, algorithm := range []string{"ES256", "EdDSA", "RS256"} {
		key, err := m.Key(algorithm)
		if err != nil || key.Algorithm != algorithm {
			t.Errorf("got %v, %v for %s", key, err, algorithm)
		}
		ids[key.ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("got %d keys for 3 algorithms", len(ids))
	}
	for _, algorithm := range []string{"", "none", "HS256", "ES384", "PS256", "Ed25519", "eddsa", "es256"} {
		if key, err := m.Key(algorithm); !errors.Is(err, broker.ErrVaultRefused) || key != (broker.Key{}) {
			t.Errorf("%q: got %v, %v; want ErrVaultRefused", algorithm, key, err)
		}
	}
}

// A key that can leave Vault, or of another type, stops signing at once. What it signed stays verifiable.
func TestUnfitOptionalKeyDoesNotSign(t *testing.T) {
	a := realVault(t)
	for algorithm, of := range optional {
		t.Run(algorithm, func(t *testing.T) {
			leaky := "leaky" + of.suffix
			cfg := a.tokenKeys(t, leaky)
			cfg.Refresh = 50 * time.Millisecond
			m := open(t, cfg)
			run(t, m)
			key, err := m.Key(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			a.write(t, "transit/keys/"+leaky+of.suffix+"/config", map[string]any{"exportable": true})
			until(t, "the key to be given up", func() bool { _, err := m.Key(algorithm); return errors.Is(err, broker.ErrVaultRefused) })
			if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
				t.Errorf("an order from just before: got %v, want ErrVaultUnavailable", err)
			}
			if got := len(keysOf(t, m)); got != 3 {
				t.Errorf("got %d keys in the JWKS, want 3", got)
			}
			if err := m.Ready(t.Context()); err != nil {
				t.Errorf("ready for ES256: got %v", err)
			}
			signs(t, m)
			other := "other" + of.suffix
			a.key(t, other, "ecdsa-p256")
			a.write(t, "transit/keys/"+other+of.suffix, map[string]any{"type": "ecdsa-p256"})
			m = open(t, dial(t, a, other, mint.Auth{TokenFile: file(t, a.token(t, other, "10m"))}))
			if _, err := m.Key(algorithm); !errors.Is(err, mint.ErrKeyUnfit) || !strings.Contains(err.Error(), "need "+of.types) {
				t.Errorf("a key of another type: got %v", err)
			}
		})
	}
}

// TestOptionalKeysRotateByTheSameRules follows one rotation from end to end, with our clock ahead of Vault's.
func TestOptionalKeysRotateByTheSameRules(t *testing.T) {
	a := realVault(t)
	for algorithm, of := range optional {
		t.Run(algorithm, func(t *testing.T) {
			turned := &clock{now: time.Now()}
			cfg := a.tokenKeys(t, "spin"+of.suffix)
			cfg.Now, cfg.Refresh = turned.Now, 50*time.Millisecond
			m := open(t, cfg)
			run(t, m)
			first, err := m.Key(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			a.write(t, "transit/keys/spin"+of.suffix+of.suffix+"/rotate", nil)
			rotated := time.Now()
			until(t, "the new version in the JWKS", func() bool { return len(keysOf(t, m)) == 4 })
			if key, err := m.Key(algorithm); err != nil || key != first {
				t.Errorf("before the overlap: got %v, %v; want the first version", key, err)
			}
			wantKeys(t, m, "before the overlap", turning(algorithm, "1 signs published", "2 published")...)
			signed := func(when string) string {
				result, _, err := issueOf(t, m, turned.Now, of.scope)
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				raw := result.Credential.Secret.Reveal()
				independently(t, m, raw)
				return raw
			}
			before := signed("before the overlap")
			allRead := func() bool { // since the clock was set
				for _, name := range []string{"ES256", "EdDSA", "RS256"} {
					if _, err := m.Key(name); err != nil {
						return false
					}
				}
				return m.Ready(t.Context()) == nil
			}

			turned.Set(rotated.Add(5*time.Minute + 20*time.Second)) // JWKS max age, refresh and slack
			until(t, "the new version to sign", func() bool { key, err := m.Key(algorithm); return err == nil && key.Version == 2 && allRead() })
			wantKeys(t, m, "during the overlap", turning(algorithm, "1 published", "2 signs published")...)
			independently(t, m, before)
			signed("during the overlap")

			turned.Set(rotated.Add(21 * time.Minute)) // and the longest life of a token
			until(t, "the old version to leave", func() bool { return len(keysOf(t, m)) == 3 })
			until(t, "keys that were read lately", allRead)
			wantKeys(t, m, "after the overlap", turning(algorithm, "1", "2 signs published")...)
			signed("after the overlap")
		})
	}
}

// turning lists the versions of the keys for ES256, EdDSA and RS256, of which one has been rotated.
func turning(algorithm string, versions ...string) (all []string) {
	for _, name := range []string{"ES256", "EdDSA", "RS256"} {
		if name == algorithm {
			all = append(all, versions...)
		} else {
			all = append(all, "1 signs published")
		}
	}
	return all
}

func TestJWKSHoldsNoPrivateMemberOfTheRSAKey(t *testing.T) {
	m := open(t, realVault(t).tokenKeys(t, "public"))
	document, err := m.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(document, &set); err != nil || len(set.Keys) != 3 {
		t.Fatalf("got %s, %v; want three keys", document, err)
	}
	got := set.Keys[2]
	for member, want := range map[string]string{"kty": "RSA", "alg": "RS256", "use": "sig", "e": "AQAB"} {
		if got[member] != want {
			t.Errorf("%s: got %q, want %q", member, got[member], want)
		}
	}
	if len(got) != 6 || len(got["n"]) < 342 || got["kid"] == "" {
		t.Errorf("got members %v, want kty, alg, use, kid, e and an n of 2048 bits", got)
	}
}
