package mint_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/scopes"
)

func bootstrap(addr, token string) mint.Bootstrap {
	return mint.Bootstrap{
		Addr: addr, Token: token, Mount: "transit", SigningKey: "boot", Role: "boot",
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
		for _, algorithm := range []string{"ES256", "EdDSA", "RS256"} {
			key, err := m.Key(algorithm)
			if err != nil || key.Algorithm != algorithm || key.Version != 1 {
				t.Errorf("%s: got key %v, %v; want version 1 of an %s key", name, key, err, algorithm)
			}
			if _, err := m.Sign(t.Context(), key, "e30.e30"); err != nil {
				t.Errorf("%s: signing with %s: %v", name, algorithm, err)
			}
		}
	}
	for name, kind := range map[string]string{"boot": "ecdsa-p256", "boot-eddsa": "ed25519", "boot-log": "ed25519", "boot-rs256": "rsa-2048"} {
		key, err := a.root.Logical().ReadWithContext(t.Context(), "transit/keys/"+name)
		if err != nil || key == nil {
			t.Fatalf("reading the key %s: %v", name, err)
		}
		if d := key.Data; d["type"] != kind || d["exportable"] != false || d["allow_plaintext_backup"] != false {
			t.Errorf("got %v, want a key of type %s that cannot leave Vault", d, kind)
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

// logsIn reports whether Vault accepts a login.
func (a *admin) logsIn(t *testing.T, login mint.Login) bool {
	t.Helper()
	_, err := clientOf(t, a.Addr(), "").Logical().WriteWithContext(t.Context(), "auth/approle/login", map[string]any{"role_id": login.RoleID, "secret_id": login.SecretID})
	return err == nil
}

// secretIDs counts the secret ids of a role.
func (a *admin) secretIDs(t *testing.T, role string) int {
	t.Helper()
	found, err := a.root.Logical().ListWithContext(t.Context(), "auth/approle/role/"+role+"/secret-id")
	if err != nil {
		t.Fatal(err)
	}
	if found == nil {
		return 0
	}
	list, _ := found.Data["keys"].([]any)
	return len(list)
}

// A running broker keeps its token when the secret id is destroyed, and logs in with what the file holds then.
func TestEarlierSecretIDsAreDestroyed(t *testing.T) {
	a := realVault(t)
	b := bootstrap(a.Addr(), a.RootToken())
	b.Role, b.SigningKey, b.TokenRole = "earlier", "earlier", "earlier"
	run := func() mint.Login {
		t.Helper()
		login, err := b.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return login
	}
	first, second := run(), run()
	if !a.logsIn(t, first) || !a.logsIn(t, second) {
		t.Fatal("a login does not work before anything is destroyed")
	}
	secret := file(t, second.SecretID)
	cfg := dial(t, a, "earlier", mint.Auth{AppRole: &mint.AppRole{RoleID: second.RoleID, SecretIDFile: secret}})
	m := open(t, cfg)
	third := run()
	if err := os.WriteFile(secret, []byte(third.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := b.DestroyEarlier(t.Context(), third); n != 2 || err != nil {
		t.Errorf("got %d destroyed, %v, want 2", n, err)
	}
	if n, err := b.DestroyEarlier(t.Context(), third); n != 0 || err != nil {
		t.Errorf("again: got %d destroyed, %v, want none", n, err)
	}
	if a.logsIn(t, first) || a.logsIn(t, second) || !a.logsIn(t, third) || a.secretIDs(t, "earlier") != 1 {
		t.Errorf("got logins %t, %t and %t, want the last alone", a.logsIn(t, first), a.logsIn(t, second), a.logsIn(t, third))
	}
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sign(t.Context(), key, "e30.e30"); err != nil {
		t.Errorf("a broker with the login of an earlier secret id: %v", err)
	}
	open(t, cfg) // the next login reads the file
}

func TestSecretIDsAreBound(t *testing.T) {
	a := realVault(t)
	b := bootstrap(a.Addr(), a.RootToken())
	b.Role, b.SigningKey, b.TokenRole = "bound", "bound", "bound"
	for name, tc := range map[string]struct {
		cidrs []string
		works bool
	}{
		"from here": {[]string{"127.0.0.0/8", "::1/128"}, true}, "from elsewhere": {[]string{"192.0.2.0/24"}, false}, "from anywhere": {nil, true},
	} {
		b.CIDRs = tc.cidrs
		login, err := b.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := a.logsIn(t, login); got != tc.works {
			t.Errorf("%s: got a login %t, want %t", name, got, tc.works)
		}
	}
	b.SecretIDTTL = 24 * time.Hour
	login, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	looked := a.write(t, "auth/approle/role/bound/secret-id/lookup", map[string]any{"secret_id": login.SecretID})
	if got := fmt.Sprint(looked["secret_id_ttl"]); got != "86400" {
		t.Errorf("got a secret id for %s seconds, want 86400", got)
	}
	before := a.secretIDs(t, "bound")
	b.SecretIDTTL = 100 * 365 * 24 * time.Hour
	if _, err := b.Run(t.Context()); !errors.Is(err, mint.ErrConfig) || !strings.Contains(err.Error(), "max_lease_ttl") {
		t.Errorf("got %v for a life that Vault would shorten, want an error that names max_lease_ttl", err)
	}
	if after := a.secretIDs(t, "bound"); after != before {
		t.Errorf("got %d secret ids, want none more than %d", after, before)
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
		{"a policy that every token has", func(b *mint.Bootstrap) { b.Role = "default" }, mint.ErrConfig, "cannot name"},
		{"a name that Vault folds", func(b *mint.Bootstrap) { b.Role = "BOOT" }, mint.ErrConfig, "cannot name"},
		{"a policy that scopes may have", func(b *mint.Bootstrap) { b.Role = "brevet-scope.broker" }, mint.ErrConfig, "cannot name"},
		{"a policy of somebody else", func(b *mint.Bootstrap) { b.Role = "somebody" }, mint.ErrConfig, "delete the policy"},
		{"a policy of another deployment", func(b *mint.Bootstrap) { b.SigningKey = "another" }, mint.ErrConfig, "delete the policy"},
		{"an address for a network", func(b *mint.Bootstrap) { b.CIDRs = []string{"10.1.0.1"} }, mint.ErrConfig, "not a network"},
		{"a login that ends before the next", func(b *mint.Bootstrap) { b.SecretIDTTL = time.Hour }, mint.ErrConfig, "at least"},
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
