package mint_test

import (
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/hashicorp/vault/api"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// admin is the real Vault, with its root token.
type admin struct {
	*devstack.Vault
	root *api.Client
}

// realVault returns the real Vault with a Transit engine and the login methods mounted.
func realVault(t *testing.T) *admin {
	t.Helper()
	stack := testkit.Devstack(t)
	a := &admin{Vault: stack.Vault, root: clientOf(t, stack.Vault.Addr(), stack.Vault.RootToken())}
	mountOnce.Do(func() {
		a.write(t, "sys/mounts/transit", map[string]any{"type": "transit"})
		a.write(t, "sys/mounts/brevet-github-tokens", map[string]any{"type": "kv", "options": map[string]any{"version": "1"}})
		a.write(t, "sys/auth/approle", map[string]any{"type": "approle"})
		a.write(t, "sys/auth/jwt", map[string]any{"type": "jwt"})
	})
	return a
}

var mountOnce sync.Once

func clientOf(t *testing.T, addr, token string) *api.Client {
	t.Helper()
	client, err := api.NewClient(&api.Config{Address: addr, MaxRetries: 0})
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(token)
	return client
}

func (a *admin) write(t *testing.T, path string, data map[string]any) map[string]any {
	t.Helper()
	secret, err := a.root.Logical().WriteWithContext(t.Context(), path, data)
	if err != nil {
		t.Fatal(err)
	}
	if secret == nil {
		return nil
	}
	return secret.Data
}

// key creates a signing key, and a policy of the same name that is exactly Policy.
func (a *admin) key(t *testing.T, name, kind string) {
	t.Helper()
	a.write(t, "transit/keys/"+name, map[string]any{"type": kind})
	a.write(t, "sys/policies/acl/"+name, map[string]any{"policy": mint.Policy("transit", name, "brevet")})
}

// role creates an AppRole for a key's policy, and returns a login for it and its secret id.
func (a *admin) role(t *testing.T, name string, settings map[string]any) (mint.Auth, string) {
	t.Helper()
	role := map[string]any{"token_policies": name, "token_no_default_policy": true, "token_ttl": "20m", "token_max_ttl": "1h"}
	maps.Copy(role, settings)
	path := "auth/approle/role/" + name
	a.write(t, path, role)
	id, err := a.root.Logical().ReadWithContext(t.Context(), path+"/role-id")
	if err != nil {
		t.Fatal(err)
	}
	secret := a.write(t, path+"/secret-id", nil)["secret_id"].(string)
	return mint.Auth{AppRole: &mint.AppRole{RoleID: id.Data["role_id"].(string), SecretIDFile: file(t, secret)}}, secret
}

// token returns a token with exactly a key's policy.
func (a *admin) token(t *testing.T, policy, ttl string) string {
	t.Helper()
	secret, err := a.root.Auth().Token().CreateWithContext(t.Context(), &api.TokenCreateRequest{
		Policies: []string{policy}, NoDefaultPolicy: true, TTL: ttl, NoParent: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret.Auth.ClientToken
}
