package mint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

// Bootstrap says what a deployment's Vault is to be prepared for. All fields but CAFile and Namespace are needed.
type Bootstrap struct {
	Addr, CAFile, Namespace string
	// Token may mount engines and write policies. It is used for the calls of Run only.
	Token string
	// Mount and SigningKey are the Transit engine and key; KeyType is ecdsa-p256 or ed25519.
	Mount, SigningKey, KeyType string
	// Role names the AppRole and its policy.
	Role string
}

// Login is what an AppRole logs in with.
type Login struct{ RoleID, SecretID string }

// Run enables Transit and AppRole where they are missing, makes a signing key that cannot leave Vault, and a role
// that may use it and nothing else. It may be run again: an existing key stays; the secret id is always a new one.
func (b Bootstrap) Run(ctx context.Context) (Login, error) {
	if !mountName.MatchString(b.Mount) || !keyName.MatchString(b.SigningKey) || !keyName.MatchString(b.Role) {
		return Login{}, fmt.Errorf("%w: the Transit mount, key and role must be plain names", ErrConfig)
	}
	if !slices.Contains([]string{"ecdsa-p256", "ed25519"}, b.KeyType) {
		return Login{}, fmt.Errorf("%w: the key type is ecdsa-p256 (ES256) or ed25519 (EdDSA), not %q", ErrConfig, b.KeyType)
	}
	client, err := b.client()
	if err != nil {
		return Login{}, err
	}
	for _, step := range []struct {
		doing string
		do    func(context.Context, *api.Client) error
	}{
		{"enabling the Transit engine", b.enableTransit},
		{"making the signing key", b.makeKey},
		{"enabling AppRole", b.enableAppRole},
		{"writing the policy", b.writePolicy},
		{"writing the role", b.writeRole},
	} {
		if err := step.do(ctx, client); err != nil {
			return Login{}, fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	return b.login(ctx, client)
}

// client is one for an admin's few calls. It takes answers other than 200, which the guard of minting does not.
func (b Bootstrap) client() (*api.Client, error) {
	if err := checkAddr(b.Addr); err != nil {
		return nil, err
	}
	cfg := Config{Addr: b.Addr, CAFile: b.CAFile, Namespace: b.Namespace, Timeout: 30 * time.Second}
	transport, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	client, err := newClient(cfg, noRedirects{transport})
	if err != nil {
		return nil, err
	}
	client.SetToken(b.Token)
	return client, nil
}

// noRedirects makes an error of a redirect: the Vault client takes one that has a body for a success.
type noRedirects struct{ next http.RoundTripper }

func (n noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	if err == nil && resp.StatusCode/100 == 3 {
		_ = resp.Body.Close()
		return nil, &answerError{status: resp.StatusCode}
	}
	return resp, err
}

func (b Bootstrap) enableTransit(ctx context.Context, client *api.Client) error {
	return inUse(client.Sys().MountWithContext(ctx, b.Mount, &api.MountInput{
		Type: "transit", Description: "Signs what Brevet issues",
	}))
}

func (b Bootstrap) makeKey(ctx context.Context, client *api.Client) error {
	_, err := client.Logical().WriteWithContext(ctx, b.Mount+"/keys/"+b.SigningKey, map[string]any{
		"type": b.KeyType, "exportable": false, "allow_plaintext_backup": false,
	})
	return err
}

func (b Bootstrap) enableAppRole(ctx context.Context, client *api.Client) error {
	return inUse(client.Sys().EnableAuthWithOptionsWithContext(ctx, "approle", &api.EnableAuthOptions{Type: "approle"}))
}

func (b Bootstrap) writePolicy(ctx context.Context, client *api.Client) error {
	return client.Sys().PutPolicyWithContext(ctx, b.Role, Policy(b.Mount, b.SigningKey))
}

func (b Bootstrap) writeRole(ctx context.Context, client *api.Client) error {
	_, err := client.Logical().WriteWithContext(ctx, "auth/approle/role/"+b.Role, map[string]any{
		"token_policies": b.Role, "token_no_default_policy": true,
		"token_ttl": "20m", "token_max_ttl": longestLogin.String(),
	})
	return err
}

func (b Bootstrap) login(ctx context.Context, client *api.Client) (Login, error) {
	const doing = "reading the role's login"
	role, err := dataOf(client.Logical().ReadWithContext(ctx, "auth/approle/role/"+b.Role+"/role-id"))
	if err != nil {
		return Login{}, fmt.Errorf("%s: %w", doing, err)
	}
	secret, err := dataOf(client.Logical().WriteWithContext(ctx, "auth/approle/role/"+b.Role+"/secret-id", nil))
	if err != nil {
		return Login{}, fmt.Errorf("%s: %w", doing, err)
	}
	roleID, _ := role["role_id"].(string)
	secretID, _ := secret["secret_id"].(string)
	if roleID == "" || secretID == "" {
		return Login{}, fmt.Errorf("%s: %w", doing, errNotUnderstood)
	}
	return Login{RoleID: roleID, SecretID: secretID}, nil
}

// inUse takes it for success that something is mounted there already; a wrong type shows at the next step.
func inUse(err error) error {
	var answer *api.ResponseError
	if errors.As(err, &answer) && answer.StatusCode == http.StatusBadRequest &&
		strings.Contains(strings.Join(answer.Errors, " "), "path is already in use") {
		return nil
	}
	return err
}
