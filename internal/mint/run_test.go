package mint_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
)

// run runs the minter until the test ends, and checks that it then stops.
func run(t *testing.T, m *mint.Minter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: got %v, want nil", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("run did not end")
		}
	})
}

// until waits for something that Run does in the background.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("never came: %s", what)
		case <-tick.C:
		}
	}
}

// gate makes the impostor refuse every token but the one that the next login returns.
func (v *impostor) gate(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.login = token
	for _, path := range []string{signPath, keyPath} {
		v.lies[path] = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("X-Vault-Token") != token:
				says(403, `{"errors":["permission denied"]}`)(w, r)
			case strings.HasSuffix(r.URL.Path, keyPath):
				reply(w, map[string]any{"data": v.describe(v.keys)})
			default:
				v.sign(w, r, v.keys)
			}
		}
	}
}

func TestRefusedTokenLogsInOnce(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.gate("hvs.second")
	before := v.called(signPath)
	if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("with the refused token: got %v, want ErrVaultUnavailable", err)
	}
	if got := v.called(signPath) - before; got != 1 {
		t.Errorf("got %d calls to sign, want 1: none is repeated with the new token", got)
	}
	began := time.Now()
	until(t, "a signature with a new login", func() bool {
		_, err := m.Sign(t.Context(), key, input)
		return err == nil
	})
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v to be back, want a second at most", took)
	}
	if got := v.called("auth/approle/login"); got != 2 {
		t.Errorf("got %d logins, want 2: the first, and one more however many calls were refused", got)
	}
	if err := m.Ready(t.Context()); err != nil {
		t.Errorf("ready: got %v", err)
	}
}

// A login does not repair a policy that forbids signing: it must not cause a flood of logins.
func TestForbiddenSigningTriggersNoLogin(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.lie(signPath, says(403, `{"errors":["permission denied"]}`))
	for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
		if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
			t.Fatalf("got %v, want ErrVaultUnavailable", err)
		}
	}
	if got := v.called("auth/approle/login"); got < 2 || got > 8 {
		t.Errorf("got %d logins for %d refusals, want a few", got, v.called(signPath))
	}
}

func TestLoginIsTriedUntilItWorks(t *testing.T) {
	v := newImpostor(t, p256(t))
	log := &journal{}
	cfg := knock(t, v.URL)
	cfg.Log = log.logger()
	m := open(t, cfg)
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.lie("auth/approle/login", echoes(503))
	v.gate("hvs.second")
	_, _ = m.Sign(t.Context(), key, input)
	until(t, "three logins in vain", func() bool { return v.called("auth/approle/login") >= 4 })
	v.lie("auth/approle/login", nil)
	until(t, "a signature", func() bool { _, err := m.Sign(t.Context(), key, input); return err == nil })
	holdsNoSecret(t, log.String())
	if !strings.Contains(log.String(), "logging in to vault did not work") {
		t.Errorf("got log %s, want the vain logins in it", log)
	}
}

func TestTokenFileIsReadAgainWhenItChanges(t *testing.T) {
	v := newImpostor(t, p256(t))
	v.lie("auth/token/lookup-self", says(200, `{"data":{"ttl":1200,"renewable":true}}`))
	cfg := knock(t, v.URL)
	cfg.Refresh = 20 * time.Millisecond
	cfg.Auth = mint.Auth{TokenFile: file(t, "hvs.first")}
	v.gate("hvs.first")
	m := open(t, cfg)
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.gate("hvs.second")
	if err := os.WriteFile(cfg.Auth.TokenFile, []byte("hvs.second"), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "a signature with the new token", func() bool { _, err := m.Sign(t.Context(), key, input); return err == nil })
	// A token that Vault does not know must not replace one that works.
	v.lie("auth/token/lookup-self", says(403, `{"errors":["permission denied"]}`))
	before := v.called("auth/token/lookup-self")
	if err := os.WriteFile(cfg.Auth.TokenFile, []byte("hvs.bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the new file to be tried", func() bool { return v.called("auth/token/lookup-self") > before })
	if _, err := m.Sign(t.Context(), key, input); err != nil {
		t.Errorf("with the token before: got %v", err)
	}
}

func TestJWTLoginTakesAFreshTokenEachTime(t *testing.T) {
	v := newImpostor(t, p256(t))
	bodies := make(chan map[string]string, 4)
	v.lie("auth/kubernetes/login", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		bodies <- body
		reply(w, map[string]any{"auth": map[string]any{"client_token": vaultTok, "lease_duration": 1200}})
	})
	cfg := knock(t, v.URL)
	tokens := []string{"jwt-1", "jwt-2"}
	cfg.Auth = mint.Auth{JWT: &mint.JWT{Mount: "kubernetes", Role: "brevet", Token: func(context.Context) (string, error) {
		next := tokens[0]
		tokens = tokens[1:]
		return next, nil
	}}}
	m := open(t, cfg)
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.lie(signPath, says(403, `{}`))
	_, _ = m.Sign(t.Context(), key, input)
	for _, want := range []string{"jwt-1", "jwt-2"} {
		if diff := cmp.Diff(map[string]string{"role": "brevet", "jwt": want}, <-bodies); diff != "" {
			t.Errorf("login (-want +got):\n%s", diff)
		}
	}
}

func TestStaleKeyStaysInTheJWKS(t *testing.T) {
	v := newImpostor(t, p256(t), p256(t))
	turned := &clock{now: epoch}
	cfg := knock(t, v.URL)
	cfg.Now = turned.Now
	m := open(t, cfg)
	turned.Set(epoch.Add(5*time.Minute + 30*time.Second))
	if _, err := m.Key("ES256"); err != nil {
		t.Errorf("at the limit: got %v", err)
	}
	turned.Set(epoch.Add(5*time.Minute + 30*time.Second + 1))
	if _, err := m.Key("ES256"); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("past the limit: got %v, want ErrVaultUnavailable", err)
	}
	if err := m.Ready(t.Context()); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("ready: got %v, want ErrVaultUnavailable", err)
	}
	if got := len(keysOf(t, m)); got != 2 {
		t.Errorf("got %d keys in the JWKS, want 2", got)
	}
}

func TestKeyThatBecomesExportableStopsSigning(t *testing.T) {
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	cfg.Refresh = 20 * time.Millisecond
	m := open(t, cfg)
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	run(t, m)
	v.mu.Lock()
	v.key = map[string]any{"exportable": true}
	v.mu.Unlock()
	until(t, "the key to be given up", func() bool { _, err := m.Key("ES256"); return errors.Is(err, broker.ErrVaultUnavailable) })
	before := v.called(signPath)
	if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("got %v, want ErrVaultUnavailable", err)
	}
	if v.called(signPath) != before {
		t.Error("Vault was asked to sign with a key that can leave it (T4)")
	}
	if err := m.Ready(t.Context()); !errors.Is(err, mint.ErrKeyUnfit) && !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("ready: got %v", err)
	}
	if got := len(keysOf(t, m)); got != 1 {
		t.Errorf("got %d keys in the JWKS, want the one that tokens out there need", got)
	}
}

func TestVaultFaultClearsOnRecovery(t *testing.T) {
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	cfg.Refresh = 50 * time.Millisecond
	m := open(t, cfg)
	run(t, m)
	v.lie(keyPath, says(503, `{"errors":["Vault is sealed"]}`))
	until(t, "not ready", func() bool { return errors.Is(m.Ready(t.Context()), broker.ErrVaultUnavailable) })
	if err := m.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "Vault is sealed") {
		t.Errorf("got %v, want Vault's own reason", err)
	}
	v.lie(keyPath, nil)
	until(t, "ready again", func() bool { return m.Ready(t.Context()) == nil })
}

// A caller that cancels says nothing about Vault.
func TestCancelledCallIsNoFault(t *testing.T) {
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Sign(ctx, key, input)
	if !errors.Is(err, broker.ErrVaultUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrVaultUnavailable for being cancelled", err)
	}
	if err := m.Ready(t.Context()); err != nil {
		t.Errorf("ready: got %v", err)
	}
}

func keysOf(t *testing.T, m *mint.Minter) []jose.JSONWebKey {
	t.Helper()
	document, err := m.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(document, &set); err != nil {
		t.Fatal(err)
	}
	return set.Keys
}

func TestJWKSHoldsPublicMembersOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		members []string
		fixed   map[string]string
	}{
		"ES256": {[]string{"alg", "crv", "kid", "kty", "use", "x", "y"}, map[string]string{"alg": "ES256", "kty": "EC", "crv": "P-256", "use": "sig"}},
		"EdDSA": {[]string{"alg", "crv", "kid", "kty", "use", "x"}, map[string]string{"alg": "EdDSA", "kty": "OKP", "crv": "Ed25519", "use": "sig"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			v.edward = edward(t)
			m := open(t, knock(t, v.URL))
			document, err := m.JWKS()
			if err != nil {
				t.Fatal(err)
			}
			var set map[string][]map[string]string
			if err := json.Unmarshal(document, &set); err != nil {
				t.Fatal(err)
			}
			if len(set) != 1 || len(set["keys"]) != 2 {
				t.Fatalf("got %s, want two keys", document)
			}
			got := set["keys"][slices.IndexFunc(set["keys"], func(key map[string]string) bool { return key["alg"] == name })]
			if len(got) != len(tc.members) {
				t.Errorf("got members %v, want %v", got, tc.members)
			}
			for _, member := range tc.members {
				if got[member] == "" {
					t.Errorf("%s is missing in %v", member, got)
				}
			}
			for member, want := range tc.fixed {
				if got[member] != want {
					t.Errorf("%s: got %q, want %q", member, got[member], want)
				}
			}
			key, err := m.Key(name)
			if err != nil || key.ID != got["kid"] || key.Algorithm != got["alg"] {
				t.Errorf("got key %v, %v; want the one published", key, err)
			}
		})
	}
}
