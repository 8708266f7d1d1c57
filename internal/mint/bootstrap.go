package mint

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// Bootstrap describes how to prepare Vault for a deployment. All fields but CAFile, Namespace, TokenRole, Policies and MaxTTL are
// required.
type Bootstrap struct {
	Addr, CAFile, Namespace string
	// Token may mount engines and write policies. Only Run uses it.
	Token string
	// Mount and SigningKey are the Transit engine, and the key for ES256. The other keys are named after it.
	Mount, SigningKey string
	// Role names the AppRole and its policy.
	Role string
	// TokenRole names the role of the token store that creates the tokens of dynamic credentials; empty means "brevet".
	TokenRole string
	// Policies are the policies of the catalogue's scopes. Run does not delete policies of earlier catalogues: they may still be
	// in use. Run rejects a policy that covers paths of the Transit engine: a token with it could sign tokens in the name of
	// Brevet.
	Policies []scopes.VaultPolicy
	// GitHub enables the engines for credentials of kind github. GitHubKeys are private keys of GitHub Apps in PEM, by the App's name,
	// to import there.
	GitHub     bool
	GitHubKeys map[string]secret.Text
	// MaxTTL is the longest TTL that the catalogue allows; zero means 24 hours.
	MaxTTL time.Duration
	// SecretIDTTL is how long the new secret id is good for logins; zero means until it is destroyed. A broker logs in again each
	// hour, so it needs a new one before that.
	SecretIDTTL time.Duration
	// CIDRs are the networks from which Vault accepts the login and its tokens; empty means all.
	CIDRs []string
}

// Login holds the role id and the secret id of an AppRole.
type Login struct {
	RoleID, SecretID string

	earlier []string // accessors of the secret ids that were there before
}

// Run enables Transit and AppRole if they are missing. It creates a key for each algorithm of tokens (ES256, EdDSA and RS256), and a
// key for the ledger's checkpoints; none can leave Vault. It also creates the AppRole that may use them, the token role, and the
// policies of scopes. It may be run again: it keeps existing keys, and always creates a new secret id. DestroyEarlier ends the ones
// before.
func (b Bootstrap) Run(ctx context.Context) (Login, error) {
	b.TokenRole, b.MaxTTL = cmp.Or(b.TokenRole, defaultTokenRole), cmp.Or(b.MaxTTL, longestGrant)
	if err := b.check(); err != nil {
		return Login{}, err
	}
	client, leave, err := b.clientAtActive(ctx)
	if err != nil {
		return Login{}, err
	}
	defer leave()
	write := func(path string, data map[string]any) error {
		_, err := client.Logical().WriteWithContext(ctx, path, data)
		return err
	}
	transit := &api.MountInput{Type: "transit", Description: "Signs what Brevet issues"}
	if err := inUse(client.Sys().MountWithContext(ctx, b.Mount, transit)); err != nil {
		return Login{}, fmt.Errorf("enabling the Transit engine: %w", err)
	}
	keys := map[string]string{logKeyName(b.SigningKey): "ed25519"} // types by name
	for _, k := range tokenKeys {
		keys[b.SigningKey+k.suffix] = k.types[0]
	}
	for name, kind := range keys {
		key := map[string]any{"type": kind, "exportable": false, "allow_plaintext_backup": false}
		if err := write(b.Mount+"/keys/"+name, key); err != nil {
			return Login{}, fmt.Errorf("making the signing keys: %w", err)
		}
	}
	if err := b.mountGitHub(ctx, client); err != nil {
		return Login{}, err
	}
	appRole := &api.EnableAuthOptions{Type: "approle"}
	if err := inUse(client.Sys().EnableAuthWithOptionsWithContext(ctx, "approle", appRole)); err != nil {
		return Login{}, fmt.Errorf("enabling AppRole: %w", err)
	}
	switch policy, err := client.Sys().GetPolicyWithContext(ctx, b.Role); {
	case err != nil:
		return Login{}, fmt.Errorf("reading the policy %s: %w", b.Role, err)
	case policy != "" && !strings.Contains(policy, fmt.Sprintf("path %q {", b.Mount+"/sign/"+b.SigningKey)):
		return Login{}, fmt.Errorf("%w: the policy %s exists and is not for the key %s at %s, so another deployment may use it. "+
			"Choose another name for the AppRole, or delete the policy if nothing uses it", ErrConfig, b.Role, b.SigningKey, b.Mount)
	}
	if err := client.Sys().PutPolicyWithContext(ctx, b.Role, Policy(b.Mount, b.SigningKey, b.TokenRole)); err != nil {
		return Login{}, fmt.Errorf("writing the policy: %w", err)
	}
	if err := write("auth/approle/role/"+b.Role, map[string]any{
		"token_policies": b.Role, "token_no_default_policy": true,
		"token_ttl": "20m", "token_max_ttl": longestLogin.String(),
		// There is no limit of uses: each replica logs in each hour, and at each start.
		"secret_id_ttl": b.SecretIDTTL.String(), "secret_id_num_uses": 0,
		"secret_id_bound_cidrs": append([]string{}, b.CIDRs...), "token_bound_cidrs": append([]string{}, b.CIDRs...),
	}); err != nil {
		return Login{}, fmt.Errorf("writing the role: %w", err)
	}
	// The tokens of this role are orphans, so they outlive the broker's own token. They can have only policies of scopes.
	if err := write("auth/token/roles/"+b.TokenRole, map[string]any{
		"orphan": true, "renewable": true, "token_type": "service", "token_no_default_policy": true,
		"allowed_policies_glob": []string{scopePolicies + "*"}, "token_explicit_max_ttl": (b.MaxTTL + carrierSpan).String(),
	}); err != nil {
		return Login{}, fmt.Errorf("writing the token role: %w", err)
	}
	for _, p := range b.Policies {
		if err := client.Sys().PutPolicyWithContext(ctx, p.Name, p.Text); err != nil {
			return Login{}, fmt.Errorf("writing the policies of scopes: %s: %w", p.Name, err)
		}
	}
	return b.login(ctx, client)
}

// client returns a client with the admin's token.
func (b Bootstrap) client(wrap func(http.RoundTripper) http.RoundTripper) (*api.Client, error) {
	// Use the transport without a guard: Vault answers some of these calls with a status that guard rejects.
	cfg := Config{Addr: b.Addr, CAFile: b.CAFile, Namespace: b.Namespace, Timeout: 30 * time.Second}
	transport, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	client, err := newClient(cfg, wrap(noRedirects{transport}))
	if err != nil {
		return nil, err
	}
	client.SetToken(b.Token)
	return client, nil
}

// clientAtActive returns a client whose calls the active node answers: another node may not have yet what the call before has written.
// It gives the client a token of limited uses, as [active] does, and leave ends that token. If the admin's token may not create one,
// the client has the admin's token.
func (b Bootstrap) clientAtActive(ctx context.Context) (client *api.Client, leave func(), err error) {
	if client, err = b.client(func(next http.RoundTripper) http.RoundTripper { return next }); err != nil {
		return nil, nil, err
	}
	if have, err := haveStandbys(ctx, client); err == nil && !have {
		return client, func() {}, nil
	}
	made, err := client.Auth().Token().CreateWithContext(ctx, &api.TokenCreateRequest{
		NumUses: activeUses, TTL: activeLife.String(), ExplicitMaxTTL: activeLife.String(), Renewable: new(bool), DisplayName: "brevet-bootstrap",
	})
	if err != nil || made == nil || made.Auth == nil {
		var answer *api.ResponseError
		if errors.As(err, &answer) && answer.StatusCode/100 == 4 {
			return client, func() {}, nil
		}
		return nil, nil, fmt.Errorf("creating a token for the active node: %w", cmp.Or(err, errNotUnderstood))
	}
	if client, err = b.client(func(next http.RoundTripper) http.RoundTripper { return patient{next} }); err != nil {
		return nil, nil, err
	}
	client.SetToken(made.Auth.ClientToken)
	return client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
		defer cancel()
		_ = client.Auth().Token().RevokeSelfWithContext(ctx, "") // else it expires
	}, nil
}

func (b Bootstrap) check() error {
	for _, name := range []string{b.SigningKey, b.Role, b.TokenRole} {
		if !keyName.MatchString(name) || !mountName.MatchString(b.Mount) {
			return fmt.Errorf("%w: the Transit mount, the key and the roles must be plain names", ErrConfig)
		}
	}
	// Vault lower-cases the names of policies. The token role may give out each policy of a scope, for longer than a login lives.
	if strings.ToLower(b.Role) != b.Role || b.Role == "default" || b.Role == "root" || strings.HasPrefix(b.Role, scopePolicies) {
		return fmt.Errorf("%w: %q cannot name the broker's AppRole and policy", ErrConfig, b.Role)
	}
	for _, p := range b.Policies {
		if !strings.HasPrefix(p.Name, scopePolicies) || strings.ContainsAny(p.Name, "*+/") || p.Text == "" {
			return fmt.Errorf("%w: %q is not the policy of a scope", ErrConfig, p.Name)
		}
		if !scopePolicy.MatchString(p.Text) {
			return fmt.Errorf("%w: %s is not in the form of a scope's policy", ErrConfig, p.Name)
		}
		for _, path := range policyPath.FindAllStringSubmatch(p.Text, -1) {
			if mayReach(path[1], b.Mount) {
				return fmt.Errorf("%w: %s may use the engine that signs tokens, through %q", ErrConfig, p.Name, path[1])
			}
		}
	}
	for app := range b.GitHubKeys {
		if !scopes.IsApp(app) {
			return fmt.Errorf("%w: %q cannot name a GitHub App: use lower-case letters, digits and inner dashes", ErrConfig, app)
		}
	}
	for _, cidr := range b.CIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return fmt.Errorf("%w: %q is not a network such as 10.1.0.0/16", ErrConfig, cidr)
		}
	}
	if b.SecretIDTTL < 0 || b.SecretIDTTL > 0 && b.SecretIDTTL < 2*longestLogin {
		return fmt.Errorf("%w: a secret id lives at least %s, because the broker logs in each hour", ErrConfig, 2*longestLogin)
	}
	return checkAddr(b.Addr)
}

// noRedirects turns a redirect into an error: the Vault client treats a redirect with a body as a success.
type noRedirects struct{ next http.RoundTripper }

func (n noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(req)
	if err == nil && resp.StatusCode/100 == 3 {
		_ = resp.Body.Close()
		return nil, &answerError{status: resp.StatusCode}
	}
	return resp, err
}

// patient repeats a request that is answered 403: a standby may not know the token yet.
type patient struct{ next http.RoundTripper }

func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	for _, pause := range freshPauses {
		again := req.Clone(req.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := p.next.RoundTrip(again)
		if err != nil || resp.StatusCode != http.StatusForbidden {
			return resp, err
		}
		_ = resp.Body.Close()
		wait.For(req.Context(), pause*time.Millisecond)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return p.next.RoundTrip(req)
}

// longestGrant is the longest life that a catalogue can grant. It bounds how long a stolen login of the broker could renew
// credentials.
const longestGrant = 24 * time.Hour

func (b Bootstrap) login(ctx context.Context, client *api.Client) (Login, error) {
	const doing = "reading the role's login"
	role, err := dataOf(client.Logical().ReadWithContext(ctx, "auth/approle/role/"+b.Role+"/role-id"))
	if err != nil {
		return Login{}, fmt.Errorf("%s: %w", doing, err)
	}
	earlier, err := b.secretIDs(ctx, client)
	if err != nil {
		return Login{}, err
	}
	secret, err := dataOf(client.Logical().WriteWithContext(ctx, "auth/approle/role/"+b.Role+"/secret-id", nil))
	if err != nil {
		return Login{}, fmt.Errorf("%s: %w", doing, err)
	}
	roleID, _ := role["role_id"].(string)
	secretID, _ := secret["secret_id"].(string)
	accessor, _ := secret["secret_id_accessor"].(string)
	life, _ := secret["secret_id_ttl"].(json.Number)
	seconds, lifeErr := life.Int64()
	if roleID == "" || secretID == "" || accessor == "" || lifeErr != nil {
		return Login{}, fmt.Errorf("%s: %w", doing, errNotUnderstood)
	}
	// Vault shortens the life to the longest lease of the mount and says so only here. The broker would stop in the middle of its term.
	if got := time.Duration(seconds) * time.Second; got != b.SecretIDTTL.Truncate(time.Second) {
		return Login{}, errors.Join(
			fmt.Errorf("%w: Vault gives the secret id %s, not %s: ask for less, or raise max_lease_ttl of auth/approle", ErrConfig, got, b.SecretIDTTL),
			b.destroy(ctx, client, accessor))
	}
	return Login{RoleID: roleID, SecretID: secretID, earlier: earlier}, nil
}

// secretIDs returns the accessors of the role's secret ids.
func (b Bootstrap) secretIDs(ctx context.Context, client *api.Client) ([]string, error) {
	const doing = "listing the secret ids of the role"
	found, err := client.Logical().ListWithContext(ctx, "auth/approle/role/"+b.Role+"/secret-id")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if found == nil { // there are none
		return nil, nil
	}
	var accessors []string
	list, _ := found.Data["keys"].([]any)
	for _, one := range list {
		accessor, ok := one.(string)
		if !ok {
			return nil, fmt.Errorf("%s: %w", doing, errNotUnderstood)
		}
		accessors = append(accessors, accessor)
	}
	return accessors, nil
}

func (b Bootstrap) destroy(ctx context.Context, client *api.Client, accessor string) error {
	_, err := client.Logical().WriteWithContext(ctx, "auth/approle/role/"+b.Role+"/secret-id-accessor/destroy", map[string]any{"secret_id_accessor": accessor})
	if err != nil {
		return fmt.Errorf("destroying a secret id: %w", err)
	}
	return nil
}

// DestroyEarlier destroys the secret ids that the role had before the given login, and returns their number. Call it when the
// login is where brokers read it. A broker keeps the token of an earlier secret id, and reads its file at the next login.
func (b Bootstrap) DestroyEarlier(ctx context.Context, login Login) (destroyed int, err error) {
	if len(login.earlier) == 0 {
		return 0, nil
	}
	client, leave, err := b.clientAtActive(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	left, err := b.secretIDs(ctx, client) // others may have expired, or may have been destroyed by hand
	if err != nil {
		return 0, err
	}
	for _, accessor := range left {
		if !slices.Contains(login.earlier, accessor) {
			continue
		}
		if err := b.destroy(ctx, client, accessor); err != nil {
			return destroyed, err
		}
		destroyed++
	}
	return destroyed, nil
}

// inUse treats "path is already in use" as success. If the mounted engine has the wrong type, the next step fails.
func inUse(err error) error {
	var answer *api.ResponseError
	if errors.As(err, &answer) && answer.StatusCode == http.StatusBadRequest &&
		strings.Contains(strings.Join(answer.Errors, " "), "path is already in use") {
		return nil
	}
	return err
}

//go:embed policy.hcl
var policyText string

// Policy returns the Vault policy with exactly the rights that the broker's login needs. It inserts the names of the Transit
// mount, of the signing key (the keys for EdDSA, RS256 and checkpoints are named after it), and of a role of the token store. If a
// name is not plain, the policy is empty and grants nothing: a * in a path would match many other paths.
func Policy(mount, key, tokenRole string) string {
	if !mountName.MatchString(mount) || !keyName.MatchString(key) || !keyName.MatchString(tokenRole) {
		return ""
	}
	return strings.NewReplacer("{{mount}}", mount, "{{key}}", key, "{{token_role}}", tokenRole).Replace(policyText)
}

// scopePolicies is the prefix of the names of scope policies, the only policies that the token role may assign.
const scopePolicies = "brevet-scope."

// scopePolicy matches every text that is allowed as a scope's policy, and policyPath finds the paths in it.
var (
	scopePolicy = regexp.MustCompile(`^(?:path "[A-Za-z0-9][A-Za-z0-9_.+*/-]*" \{[^{}"]*(?:"[a-z]+"[^{}"]*)+\}\s*)+$`)
	policyPath  = regexp.MustCompile(`(?m)^path "([^"]*)" \{`)
)

// mayReach reports whether a path of a policy could match anything below a mount. A + stands for any one segment, and a * at the
// end for any rest.
func mayReach(path, mount string) bool {
	segments := strings.Split(path, "/")
	for i, name := range strings.Split(mount, "/") {
		if i == len(segments) {
			return false
		}
		if rest, any := strings.CutSuffix(segments[i], "*"); any && i == len(segments)-1 {
			return strings.HasPrefix(name, rest) || strings.HasPrefix(rest, "+")
		}
		if segments[i] != name && segments[i] != "+" {
			return false
		}
	}
	return true
}
