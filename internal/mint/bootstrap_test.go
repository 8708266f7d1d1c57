package mint_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
)

func bootstrap(addr, token string) mint.Bootstrap {
	return mint.Bootstrap{
		Addr: addr, Token: token, Mount: "transit", SigningKey: "boot", KeyType: "ed25519", Role: "boot",
	}
}

// Run prepares exactly what the minter needs (T4), also when it runs a second time.
func TestBootstrapCreatesASigningLogin(t *testing.T) {
	a := realVault(t)
	for _, name := range []string{"first", "again"} {
		login, err := bootstrap(a.Addr(), a.RootToken()).Run(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m := open(t, dial(t, a, "boot", mint.Auth{AppRole: &mint.AppRole{
			RoleID: login.RoleID, SecretIDFile: file(t, login.SecretID),
		}}))
		key, err := m.Key()
		if err != nil || key.Algorithm != "EdDSA" || key.Version != 1 {
			t.Errorf("%s: got key %v, %v; want version 1 of an EdDSA key", name, key, err)
		}
		if _, err := m.Sign(t.Context(), key, "e30.e30"); err != nil {
			t.Errorf("%s: signing: %v", name, err)
		}
	}
	secret, err := a.root.Logical().ReadWithContext(t.Context(), "auth/approle/role/boot")
	if err != nil {
		t.Fatal(err)
	}
	if policies, ok := secret.Data["token_policies"].([]any); !ok || len(policies) != 1 || policies[0] != "boot" {
		t.Errorf("got policies %v, want only boot", secret.Data["token_policies"])
	}
	if got, err := a.root.Sys().GetPolicyWithContext(t.Context(), "boot"); err != nil || got != mint.Policy("transit", "boot", "brevet") {
		t.Errorf("got policy %q, %v", got, err)
	}
}

func TestBootstrapRefuses(t *testing.T) {
	a := realVault(t)
	a.write(t, "sys/policies/acl/somebody", map[string]any{"policy": `path "secret/x" { capabilities = ["read"] }`})
	if _, err := bootstrap(a.Addr(), a.RootToken()).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*mint.Bootstrap)
		want   error
		says   string
	}{
		{"a mount with a star", func(b *mint.Bootstrap) { b.Mount = "*" }, mint.ErrConfig, "plain names"},
		{"a key type that cannot sign JWTs", func(b *mint.Bootstrap) { b.KeyType = "aes256-gcm96" }, mint.ErrConfig, "key type"},
		{"a policy that every token has", func(b *mint.Bootstrap) { b.Role = "default" }, mint.ErrConfig, "cannot name"},
		{"a name that Vault folds", func(b *mint.Bootstrap) { b.Role = "BOOT" }, mint.ErrConfig, "cannot name"},
		{"a policy that scopes may have", func(b *mint.Bootstrap) { b.Role = "brevet-scope.broker" }, mint.ErrConfig, "cannot name"},
		{"a policy of somebody else", func(b *mint.Bootstrap) { b.Role = "somebody" }, mint.ErrConfig, "delete the policy"},
		{"a policy of another deployment", func(b *mint.Bootstrap) { b.SigningKey = "another" }, mint.ErrConfig, "delete the policy"},
		{"plain http across a network", func(b *mint.Bootstrap) { b.Addr = "http://vault.example" }, mint.ErrConfig, "https"},
		{"a token without rights", func(b *mint.Bootstrap) { b.Token = "hvs.nobody" }, nil, "enabling the Transit engine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bootstrap(a.Addr(), a.RootToken())
			tc.change(&b)
			_, err := b.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.says) || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("got %v, want an error that says %q", err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), "hvs.") {
				t.Errorf("the error holds the token: %v", err)
			}
		})
	}
}

// A call with an admin's token follows no redirect, and a redirect with a body is not a success (H68).
func TestBootstrapFollowsNoRedirect(t *testing.T) {
	visited := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visited = true }))
	defer elsewhere.Close()
	impostor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", elsewhere.URL+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = w.Write([]byte(`{"data":{"role_id":"a","secret_id":"b"}}`))
	}))
	defer impostor.Close()
	if login, err := bootstrap(impostor.URL, "hvs.admin").Run(t.Context()); err == nil || visited {
		t.Errorf("got %v, %v; visited elsewhere: %t", login, err, visited)
	}
}

// A caller that may use the engine that signs tokens could sign as Brevet does.
func TestBootstrapRefusesPoliciesThatReachItsEngine(t *testing.T) {
	for path, allowed := range map[string]bool{
		"engines/transit/sign/boot": false, "engines/transit/sign/+": false, "engines/transit/*": false, "engines/*": false,
		"+/transit/keys/boot": false, "+/+/sign/boot": false, "engines/tr*": false,
		"+*": false, "+/+*": false,
		"engines/transits/sign/boot": true, "engines/database/creds/+": true, "transit/sign/boot": true, "secret/data/*": true, "s*": true,
	} {
		b := bootstrap("http://127.0.0.1:1", "hvs.nobody")
		b.Mount = "engines/transit"
		b.Policies = []scopes.VaultPolicy{{
			Name: "brevet-scope.a.b.00000000", Text: "path \"" + path + "\" {\n  capabilities = [\"update\"]\n}\n",
		}}
		_, err := b.Run(t.Context())
		if refused := errors.Is(err, mint.ErrConfig); refused == allowed {
			t.Errorf("%s: got %v, want it allowed: %t", path, err, allowed)
		}
	}
	const good = "path \"a/b\" {\n  capabilities = [\"read\"]\n}\n"
	for _, text := range []string{
		"", `path 'x' {}`, good + "path\t\"engines/transit/*\" { capabilities = [\"update\"] }", good + "\"path\" \"*\" {}",
		"path \"/engines/transit/*\" {\n  capabilities = [\"read\"]\n}\n", good + "# path \"a\" {}", good + "x = {}",
	} {
		b := bootstrap("http://127.0.0.1:1", "hvs.nobody")
		b.Policies = []scopes.VaultPolicy{{Name: "brevet-scope.a.b.00000000", Text: text}}
		if _, err := b.Run(t.Context()); !errors.Is(err, mint.ErrConfig) {
			t.Errorf("%q: got %v, want ErrConfig", text, err)
		}
	}
}
