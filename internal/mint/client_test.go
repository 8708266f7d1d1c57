package mint_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/mint"
)

// TestVaultEnvironmentVariablesAreIgnored sets every variable that Vault's client knows to a value that would show (T5).
func TestVaultEnvironmentVariablesAreIgnored(t *testing.T) {
	other := newImpostor(t, p256(t))
	const planted = "hvs.planted"
	for name, value := range map[string]string{
		"VAULT_ADDR": other.URL, "VAULT_AGENT_ADDR": other.URL, "VAULT_PROXY_ADDR": other.URL,
		"VAULT_HTTP_PROXY": other.URL, "HTTP_PROXY": other.URL, "HTTPS_PROXY": other.URL, "ALL_PROXY": other.URL,
		"VAULT_TOKEN": planted, "VAULT_NAMESPACE": "planted", "VAULT_WRAP_TTL": "60s", "VAULT_MFA": planted,
		"VAULT_HEADERS": `{"X-Planted":"planted"}`, "VAULT_SKIP_VERIFY": "true", "VAULT_MAX_RETRIES": "5",
		"VAULT_RATE_LIMIT": "0.001:1", "VAULT_CLIENT_TIMEOUT": "1", "VAULT_SRV_LOOKUP": "true",
		"VAULT_TLS_SERVER_NAME": "planted", "VAULT_DISABLE_REDIRECTS": "false",
	} {
		t.Setenv(name, value)
	}
	v := newImpostor(t, p256(t))
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.Sign(t.Context(), key, input); err != nil {
			t.Fatal(err)
		}
	}
	if len(other.headers) != 0 {
		t.Errorf("the server of the environment was asked %d times", len(other.headers))
	}
	for _, header := range v.headers {
		for name, values := range header {
			if strings.Contains(strings.ToLower(strings.Join(values, " ")), "planted") || name == "X-Vault-Wrap-Ttl" {
				t.Errorf("the environment got in: %s: %s", name, values)
			}
		}
	}
	v.lie(signPath, says(503, `{}`))
	before := v.called(signPath)
	if _, err := m.Sign(t.Context(), key, input); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("got %v, want ErrVaultUnavailable", err)
	}
	if got := v.called(signPath) - before; got != 1 {
		t.Errorf("got %d calls to sign, want 1: VAULT_MAX_RETRIES got in", got)
	}
}

// The one remaining effect: a malformed variable stops the start, and the error does not repeat its value.
func TestMalformedEnvironmentStopsTheStart(t *testing.T) {
	v := newImpostor(t, p256(t))
	for name, value := range map[string]string{
		"VAULT_SKIP_VERIFY": "planted", "VAULT_HEADERS": "planted", "VAULT_CACERT": "/planted", "VAULT_RATE_LIMIT": "planted",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			_, err := mint.Open(t.Context(), knock(t, v.URL))
			if !errors.Is(err, mint.ErrConfig) || strings.Contains(err.Error(), "planted") {
				t.Errorf("got %v, want ErrConfig without the value", err)
			}
		})
	}
}

func TestLoginDoesNotCarryAToken(t *testing.T) {
	v := newImpostor(t, p256(t))
	cfg := knock(t, v.URL)
	cfg.Namespace = "team-a"
	open(t, cfg)
	if len(v.headers) != 5 {
		t.Fatalf("got %d calls, want a login, a reading of three keys and a question for the rights", len(v.headers))
	}
	for i, want := range []string{"", vaultTok, vaultTok, vaultTok, vaultTok} {
		if got := v.headers[i].Get("X-Vault-Token"); got != want {
			t.Errorf("call %d: got token %q, want %q", i, got, want)
		}
		if got := v.headers[i].Get("X-Vault-Namespace"); got != "team-a" {
			t.Errorf("call %d: got namespace %q", i, got)
		}
	}
}

func TestVaultIsTrustedByThePinnedAuthorityAlone(t *testing.T) {
	v := unstarted(t, p256(t))
	v.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	v.EnableHTTP2 = true
	v.StartTLS()
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw}))
	for _, tc := range []struct {
		name string
		ca   string
		addr string
		want error
	}{
		{"pinned", own, v.URL, nil},
		{"the system's authorities", "", v.URL, broker.ErrVaultUnavailable},
		{"another authority", strangersCA(t), v.URL, broker.ErrVaultUnavailable},
		{"another name", own, strings.Replace(v.URL, "127.0.0.1", "localhost", 1), broker.ErrVaultUnavailable},
		{"no authority in the file", "nothing", v.URL, mint.ErrConfig},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := v.called("auth/approle/login")
			cfg := knock(t, tc.addr)
			if tc.ca != "" {
				cfg.CAFile = file(t, tc.ca)
			}
			_, err := mint.Open(t.Context(), cfg)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if got := v.called("auth/approle/login") - before; (got == 1) != (tc.want == nil) {
				t.Errorf("got %d logins (T5)", got)
			}
		})
	}
}

// strangersCA returns the certificate of another server.
func strangersCA(t *testing.T) string {
	t.Helper()
	key := p256(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestInvalidConfigIsRefused(t *testing.T) {
	for name, change := range map[string]func(*mint.Config){
		"no address":             func(c *mint.Config) { c.Addr = "" },
		"http across a network":  func(c *mint.Config) { c.Addr = "http://vault.example:8200" },
		"http to a private host": func(c *mint.Config) { c.Addr = "http://10.0.0.1:8200" },
		"http to a lookalike":    func(c *mint.Config) { c.Addr = "http://127.0.0.1.example:8200" },
		"a socket":               func(c *mint.Config) { c.Addr = "unix:///run/vault.sock" },
		"no scheme":              func(c *mint.Config) { c.Addr = "127.0.0.1:8200" },
		"userinfo":               func(c *mint.Config) { c.Addr = "https://u:p@vault.example" },
		"a query":                func(c *mint.Config) { c.Addr = "https://vault.example?x" },
		"a key with a slash":     func(c *mint.Config) { c.SigningKey = "brevet/../../sys/seal" },
		"a key of dots":          func(c *mint.Config) { c.SigningKey = ".." },
		"a key with a star":      func(c *mint.Config) { c.SigningKey = "brevet*" },
		"no key":                 func(c *mint.Config) { c.SigningKey = "" },
		"a mount that climbs":    func(c *mint.Config) { c.Mount = "transit/../sys" },
		"a mount with a slash":   func(c *mint.Config) { c.Mount = "/transit" },
		"no longest life":        func(c *mint.Config) { c.MaxTTL = 0 },
		"a negative refresh":     func(c *mint.Config) { c.Refresh = -1 },
		"a negative timeout":     func(c *mint.Config) { c.Timeout = -1 },
		"a negative max age":     func(c *mint.Config) { c.JWKSMaxAge = -1 },
		"no clock":               func(c *mint.Config) { c.Now = nil },
		"no log":                 func(c *mint.Config) { c.Log = nil },
		"no CA file":             func(c *mint.Config) { c.CAFile = "/does/not/exist" },
		"no login":               func(c *mint.Config) { c.Auth = mint.Auth{} },
		"two logins":             func(c *mint.Config) { c.Auth.TokenFile = "token" },
		"no role id":             func(c *mint.Config) { c.Auth.AppRole.RoleID = "" },
		"no secret id":           func(c *mint.Config) { c.Auth.AppRole.SecretIDFile = "" },
		"an AppRole that climbs": func(c *mint.Config) { c.Auth.AppRole.Mount = "../sys" },
		"no JWT role":            func(c *mint.Config) { c.Auth = mint.Auth{JWT: &mint.JWT{TokenFile: "x"}} },
		"no JWT":                 func(c *mint.Config) { c.Auth = mint.Auth{JWT: &mint.JWT{Role: "x"}} },
		"two JWTs": func(c *mint.Config) {
			c.Auth = mint.Auth{JWT: &mint.JWT{Role: "x", TokenFile: "x", Token: func(context.Context) (string, error) { return "", nil }}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			cfg := knock(t, v.URL)
			change(&cfg)
			if _, err := mint.Open(t.Context(), cfg); !errors.Is(err, mint.ErrConfig) {
				t.Errorf("got %v, want ErrConfig", err)
			}
			if len(v.headers) != 0 {
				t.Errorf("Vault was asked %d times", len(v.headers))
			}
		})
	}
}

// Temporary errors differ from permanent ones, so that a caller knows when a retry can help.
func TestTemporaryLoginErrorsAreRetryable(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		change func(*testing.T, *mint.Config)
	}{
		"refused":          {answer: says(400, `{"errors":["invalid role or secret ID"]}`)},
		"no auth":          {answer: says(200, `{"data":{"a":1}}`)},
		"an empty token":   {answer: says(200, `{"auth":{"client_token":"","lease_duration":60}}`)},
		"nothing":          {answer: says(200, ``)},
		"a second factor":  {answer: says(200, `{"auth":{"client_token":"","mfa_requirement":{"mfa_request_id":"x"}}}`)},
		"an echo":          {answer: echoes(400)},
		"no secret id yet": {change: func(_ *testing.T, c *mint.Config) { c.Auth.AppRole.SecretIDFile = "/does/not/exist" }},
		"an empty file":    {change: func(t *testing.T, c *mint.Config) { c.Auth.AppRole.SecretIDFile = file(t, "") }},
		"Vault is not up":  {change: func(_ *testing.T, c *mint.Config) { c.Addr = "http://127.0.0.1:1" }},
	} {
		t.Run(name, func(t *testing.T) {
			v := newImpostor(t, p256(t))
			log := &journal{}
			cfg := knock(t, v.URL)
			cfg.Log = log.logger()
			if tc.change != nil {
				tc.change(t, &cfg)
			}
			v.lie("auth/approle/login", tc.answer)
			_, err := mint.Open(t.Context(), cfg)
			if !errors.Is(err, broker.ErrVaultUnavailable) {
				t.Fatalf("got %v, want ErrVaultUnavailable", err)
			}
			holdsNoSecret(t, err.Error()+log.String())
			if got := v.called("auth/approle/login"); got > 1 {
				t.Errorf("got %d logins, want one at most", got)
			}
		})
	}
}

func TestPolicyRefusesUnsafeNames(t *testing.T) {
	for _, name := range []string{"", "*", "a*", "+", "a/b", "..", `a" { capabilities = ["root"] } path "b`, "a\nb"} {
		if got := mint.Policy("transit", name, "brevet"); got != "" {
			t.Errorf("key %q: got %q, want nothing", name, got)
		}
		if name == "a/b" {
			continue // mounts may be nested
		}
		if got := mint.Policy(name, "brevet", "brevet"); got != "" {
			t.Errorf("mount %q: got %q, want nothing", name, got)
		}
	}
	if got := mint.Policy("a/b", "k", "r"); strings.Contains(got, "{{") || !strings.Contains(got, `path "a/b/sign/k" {`) {
		t.Errorf("got %s", got)
	}
}
