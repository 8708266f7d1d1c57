package mint_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/vault/api"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// dial returns a configuration for the real Vault.
func dial(t *testing.T, a *admin, key string, auth mint.Auth) mint.Config {
	t.Helper()
	cfg := knock(t, a.Addr())
	cfg.SigningKey, cfg.Auth, cfg.Now = key, auth, time.Now
	return cfg
}

// TestSignWithVault checks each algorithm's signature with a library that had no part in making it.
func TestSignWithVault(t *testing.T) {
	a := realVault(t)
	a.tokenKeys(t, "sign")
	auth, secret := a.role(t, "sign", nil)
	for _, algorithm := range []string{"ES256", "EdDSA", "RS256"} {
		t.Run(algorithm, func(t *testing.T) {
			log := &journal{}
			cfg := dial(t, a, "sign", auth)
			cfg.Log = log.logger()
			m := open(t, cfg)
			if err := m.Ready(t.Context()); err != nil {
				t.Errorf("ready: got %v", err)
			}
			key, err := m.Key(algorithm)
			if err != nil || key.Algorithm != algorithm || key.Version < 1 {
				t.Fatalf("got key %v, %v; want one of %s", key, err, algorithm)
			}
			head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"` + algorithm + `","kid":"` + key.ID + `"}`))
			asked := head + "." + base64.RawURLEncoding.EncodeToString([]byte("payload"))
			signature, err := m.Sign(t.Context(), key, asked)
			if err != nil {
				t.Fatal(err)
			}
			if got := independently(t, m, asked+"."+signature); got != "payload" {
				t.Errorf("got payload %q", got)
			}
			if strings.Contains(log.String(), "hvs.") || strings.Contains(log.String(), secret) {
				t.Errorf("the log holds a secret (I9): %s", log)
			}
		})
	}
}

// independently verifies a JWS with go-jose and the JWKS alone.
func independently(t *testing.T, m *mint.Minter, token string) string {
	t.Helper()
	parsed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256, jose.EdDSA, jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := parsed.Verify(&jose.JSONWebKeySet{Keys: keysOf(t, m)})
	if err != nil {
		t.Fatal(err)
	}
	return string(payload)
}

// TestVaultPolicyAllowsNothingElse tries Vault's API with a token that holds exactly Policy (T4).
func TestVaultPolicyAllowsNothingElse(t *testing.T) {
	a := realVault(t)
	a.key(t, "walk", "ecdsa-p256")
	a.key(t, "walk2", "ecdsa-p256")
	a.write(t, "auth/token/roles/brevet", map[string]any{"orphan": true, "allowed_policies_glob": "brevet-scope.*", "token_no_default_policy": true})
	a.write(t, "auth/token/roles/walkie", map[string]any{"orphan": true})
	token := a.token(t, "walk", "10m")
	child, err := a.root.Auth().Token().CreateOrphanWithContext(t.Context(), &api.TokenCreateRequest{TTL: "5m"})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]any{"accessor": child.Auth.Accessor}
	order := func(name string, value any) map[string]any {
		out := map[string]any{
			"policies": []string{"brevet-scope.walk.00000000"}, "no_default_policy": true, "display_name": "x",
			"meta": map[string]string{"issuance": "x"}, "ttl": "30s", "explicit_max_ttl": "60s", "renewable": true, "num_uses": 0,
		}
		if value == nil {
			delete(out, name)
		} else {
			out[name] = value
		}
		return out
	}
	limited := func(name string, value any) map[string]any {
		out := map[string]any{
			"num_uses": "1000", "ttl": "600s", "explicit_max_ttl": "600s", "renewable": false, "no_default_policy": true, "display_name": "brevet-active",
		}
		if out[name] = value; value == nil {
			delete(out, name)
		}
		return out
	}
	a.write(t, "transit/keys/walk-log", map[string]any{"type": "ed25519"})
	a.write(t, "transit/keys/walk-eddsa", map[string]any{"type": "ed25519"})
	a.write(t, "transit/keys/walk-rs256", map[string]any{"type": "rsa-2048"})
	text := base64.StdEncoding.EncodeToString([]byte("text"))
	batch := []any{map[string]any{"input": text}}
	digests := []any{map[string]any{"input": base64.StdEncoding.EncodeToString(make([]byte, 32))}}
	form := func(fixed map[string]any) func(name string, value any) map[string]any {
		return func(name string, value any) map[string]any {
			out := maps.Clone(fixed)
			out[name] = value
			return out
		}
	}
	with := form(map[string]any{"batch_input": digests, "key_version": 1, "marshaling_algorithm": "jws", "prehashed": true})
	withText := form(map[string]any{"batch_input": batch, "key_version": 1, "marshaling_algorithm": "jws", "prehashed": false})
	withRS256 := form(map[string]any{
		"batch_input": digests, "key_version": 1, "marshaling_algorithm": "jws", "prehashed": true,
		"signature_algorithm": "pkcs1v15", "hash_algorithm": "sha2-256",
	})
	sign, signText := with("key_version", 1), withText("key_version", 1)
	for _, tc := range []struct {
		method, path string
		body         map[string]any
		allowed      bool
	}{
		{"PUT", "transit/sign/walk-rs256", withRS256("key_version", 1), true},
		{"GET", "transit/keys/walk-rs256", nil, true},
		{"PUT", "transit/sign/walk-rs256", withRS256("signature_algorithm", "pss"), false},
		{"PUT", "transit/sign/walk-rs256", withRS256("hash_algorithm", "sha1"), false},
		{"PUT", "transit/sign/walk-rs256", withRS256("hash_algorithm", "none"), false},
		{"PUT", "transit/sign/walk-rs256", withRS256("prehashed", false), false},
		{"PUT", "transit/sign/walk-rs256", withRS256("salt_length", "auto"), false},
		{"PUT", "transit/sign/walk-rs256/sha2-512", withRS256("key_version", 1), false},
		{"PUT", "transit/decrypt/walk-rs256", map[string]any{"ciphertext": "vault:v1:AAAA"}, false},
		{"PUT", "transit/encrypt/walk-rs256", map[string]any{"plaintext": text}, false},
		{"PUT", "transit/keys/walk-rs256/rotate", nil, false},
		{"PUT", "transit/keys/walk-rs256/config", map[string]any{"exportable": true}, false},
		{"GET", "transit/export/signing-key/walk-rs256", nil, false},
		{"PUT", "transit/sign/walk", sign, true},
		{"GET", "transit/keys/walk", nil, true},
		{"PUT", "transit/sign/walk", signText, false},
		{"PUT", "transit/sign/walk-eddsa", signText, true},
		{"GET", "transit/keys/walk-eddsa", nil, true},
		{"PUT", "transit/sign/walk-eddsa", sign, false},
		{"PUT", "transit/sign/walk-eddsa", withText("input", text), false},
		{"PUT", "transit/sign/walk-eddsa", withText("marshaling_algorithm", "asn1"), false},
		{"PUT", "transit/sign/walk-eddsa", withText("hash_algorithm", "none"), false},
		{"PUT", "transit/sign/walk-eddsa", withText("context", text), false},
		{"PUT", "transit/sign/walk-eddsa/sha2-512", signText, false},
		{"PUT", "transit/sign/walk-eddsa2", signText, false},
		{"PUT", "transit/keys/walk-eddsa", map[string]any{"type": "ed25519"}, false},
		{"PUT", "transit/keys/walk-eddsa/rotate", nil, false},
		{"PUT", "transit/keys/walk-eddsa/config", map[string]any{"exportable": true}, false},
		{"GET", "transit/export/signing-key/walk-eddsa", nil, false},
		{"PUT", "transit/sign/walk-log", signText, true},
		{"GET", "transit/keys/walk-log", nil, true},
		{"GET", "auth/token/lookup-self", nil, true},
		{"PUT", "auth/token/renew-self", map[string]any{"increment": 0}, true},

		{"PUT", "auth/token/create/brevet", order("ttl", "30s"), true},
		{"PUT", "auth/token/create", limited("ttl", "600s"), true},
		{"PUT", "auth/token/create", limited("policies", []string{"root"}), false},
		{"PUT", "auth/token/create", limited("num_uses", "0"), false},
		{"PUT", "auth/token/create", limited("num_uses", nil), false},
		{"PUT", "auth/token/create", limited("explicit_max_ttl", "24h"), false},
		{"PUT", "auth/token/create", limited("explicit_max_ttl", nil), false},
		{"PUT", "auth/token/create", limited("no_default_policy", nil), false},
		{"PUT", "auth/token/create", limited("renewable", true), false},
		{"PUT", "auth/token/create", limited("no_parent", true), false},
		{"PUT", "auth/token/create", limited("period", "24h"), false},
		{"PUT", "auth/token/create", limited("id", "hvs.mine"), false},
		{"PUT", "auth/token/create", limited("type", "batch"), false},
		{"PUT", "auth/token/renew-accessor", map[string]any{"accessor": child.Auth.Accessor, "increment": 60}, true},
		{"PUT", "auth/token/lookup-accessor", known, true},
		{"PUT", "auth/token/revoke-accessor", known, true},
		{"PUT", "sys/leases/lookup", map[string]any{"lease_id": "x"}, true},
		{"PUT", "sys/leases/renew", map[string]any{"lease_id": "x", "increment": 1}, true},
		{"PUT", "sys/leases/revoke", map[string]any{"lease_id": "x", "sync": true}, true},

		{"PUT", "brevet-github-tokens/x", map[string]any{"token": "x"}, true},
		{"GET", "brevet-github-tokens/x", nil, true},
		{"DELETE", "brevet-github-tokens/x", nil, true},
		{"LIST", "brevet-github-tokens", nil, false},
		{"GET", "brevet-github-tokens/x/y", nil, false},
		{"PUT", "brevet-github/sign/acme", map[string]any{"input": text}, false},
		{"PUT", "brevet-github/sign/acme/sha2-256", map[string]any{"input": text}, false},
		{"GET", "brevet-github/keys/acme", nil, false},
		{"PUT", "brevet-github/keys/acme/rotate", nil, false},

		{"PUT", "auth/token/create/brevet", order("period", "24h"), false},
		{"PUT", "auth/token/create/brevet", order("no_default_policy", false), false},
		{"PUT", "auth/token/create/brevet", order("id", "hvs.mine"), false},
		{"PUT", "auth/token/create/brevet", order("type", "batch"), false},
		{"PUT", "auth/token/create/brevet", order("entity_alias", "x"), false},
		{"PUT", "auth/token/create/brevet", order("explicit_max_ttl", nil), false},
		{"PUT", "auth/token/create/walkie", order("ttl", "30s"), false},
		{"PUT", "auth/token/create/brevet/more", order("ttl", "30s"), false},
		{"PUT", "auth/token/roles/brevet", map[string]any{"orphan": true}, false},
		{"GET", "auth/token/roles/brevet", nil, false},
		{"LIST", "sys/leases/lookup/database", nil, false},
		{"PUT", "sys/leases/revoke-prefix/database", nil, false},
		{"PUT", "sys/leases/revoke-force/database", nil, false},
		{"PUT", "sys/leases/tidy", nil, false},
		{"GET", "database/creds/reporting", nil, false},
		{"GET", "secret/data/agents/researcher", nil, false},
		{"PUT", "transit/sign/walk", with("input", text), false},
		{"PUT", "transit/sign/walk", with("marshaling_algorithm", "asn1"), false},
		{"PUT", "transit/sign/walk", with("hash_algorithm", "sha1"), false},
		{"PUT", "transit/sign/walk/sha2-512", sign, false},
		{"PUT", "transit/sign/walk-log", withText("input", text), false},
		{"PUT", "transit/sign/walk-log2", signText, false},
		{"PUT", "transit/keys/walk-log/rotate", nil, false},
		{"PUT", "transit/keys/walk-log/config", map[string]any{"exportable": true}, false},
		{"PUT", "transit/sign/walk2", sign, false},
		{"PUT", "transit/sign/walkie", sign, false},
		{"PUT", "transit/verify/walk", map[string]any{"input": text, "signature": "vault:v1:AAAA"}, false},
		{"PUT", "transit/encrypt/walk", map[string]any{"plaintext": text}, false},
		{"PUT", "transit/hmac/walk", map[string]any{"input": text}, false},
		{"PUT", "transit/keys/walk", map[string]any{"type": "ecdsa-p256"}, false},
		{"PUT", "transit/keys/fresh", map[string]any{"type": "ecdsa-p256"}, false},
		{"DELETE", "transit/keys/walk", nil, false},
		{"PUT", "transit/keys/walk/rotate", nil, false},
		{"PUT", "transit/keys/walk/config", map[string]any{"exportable": true}, false},
		{"PUT", "transit/keys/walk/trim", map[string]any{"min_available_version": 1}, false},
		{"GET", "transit/keys/walk2", nil, false},
		{"LIST", "transit/keys", nil, false},
		{"GET", "transit/export/signing-key/walk", nil, false},
		{"GET", "transit/export/public-key/walk", nil, false},
		{"GET", "transit/backup/walk", nil, false},
		{"PUT", "transit/restore/copy", map[string]any{"backup": text}, false},
		{"PUT", "sys/seal", nil, false},
		{"GET", "sys/mounts", nil, false},
		{"PUT", "sys/mounts/more", map[string]any{"type": "kv"}, false},
		{"DELETE", "sys/mounts/transit", nil, false},
		{"GET", "sys/auth", nil, false},
		{"PUT", "sys/auth/more", map[string]any{"type": "approle"}, false},
		{"GET", "sys/policies/acl/walk", nil, false},
		{"PUT", "sys/policies/acl/walk", map[string]any{"policy": ""}, false},
		{"LIST", "sys/policies/acl", nil, false},
		{"GET", "sys/audit", nil, false},
		{"PUT", "sys/audit/more", map[string]any{"type": "file"}, false},
		{"PUT", "sys/rotate", nil, false},
		{"GET", "sys/config/state/sanitized", nil, false},
		{"PUT", "sys/capabilities-self", map[string]any{"paths": []string{"sys/seal"}}, true},
		{"PUT", "sys/capabilities-accessor", map[string]any{"accessor": child.Auth.Accessor, "paths": []string{"sys/seal"}}, false},
		{"PUT", "sys/wrapping/wrap", map[string]any{"a": "b"}, false},
		{"PUT", "auth/token/create", nil, false},
		{"PUT", "auth/token/create-orphan", nil, false},
		{"PUT", "auth/token/lookup", map[string]any{"token": a.RootToken()}, false},
		{"PUT", "auth/token/renew", map[string]any{"token": a.RootToken()}, false},
		{"PUT", "auth/token/revoke", map[string]any{"token": "x"}, false},
		{"PUT", "auth/token/revoke-self", nil, false},
		{"LIST", "auth/token/accessors", nil, false},
		{"LIST", "auth/approle/role", nil, false},
		{"PUT", "auth/approle/role/more", nil, false},
		{"GET", "auth/jwt/config", nil, false},
		{"GET", "identity/entity/id", nil, false},
		{"PUT", "cubbyhole/mine", map[string]any{"a": "b"}, false},
	} {
		status := statusOf(t, a, token, tc.method, tc.path, tc.body)
		// An allowed call may still find nothing.
		if tc.allowed && !slices.Contains([]int{http.StatusOK, http.StatusNoContent, http.StatusBadRequest}, status) {
			t.Errorf("%s %s: got %d, want it to be allowed", tc.method, tc.path, status)
		}
		if !tc.allowed && status != http.StatusForbidden {
			t.Errorf("%s %s %v: got %d, want 403", tc.method, tc.path, tc.body, status)
		}
	}
	if got := strings.Count(mint.Policy("transit", "walk", "brevet"), "path \""); got != 20 {
		t.Errorf("the policy has %d paths: this walk knows of 20", got)
	}
}

func statusOf(t *testing.T, a *admin, token, method, path string, body map[string]any) int {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, a.Addr()+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Vault-Token", token)
	resp, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestLoginWithJWTSVID logs in with the broker's own SPIFFE identity.
func TestLoginWithJWTSVID(t *testing.T) {
	a := realVault(t)
	a.key(t, "jwt", "ecdsa-p256")
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString("acme.example")})
	if err != nil {
		t.Fatal(err)
	}
	_, signer := issuer.JWTKey()
	der, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "auth/jwt/config", map[string]any{
		"jwt_validation_pubkeys": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
	})
	a.write(t, "auth/jwt/role/brevet", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": "vault", "bound_subject": "spiffe://acme.example/brevet",
		"token_policies": "jwt", "token_no_default_policy": true, "token_ttl": "20m",
	})
	for path, want := range map[string]error{"/brevet": nil, "/someone-else": broker.ErrVaultUnavailable} {
		t.Run(path, func(t *testing.T) {
			var svid string
			m, err := mint.Open(t.Context(), dial(t, a, "jwt", mint.Auth{JWT: &mint.JWT{
				Role: "brevet",
				Token: func(context.Context) (string, error) {
					svid, err = issuer.JWTSVID(spiffeid.RequireFromString("spiffe://acme.example"+path), "vault")
					return svid, err
				},
			}}))
			if !errors.Is(err, want) {
				t.Fatalf("got %v, want %v", err, want)
			}
			if want != nil {
				if strings.Contains(err.Error(), svid) {
					t.Error("the error holds the JWT-SVID (I9)")
				}
				return
			}
			signs(t, m)
		})
	}
}

// signs checks that the minter signs with its current key.
func signs(t *testing.T, m *mint.Minter) {
	t.Helper()
	if err := trySign(t, m); err != nil {
		t.Errorf("signing: got %v", err)
	}
}

func trySign(t *testing.T, m *mint.Minter) error {
	t.Helper()
	key, err := m.Key("ES256")
	if err != nil {
		return err
	}
	_, err = m.Sign(t.Context(), key, input)
	return err
}

// TestLoginOutlivesItsTokens gives the broker tokens that live for two seconds, or three with renewals.
func TestLoginOutlivesItsTokens(t *testing.T) {
	a := realVault(t)
	a.key(t, "brief", "ecdsa-p256")
	auth, secret := a.role(t, "brief", map[string]any{"token_ttl": "2s", "token_max_ttl": "3s"})
	log := &journal{}
	cfg := dial(t, a, "brief", auth)
	cfg.Log = log.logger()
	m := open(t, cfg)
	run(t, m)
	end := time.Now().Add(4500 * time.Millisecond)
	until(t, "four seconds of signatures", func() bool { signs(t, m); return time.Now().After(end) })
	if got := strings.Count(log.String(), "logged in to vault"); got < 2 || got > 6 {
		t.Errorf("got %d logins in 4.5 s, want a few: %s", got, log)
	}
	if strings.Contains(log.String(), "hvs.") || strings.Contains(log.String(), secret) {
		t.Errorf("the log holds a secret (I9): %s", log)
	}
}

func TestRevokedTokenLogsInAgain(t *testing.T) {
	a := realVault(t)
	a.key(t, "revoked", "ecdsa-p256")
	auth, _ := a.role(t, "revoked", nil)
	m := open(t, dial(t, a, "revoked", auth))
	run(t, m)
	signs(t, m)
	a.write(t, "sys/leases/revoke-prefix/auth/approle/login", nil)
	if err := trySign(t, m); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("with the revoked token: got %v, want ErrVaultUnavailable", err)
	}
	began := time.Now()
	until(t, "a signature", func() bool { return trySign(t, m) == nil })
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v to be back, want a second at most", took)
	}
}

func TestTokenFile(t *testing.T) {
	a := realVault(t)
	a.key(t, "file", "ecdsa-p256")
	signs(t, open(t, dial(t, a, "file", mint.Auth{TokenFile: file(t, a.token(t, "file", "10m"))})))
	_, err := mint.Open(t.Context(), dial(t, a, "file", mint.Auth{TokenFile: file(t, "hvs.unknownunknownunknownunknown")}))
	if !errors.Is(err, broker.ErrVaultUnavailable) || strings.Contains(err.Error(), "unknownunknown") {
		t.Errorf("an unknown token: got %v, want ErrVaultUnavailable without it", err)
	}
}

func TestSealedAndStoppedVault(t *testing.T) {
	a := realVault(t)
	a.key(t, "sealed", "ecdsa-p256")
	auth, _ := a.role(t, "sealed", nil)
	cfg := dial(t, a, "sealed", auth)
	cfg.Refresh = 100 * time.Millisecond
	m := open(t, cfg)
	run(t, m)
	for _, tc := range []struct {
		name      string
		away, now func() error
	}{
		{"sealed", func() error { return a.Seal(t.Context()) }, func() error { return a.Unseal(t.Context()) }},
		{"stopped", a.Stop, func() error { return a.Start(t.Context()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.away(); err != nil {
				t.Fatal(err)
			}
			err := trySign(t, m)
			ready := m.Ready(t.Context())
			_, openErr := mint.Open(t.Context(), cfg)
			published := len(keysOf(t, m))
			if err := tc.now(); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(err, broker.ErrVaultUnavailable) {
				t.Errorf("signing: got %v, want ErrVaultUnavailable", err)
			}
			if !errors.Is(ready, broker.ErrVaultUnavailable) {
				t.Errorf("ready: got %v, want ErrVaultUnavailable", ready)
			}
			if !errors.Is(openErr, broker.ErrVaultUnavailable) {
				t.Errorf("opening: got %v, want ErrVaultUnavailable", openErr)
			}
			if published != 1 {
				t.Errorf("got %d keys in the JWKS, want 1 as ever", published)
			}
			until(t, "a signature", func() bool { return trySign(t, m) == nil })
			until(t, "ready", func() bool { return m.Ready(t.Context()) == nil })
		})
	}
}

// TestRotationInVault follows one rotation from end to end, with our clock ahead of Vault's.
func TestRotationInVault(t *testing.T) {
	a := realVault(t)
	a.key(t, "turn", "ecdsa-p256")
	auth, _ := a.role(t, "turn", nil)
	turned := &clock{now: time.Now()}
	cfg := dial(t, a, "turn", auth)
	cfg.Now, cfg.Refresh = turned.Now, 50*time.Millisecond
	m := open(t, cfg)
	run(t, m)
	first, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "transit/keys/turn/rotate", nil)
	rotated := time.Now()
	until(t, "the new version in the JWKS", func() bool { return len(keysOf(t, m)) == 2 })
	if key, err := m.Key("ES256"); err != nil || key != first {
		t.Errorf("before the overlap: got %v, %v; want the first version", key, err)
	}
	wantKeys(t, m, "before the overlap", "1 signs published", "2 published")
	signs(t, m)

	turned.Set(rotated.Add(5*time.Minute + 20*time.Second)) // JWKS max age, refresh and slack
	until(t, "the new version to sign", func() bool { key, err := m.Key("ES256"); return err == nil && key.Version == first.Version+1 })
	if got := kids(t, m); !slices.Contains(got, first.ID) || len(got) != 2 {
		t.Errorf("during the overlap: got JWKS %v, want both versions", got)
	}
	wantKeys(t, m, "during the overlap", "1 published", "2 signs published")
	until(t, "a signature of the new version", func() bool { return trySign(t, m) == nil })
	if _, err := m.Sign(t.Context(), first, input); err != nil {
		t.Errorf("an order from just before: got %v", err)
	}

	turned.Set(rotated.Add(21 * time.Minute)) // and the longest life of a token
	until(t, "the old version to leave", func() bool { return !slices.Contains(kids(t, m), first.ID) })
	until(t, "a signature after the overlap", func() bool { return trySign(t, m) == nil })
	wantKeys(t, m, "after the overlap", "1", "2 signs published")

	a.write(t, "transit/keys/turn/config", map[string]any{"min_encryption_version": first.Version + 1, "min_decryption_version": first.Version + 1})
	if _, err := m.Sign(t.Context(), first, input); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("a version that is gone: got %v, want ErrVaultUnavailable", err)
	}
	signs(t, m)
}

// wantKeys checks the reported state of the key versions.
func wantKeys(t *testing.T, m *mint.Minter, when string, want ...string) {
	t.Helper()
	var got []string
	for _, key := range m.SigningKeys() {
		text := strconv.Itoa(key.Version)
		if key.Signs {
			text += " signs"
		}
		if key.Published {
			text += " published"
		}
		got = append(got, text)
		if age := time.Since(key.Created); age < -time.Minute || age > time.Hour || key.Steady.Sub(key.Created) < 5*time.Minute || key.ID == "" {
			t.Errorf("%s: got %+v, want one that was just made and settles after the JWKS' age", when, key)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

// TestStatusOfVault queries a Vault that works, one that is sealed, and one that is down.
func TestStatusOfVault(t *testing.T) {
	a := realVault(t)
	a.key(t, "status", "ecdsa-p256")
	auth, _ := a.role(t, "status", nil)
	m := open(t, dial(t, a, "status", auth))
	got, err := m.Status(t.Context())
	if err != nil || got.Sealed || got.Login <= 0 || got.Login > time.Hour || got.Version == "" || got.RoundTrip <= 0 || time.Since(got.Worked) > time.Minute {
		t.Errorf("it works: got %+v, %v", got, err)
	}
	if err := a.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Status(t.Context()); err != nil || !got.Sealed || got.Login != 0 {
		t.Errorf("it is sealed: got %+v, %v", got, err)
	}
	if err := a.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Status(t.Context()); err != nil || got.Sealed || got.Login <= 0 {
		t.Errorf("it is unsealed: got %+v, %v", got, err)
	}
	v := newImpostor(t, p256(t))
	away := open(t, knock(t, v.URL))
	v.Close()
	if got, err := away.Status(t.Context()); !errors.Is(err, broker.ErrVaultUnavailable) || got.Worked.IsZero() {
		t.Errorf("it is away: got %+v, %v", got, err)
	}
}

func kids(t *testing.T, m *mint.Minter) []string {
	t.Helper()
	var out []string
	for _, key := range keysOf(t, m) {
		out = append(out, key.KeyID)
	}
	return out
}

func TestMissingOrUnsuitableKeyPreventsStart(t *testing.T) {
	a := realVault(t)
	a.write(t, "transit/keys/rsa", map[string]any{"type": "rsa-2048"})
	a.write(t, "transit/keys/open", map[string]any{"type": "ecdsa-p256", "exportable": true})
	a.write(t, "transit/keys/edwards", map[string]any{"type": "ed25519"})
	for key, want := range map[string]error{
		"rsa": mint.ErrKeyUnfit, "open": mint.ErrKeyUnfit, "edwards": mint.ErrKeyUnfit, "none": broker.ErrVaultUnavailable,
	} {
		a.write(t, "sys/policies/acl/"+key, map[string]any{"policy": mint.Policy("transit", key, "brevet")})
		_, err := mint.Open(t.Context(), dial(t, a, key, mint.Auth{TokenFile: file(t, a.token(t, key, "10m"))}))
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", key, err, want)
		}
	}
}
