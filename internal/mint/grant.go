package mint

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// abandonTimeout bounds the attempt to revoke a minted credential that is not delivered.
const abandonTimeout = 3 * time.Second

// mintGrant asks Vault to make a dynamic credential under a separate token. That token expires soon unless Renew is called.
func (m *Minter) mintGrant(ctx context.Context, intent broker.Intent) (broker.Credential, error) {
	if err := m.mintable(intent); err != nil {
		return broker.Credential{}, err
	}
	left := m.left(intent)
	wrapper, err := m.wrap(ctx, intent)
	if wrapper == nil {
		return broker.Credential{}, err
	}
	w := &wrapped{intent: intent, token: wrapper.ClientToken, lease: broker.VaultLease{Accessor: wrapper.Accessor}}
	w.whole = left <= int(broker.Unrenewed/time.Second) && wrapper.LeaseDuration >= left-renewSlack
	if err == nil {
		err = m.draw(ctx, w)
	}
	if err != nil {
		return broker.Credential{}, m.abandon(ctx, w, err)
	}
	if !intent.Grant.Leased {
		w.lease = broker.VaultLease{} // the token has made its only call, and nothing lives under it
	}
	return broker.Credential{
		Secret: secret.New(w.secret),
		Minted: &broker.Minted{
			VaultLease: w.lease, Name: w.name, Digest: w.digest, Until: intent.Expires, Whole: w.whole && !w.short, ShortLease: w.short,
		},
	}, nil
}

// wrapped is a credential that is being minted, with what is known of it so far.
type wrapped struct {
	intent broker.Intent
	token  string
	lease  broker.VaultLease
	// unseen means that Vault may have made something whose lease is unknown.
	unseen bool
	// whole means that the token lives until the credential expires, without renewal. short means that Renew has to renew the
	// lease too.
	whole, short bool
	mintedSecret
}

// mintable rejects an intent that could be carried out only in part.
func (m *Minter) mintable(intent broker.Intent) error {
	g := intent.Grant
	bare := intent.Kind == scopes.KindVaultToken
	switch {
	case intent.ID == "" || g.Policy == "":
		return fmt.Errorf("%w: the intent names no issuance or no policy", broker.ErrMintMismatch)
	case bare && g.Path == "" && g.Method == "" && g.Leased:
		return nil
	// The client would clean the path and request another one.
	case bare || g.Path == "" || path.Clean("/"+g.Path) != "/"+g.Path:
		return fmt.Errorf("%w: the path is not plain", broker.ErrMintMismatch)
	case mayReach(g.Path, m.cfg.Mount):
		return fmt.Errorf("%w: the path leads to the engine that signs tokens", broker.ErrMintMismatch)
	case g.Method != scopes.MethodRead && g.Method != scopes.MethodWrite:
		return fmt.Errorf("%w: the method is neither read nor write", broker.ErrMintMismatch)
	default:
		return nil
	}
}

// wrap creates the token that the credential will live under. If it returns both a token and an error, the caller must revoke the
// token.
func (m *Minter) wrap(ctx context.Context, intent broker.Intent) (*api.SecretAuth, error) {
	left := m.left(intent)
	if left < 1 || ctx.Err() != nil {
		return nil, fmt.Errorf("%w: there is no time left to mint", broker.ErrVaultUnavailable)
	}
	ttl := min(left, int(broker.Unrenewed/time.Second))
	uses := 0
	if !intent.Grant.Leased {
		uses = 1
	}
	answer, err := m.exchange(ctx, "creating a token", ownToken, func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, "auth/token/create/"+m.cfg.TokenRole, map[string]any{
			"policies": []string{intent.Grant.Policy}, "no_default_policy": true,
			"display_name": intent.ID, "meta": map[string]string{"issuance": intent.ID},
			"ttl": seconds(ttl), "explicit_max_ttl": seconds(left), "renewable": uses == 0, "num_uses": uses,
		})
	})
	var known broker.VaultLease
	if err == nil && answer != nil && answer.Auth != nil {
		known.Accessor = answer.Auth.Accessor
	}
	switch {
	case err != nil && nothingDone(err):
		return nil, err
	case err != nil:
		return nil, &broker.Lost{Err: err}
	case known.Accessor == "" || answer.Auth.ClientToken == "":
		return nil, &broker.Lost{VaultLease: known, Err: unavailable("creating a token", errNotUnderstood)}
	}
	return answer.Auth, checkWrapper(answer.Auth, intent.Grant.Policy, ttl, uses)
}

// checkWrapper checks a new token against the order (I7 in SECURITY.md).
func checkWrapper(auth *api.SecretAuth, policy string, ttl, uses int) error {
	only := []string{policy}
	switch {
	case !auth.Orphan:
		return fmt.Errorf("%w: the token is not an orphan, which its role has to make it", broker.ErrMintMismatch)
	case !slices.Equal(auth.Policies, only), auth.TokenPolicies != nil && !slices.Equal(auth.TokenPolicies, only):
		return fmt.Errorf("%w: the token has other policies", broker.ErrMintMismatch)
	case len(auth.IdentityPolicies) > 0 || auth.EntityID != "":
		return fmt.Errorf("%w: the token has an identity of its own", broker.ErrMintMismatch)
	case auth.LeaseDuration < 1 || auth.LeaseDuration > ttl:
		return fmt.Errorf("%w: the token lives %d s without being renewed, want %d s at most", broker.ErrMintMismatch, auth.LeaseDuration, ttl)
	case auth.Renewable != (uses == 0):
		return fmt.Errorf("%w: the token's being renewable is %t", broker.ErrMintMismatch, auth.Renewable)
	}
	return nil
}

// draw makes one call to Vault with the wrapper's token, and takes the credential out of the answer.
func (m *Minter) draw(ctx context.Context, w *wrapped) error {
	if w.intent.Kind == scopes.KindVaultToken {
		var err error
		w.mintedSecret, err = tokenOf(w)
		return err
	}
	const doing = "reading the credential"
	data, err := m.dataFor(w.intent)
	if err != nil {
		return err
	}
	// Copy a client that is never used itself: it can be copied while other goroutines are at work.
	client := m.childClient.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = w.token })
	answer, err := m.exchange(ctx, doing, wrapperToken, func(ctx context.Context) (*api.Secret, error) {
		if w.intent.Grant.Method == scopes.MethodRead {
			return client.Logical().ReadWithContext(ctx, w.intent.Grant.Path)
		}
		return client.Logical().WriteWithContext(ctx, w.intent.Grant.Path, data)
	})
	if unmounted(err) {
		return fmt.Errorf("%s: %w", doing, &broker.NotMounted{Mount: engineOf(w.intent)})
	}
	// The client accepts any JSON as data, but every answer of Vault has an id.
	if err == nil && (answer == nil || answer.RequestID == "" || len(answer.Data) == 0) {
		err = unavailable(doing, errNotUnderstood)
	}
	if answer != nil && answer.RequestID != "" && ofOrder(w.intent, answer) { // a lease of something else is not ours to revoke
		w.lease.Lease, w.short = answer.LeaseID, m.shortLease(w.intent, answer)
	}
	if err == nil {
		w.mintedSecret, err = decode(w.intent, answer)
	}
	if says(err, "leased credentials were immediately revoked") {
		w.unseen = true
		return fmt.Errorf("%w: it has a lease, and was to have none", broker.ErrMintMismatch)
	}
	w.unseen = w.intent.Grant.Leased && w.lease.Lease == "" && errors.Is(err, broker.ErrVaultUnavailable)
	return err
}

// dataFor returns the body of the request: the data of the scope, and the expiry.
func (m *Minter) dataFor(intent broker.Intent) (map[string]any, error) {
	left := m.left(intent)
	if left < 1 {
		return nil, fmt.Errorf("%w: there is no time left to mint", broker.ErrVaultUnavailable)
	}
	data := map[string]any{}
	for name, value := range maps.All(intent.Grant.Data) {
		data[name] = value
	}
	switch intent.Kind {
	case scopes.KindPKI:
		data["not_after"] = intent.Expires.UTC().Format(time.RFC3339)
	case scopes.KindSSH:
		data["ttl"] = seconds(left)
	}
	return data, nil
}

// abandon revokes a credential that will not be delivered, even if the caller is gone. It returns the cause, as a *broker.Lost
// unless Vault has confirmed that nothing is alive.
func (m *Minter) abandon(ctx context.Context, w *wrapped, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	err := m.Revoke(ctx, w.lease)
	for err != nil && wait.For(ctx, 50*time.Millisecond) {
		err = m.Revoke(ctx, w.lease) // Vault revokes a token after its last call asynchronously
	}
	if err != nil || w.unseen {
		return &broker.Lost{VaultLease: w.lease, Err: cause}
	}
	return cause
}

// left returns how many whole seconds the credential may still live.
func (m *Minter) left(intent broker.Intent) int {
	return int(intent.Expires.Sub(m.cfg.Now()) / time.Second)
}

func seconds(n int) string { return strconv.Itoa(n) + "s" }

// bearer says whose token a call carries. That decides what a 403 means.
type bearer int

const (
	ownToken     bearer = iota // the broker's: a 403 means that its login is no longer good
	wrapperToken               // one credential's: a 403 means that its policy is not in Vault
)

// exchange makes one call to Vault within the timeout. Unlike call, it does not record Vault's health: the system behind an
// engine may be down, or a scope misconfigured, while everything else works.
func (m *Minter) exchange(
	ctx context.Context, doing string, whose bearer, do func(context.Context) (*api.Secret, error),
) (*api.Secret, error) {
	login := m.logins.Load()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	answer, err := do(bounded)
	if err == nil {
		return answer, nil
	}
	status := statusOf(err)
	if refuses(status) || (status == http.StatusForbidden && whose == wrapperToken) {
		return nil, refusedBy(doing, err)
	}
	if status == http.StatusForbidden {
		m.loginRefused(login)
	}
	return nil, unavailable(doing, err)
}

// loginRefused makes Run log in again, unless Run has done so since the refused call began.
func (m *Minter) loginRefused(login int64) {
	if login != m.logins.Load() {
		return
	}
	select {
	case m.refused <- struct{}{}:
	default: // already asked for
	}
}

// statusOf returns the status of an error answer, and 0 if the error is not an answer.
func statusOf(err error) int {
	var answer *answerError
	if errors.As(err, &answer) {
		return answer.status
	}
	return 0
}

// refuses reports whether Vault will give the same answer until its configuration changes. It leaves a 403 to the caller. A
// status that means "later" or "elsewhere" is not a refusal.
func refuses(status int) bool {
	switch status {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusPreconditionFailed:
		return false
	case 472, 473: // standbys of Vault Enterprise
		return false
	default:
		return status/100 == 4
	}
}

func refusedBy(doing string, err error) error {
	var answer *answerError
	errors.As(err, &answer)
	return fmt.Errorf("%w: %s: %w", broker.ErrVaultRefused, doing, answer)
}

// unmounted reports whether Vault answered that no engine is mounted at the path.
func unmounted(err error) bool { return says(err, "no handler for route") }

// engineOf returns the mount that an intent's credential comes from. For the kinds whose path Brevet builds from mount, verb and
// role, the scope names the mount. For other kinds it returns the whole path, because only Vault knows which part of it is the
// mount.
func engineOf(intent broker.Intent) string {
	switch intent.Kind {
	case scopes.KindDatabase, scopes.KindPKI, scopes.KindSSH:
		return path.Dir(path.Dir(intent.Grant.Path))
	default:
		return intent.Grant.Path
	}
}

// nothingDone reports whether a failed call certainly made nothing: Vault refused it, or was never reached.
func nothingDone(err error) bool {
	var network *net.OpError
	var untrusted *tls.CertificateVerificationError
	return statusOf(err)/100 == 4 || (errors.As(err, &network) && network.Op == "dial") || errors.As(err, &untrusted)
}

// mintedSecret is a credential in the form that the caller gets, with the parts that the record keeps.
type mintedSecret struct {
	secret string // a JSON object
	name   string
	digest [32]byte
}

// decode takes a credential out of Vault's answer and checks it against the intent (I7 in SECURITY.md).
func decode(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	switch leased := answer.LeaseID != ""; {
	case leased && !ofOrder(intent, answer):
		return mintedSecret{}, fmt.Errorf("%w: its lease is of something else", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased && intent.Kind == scopes.KindPKI:
		return mintedSecret{}, fmt.Errorf("%w: the certificate has no lease: its role needs generate_lease=true", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased:
		return mintedSecret{}, fmt.Errorf("%w: it has no lease, so that nobody could end it", broker.ErrMintMismatch)
	case leased && !intent.Grant.Leased:
		return mintedSecret{}, fmt.Errorf("%w: it has a lease, and was to have none", broker.ErrMintMismatch)
	}
	switch intent.Kind {
	case scopes.KindDatabase:
		return databaseOf(answer)
	case scopes.KindPKI:
		return certificateOf(intent, answer)
	case scopes.KindSSH:
		return sshOf(intent, answer)
	case scopes.KindKV:
		return storedOf(answer)
	case scopes.KindVault:
		return anyOf(intent, answer)
	default:
		return mintedSecret{}, fmt.Errorf("%w: nobody here makes what the intent asks for", broker.ErrMintMismatch)
	}
}

// ofOrder reports whether a lease belongs to the requested path: Vault names a lease after its path.
func ofOrder(intent broker.Intent, answer *api.Secret) bool {
	return strings.HasPrefix(answer.LeaseID, intent.Grant.Path+"/")
}

// read decodes the members of an answer that T names.
func read[T any](answer *api.Secret) (T, error) {
	var out T
	raw, err := json.Marshal(answer.Data)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		// The parser's text could repeat a part of the secret.
		return out, unavailable("reading the credential", errNotUnderstood)
	}
	return out, nil
}

// handOver encodes a credential as the JSON that the caller gets.
func handOver(object any, name string, digest [32]byte) (mintedSecret, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return mintedSecret{}, unavailable("reading the credential", errNotUnderstood)
	}
	return mintedSecret{secret: string(text), name: name, digest: digest}, nil
}

func tokenOf(w *wrapped) (mintedSecret, error) {
	// Vault puts "token-" in front of a token's display name.
	return handOver(struct {
		Token    string `json:"token"`
		Accessor string `json:"accessor"`
	}{w.token, w.lease.Accessor}, "token-"+w.intent.ID, sha256.Sum256([]byte(w.token)))
}

type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

func databaseOf(answer *api.Secret) (mintedSecret, error) {
	made, err := read[login](answer)
	if err != nil {
		return mintedSecret{}, err
	}
	if made.Username == "" || made.Password == "" {
		return mintedSecret{}, fmt.Errorf("%w: the login has no username or no password", broker.ErrMintMismatch)
	}
	return handOver(made, made.Username, sha256.Sum256([]byte(made.Password)))
}

// storedOf returns a secret that somebody stored, with its version if the engine keeps versions. It sets no digest, because the
// secret could be guessed from it.
func storedOf(answer *api.Secret) (mintedSecret, error) {
	out := struct {
		Data    map[string]any `json:"data"`
		Version json.Number    `json:"version,omitempty"`
	}{Data: answer.Data}
	inner, isMap := answer.Data["data"].(map[string]any)
	metadata, described := answer.Data["metadata"].(map[string]any)
	version, numbered := metadata["version"].(json.Number)
	name := ""
	if isMap && described && numbered && len(answer.Data) == 2 {
		out.Data, out.Version, name = inner, version, "version "+version.String()
	}
	return handOver(out, name, [32]byte{})
}

// anyOf returns the answer of an arbitrary engine. The credential's name in the target system is the first of the usual members
// that is present.
func anyOf(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	name := path.Base(answer.LeaseID)
	if answer.LeaseID == "" {
		name = ""
	}
	if known := firstText(answer.Data, "username", "access_key", "client_id"); known != "" {
		name = known
	}
	object := struct {
		Data map[string]any `json:"data"`
	}{answer.Data}
	var digest [32]byte
	if !intent.Grant.Static {
		digest = digestOf(answer.Data)
	}
	return handOver(object, name, digest)
}

// digestOf returns the digest of the secret member, so that somebody who finds the secret can look it up. If no known member is
// present, it returns the digest of the whole data.
func digestOf(data map[string]any) [32]byte {
	text := firstText(data, "password", "secret_key", "client_secret", "private_key_data", "private_key", "token")
	if text == "" {
		all, _ := json.Marshal(data) // it has come from JSON
		text = string(all)
	}
	return sha256.Sum256([]byte(text))
}

func firstText(data map[string]any, names ...string) string {
	for _, name := range names {
		if text, _ := data[name].(string); text != "" {
			return text
		}
	}
	return ""
}
