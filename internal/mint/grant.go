package mint

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// abandonTimeout bounds the attempt to revoke a minted credential that is not delivered.
const abandonTimeout = 3 * time.Second

// mintGrant asks Vault to make a dynamic credential under a separate token. That token expires soon unless Renew is called.
func (m *Minter) mintGrant(ctx context.Context, intent broker.Intent) (broker.Credential, error) {
	// Reject an intent that is incomplete, or that would make Vault do something else.
	g, bare, refused := intent.Grant, intent.Kind == scopes.KindVaultToken, ""
	switch {
	case intent.ID == "" || g.Policy == "":
		refused = "the intent names no issuance or no policy"
	case bare && g.Path == "" && g.Method == "" && g.Leased: // a token needs no call

	// The Vault client cleans a path, so it would send the request to another one.
	case bare || g.Path == "" || path.Clean("/"+g.Path) != "/"+g.Path:
		refused = "the path is not plain"
	case mayReach(g.Path, m.cfg.Mount):
		refused = "the path leads to the engine that signs tokens"
	case g.Method != scopes.MethodRead && g.Method != scopes.MethodWrite:
		refused = "the method is neither read nor write"
	}
	if refused != "" {
		return broker.Credential{}, fmt.Errorf("%w: %s", broker.ErrMintMismatch, refused)
	}
	if err := m.certain(ctx); err != nil {
		return broker.Credential{}, err
	}
	if have, lasts := m.carrier(ctx, intent); have.token != "" {
		w := &wrapped{intent: intent, token: have.token, made: have.made, carried: lasts}
		err := m.draw(ctx, w)
		if err == nil {
			return w.credential(), nil
		}
		if !m.carriers.lose(g.Policy, have.token, err) {
			return broker.Credential{}, m.abandon(ctx, w, err)
		}
		// Vault does not know the token any more, or its policy. A wrapper token shows which.
	}
	if err := ctx.Err(); err != nil { // waiting for a carrier took too long, and no mint was sent
		return broker.Credential{}, unavailable("minting", err)
	}
	left := m.left(intent.Expires)
	wrapper, err := m.wrap(ctx, intent)
	if wrapper == nil {
		return broker.Credential{}, err
	}
	w := &wrapped{intent: intent, token: wrapper.ClientToken, made: m.cfg.Now(), lease: broker.VaultLease{Accessor: wrapper.Accessor}}
	w.whole = left <= int(broker.UnrenewedLife/time.Second) && wrapper.LeaseDuration >= left-renewSlack
	switch {
	case err != nil:
	case intent.Kind == scopes.KindGitHub:
		err = m.drawGitHub(ctx, w)
	default:
		err = m.draw(ctx, w)
	}
	if err != nil {
		return broker.Credential{}, m.abandon(ctx, w, err)
	}
	if !intent.Grant.Leased {
		// The token is of no further use: it has made its only call, or it has a lease that ends nothing and that Vault drops with it.
		w.lease = broker.VaultLease{}
	}
	return w.credential(), nil
}

// wrapped is a credential that is being minted, with what is known of it so far. Its token is not a wrapping token of Vault, but
// an ordinary token that draw uses to get the credential.
type wrapped struct {
	intent broker.Intent
	token  string
	made   time.Time // the token
	// carried is set if the token is a carrier: the seconds for which a login is expected to last without renewal. The lease has no
	// accessor.
	carried int
	lease   broker.VaultLease
	// unseen means that Vault may have made something whose lease is unknown.
	unseen bool
	// whole means that the token lives until the credential expires, without renewal. short means that Renew has to renew the
	// lease too.
	whole, short bool
	mintedSecret
}

func (w *wrapped) credential() broker.Credential {
	return broker.Credential{
		Secret: secret.New(w.secret),
		Minted: &broker.Minted{
			VaultLease: w.lease, Name: w.name, Digest: w.digest, Until: w.intent.Expires, Whole: w.whole && !w.short, ShortLease: w.short,
		},
	}
}

// wrap creates the token that draw uses to get the credential, and that owns its lease, if any. If it returns both a token and an
// error, the caller must revoke the token.
func (m *Minter) wrap(ctx context.Context, intent broker.Intent) (*api.SecretAuth, error) {
	left := m.left(intent.Expires)
	if left < 1 || ctx.Err() != nil {
		return nil, fmt.Errorf("%w: there is no time left to mint", broker.ErrVaultUnavailable)
	}
	ttl := min(left, int(broker.UnrenewedLife/time.Second))
	uses := 0
	if once(intent) {
		uses = 1
	}
	answer, err := m.exchange(ctx, "creating a token", m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, "auth/token/create/"+m.cfg.TokenRole, map[string]any{
			"policies": []string{intent.Grant.Policy}, "no_default_policy": true,
			"display_name": intent.ID, "meta": map[string]string{"issuance": intent.ID},
			"ttl": seconds(ttl), "explicit_max_ttl": seconds(left), "renewable": uses == 0, "num_uses": uses,
		})
	})
	if err != nil {
		if statusOf(err)/100 == 4 || unsent(err) { // Vault made nothing
			return nil, err
		}
		return nil, &broker.LostMintError{Err: err}
	}
	auth := &api.SecretAuth{}
	if answer != nil && answer.Auth != nil {
		auth = answer.Auth
	}
	if auth.Accessor == "" || auth.ClientToken == "" {
		return nil, &broker.LostMintError{VaultLease: broker.VaultLease{Accessor: auth.Accessor}, Err: unavailable("creating a token", errNotUnderstood)}
	}
	return auth, checkToken(auth, intent.Grant.Policy, ttl, uses == 0)
}

// checkToken compares a new token with the order (I7 in SECURITY.md).
func checkToken(auth *api.SecretAuth, policy string, ttl int, renewable bool) error {
	only := []string{policy}
	switch {
	case !auth.Orphan:
		return fmt.Errorf("%w: the token is not an orphan: its role must set orphan=true", broker.ErrMintMismatch)
	case !slices.Equal(auth.Policies, only), auth.TokenPolicies != nil && !slices.Equal(auth.TokenPolicies, only):
		return fmt.Errorf("%w: the token has other policies", broker.ErrMintMismatch)
	case len(auth.IdentityPolicies) > 0 || auth.EntityID != "":
		return fmt.Errorf("%w: the token has an identity of its own", broker.ErrMintMismatch)
	case auth.LeaseDuration < 1 || auth.LeaseDuration > ttl:
		return fmt.Errorf("%w: the token lives %d s without being renewed, want %d s at most", broker.ErrMintMismatch, auth.LeaseDuration, ttl)
	case auth.Renewable != renewable:
		return fmt.Errorf("%w: the token has renewable=%t, want %t", broker.ErrMintMismatch, auth.Renewable, renewable)
	}
	return nil
}

// unsent reports whether Vault never received a call, because there was no connection.
func unsent(err error) bool {
	network, failed := errors.AsType[*net.OpError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return failed && network.Op == "dial" || untrusted
}

// once reports whether the token that calls Vault is good for one call. Vault refuses a lease to a token that has no call left.
func once(intent broker.Intent) bool { return !intent.Grant.Leased && !irrevocable(intent) }

// draw makes one call to Vault with the new token, and reads the credential from the answer. For kind vault-token it makes no
// call: the new token is the credential.
func (m *Minter) draw(ctx context.Context, w *wrapped) error {
	if w.intent.Kind == scopes.KindVaultToken {
		var err error
		w.mintedSecret, err = handOver(struct {
			Token    string `json:"token"`
			Accessor string `json:"accessor"`
		}{w.token, w.lease.Accessor}, "token-"+w.intent.ID, sha256.Sum256([]byte(w.token))) // Vault adds "token-" to a token's display name
		return err
	}
	const doing = "reading the credential"
	left := m.left(w.intent.Expires)
	if left < 1 {
		return fmt.Errorf("%w: there is no time left to mint", broker.ErrVaultUnavailable)
	}
	data := map[string]any{}
	for name, value := range w.intent.Grant.Data {
		data[name] = value
	}
	switch w.intent.Kind {
	case scopes.KindPKI:
		data["not_after"] = w.intent.Expires.UTC().Format(time.RFC3339)
	case scopes.KindSSH:
		data["ttl"] = seconds(left)
	case scopes.KindVault:
		if irrevocable(w.intent) {
			data["ttl"] = seconds(lifetime(w.intent, left))
		}
	}
	// Copy childClient, which sends no calls itself, so that copying it is safe while other goroutines do the same.
	client := m.childClient.WithRequestCallbacks(func(r *api.Request) {
		r.ClientToken = w.token
		// Vault's audit log shows this header. Unlike the display name of a wrapper token, that of a carrier does not name the issuance.
		r.Headers.Set("X-Correlation-Id", w.intent.ID)
	})
	asked := m.cfg.Now()
	answer, err := m.exchange(ctx, doing, bearer{wrapperToken, w.made}, func(ctx context.Context) (*api.Secret, error) {
		if w.intent.Grant.Method == scopes.MethodRead {
			return client.Logical().ReadWithContext(ctx, w.intent.Grant.Path)
		}
		return client.Logical().WriteWithContext(ctx, w.intent.Grant.Path, data)
	})
	if unmounted(err) {
		mount := w.intent.Grant.Path // only Vault knows which part of it is the mount
		switch w.intent.Kind {
		case scopes.KindDatabase, scopes.KindPKI, scopes.KindSSH: // Brevet builds their paths from mount, verb and role
			mount = path.Dir(path.Dir(mount))
		}
		return fmt.Errorf("%s: %w", doing, &broker.NotMountedError{Mount: mount})
	}
	// The Vault client accepts any JSON object as an answer, but each answer of Vault has a request_id.
	if err == nil && (answer == nil || answer.RequestID == "" || len(answer.Data) == 0) {
		err = unavailable(doing, errNotUnderstood)
	}
	if answer != nil && answer.RequestID != "" && ofOrder(w.intent, answer) { // a lease of something else is not ours to revoke
		w.lease.Lease = answer.LeaseID
		// Renew the lease too if it is renewable and shorter than the credential. A longer lease ends with the token.
		w.short = answer.LeaseID != "" && answer.Renewable && answer.LeaseDuration < m.left(w.intent.Expires)-renewSlack
	}
	if err == nil {
		w.mintedSecret, err = decode(w.intent, answer)
	}
	if err == nil {
		err = checkFarSide(w.intent, answer, left)
	}
	if w.intent.Kind == scopes.KindDatabase && err == nil {
		m.carriers.learn(w.intent.Grant.Path, answer, m.cfg.Now().Sub(asked))
	}
	if w.carried > 0 {
		err = w.checkCarried(answer, min(left, int(broker.UnrenewedLife/time.Second)), err)
	}
	if says(err, "leased credentials were immediately revoked") {
		w.unseen = true
		return fmt.Errorf("%w: it has a lease, and was to have none", broker.ErrMintMismatch)
	}
	w.unseen = w.unseen || w.intent.Grant.Leased && w.lease.Lease == "" && errors.Is(err, broker.ErrVaultUnavailable) && !unsent(err)
	if irrevocable(w.intent) { // no lease shows whether the other system has made something
		w.unseen = err != nil && (answer != nil || errors.Is(err, broker.ErrVaultUnavailable) || lostByVault(err))
	}
	return err
}

// checkCarried adds to what is known of a login that has no token of its own: err is what is known so far. longest is the number of
// seconds for which the login may last.
func (w *wrapped) checkCarried(answer *api.Secret, longest int, err error) error {
	w.unseen = answer != nil && w.lease.Lease == ""
	if err != nil {
		return err
	}
	if answer.LeaseDuration < 1 || answer.LeaseDuration > longest || !answer.Renewable {
		return fmt.Errorf("%w: its lease lasts %d s (want %d s at most) and is renewable: %t. Logins of this role lasted %d s before, and were renewable",
			broker.ErrVaultRefused, answer.LeaseDuration, longest, answer.Renewable, w.carried)
	}
	w.whole, w.short = !w.short, false
	return nil
}

// abandon revokes a credential that will not be delivered, even if the caller is gone. If Vault confirms that neither the lease
// nor the token exists any more, abandon returns cause. Otherwise it returns cause in a *broker.LostMintError.
func (m *Minter) abandon(ctx context.Context, w *wrapped, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	err := m.retryRevoke(ctx, w.lease) // after the last use of a token, Vault revokes it asynchronously
	if err != nil || w.unseen {
		lost := &broker.LostMintError{VaultLease: w.lease, Err: cause}
		if mayLive, ok := errors.AsType[*broker.MayLiveError](err); ok {
			lost.Until = mayLive.Until
		}
		return lost
	}
	return cause
}

// left returns the number of whole seconds until a time.
func (m *Minter) left(until time.Time) int { return int(until.Sub(m.cfg.Now()) / time.Second) }

func seconds(n int) string { return strconv.Itoa(n) + "s" }

// bearer is the token that a call carries, and since when there is that token. Together they say what a 403 means.
type bearer struct {
	whose
	since time.Time
}

type whose int

const (
	ownToken     whose = iota // the broker's: a 403 means that its login is no longer good
	wrapperToken              // one credential's: a 403 means that its policy is not in Vault
	limitedToken              // see active: a 403 means that the token is used up, or that its policy is not in Vault
)

// own is the broker's own token.
func (m *Minter) own() bearer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bearer{ownToken, m.entered}
}

// exchange makes one call to Vault within the timeout. Unlike call, it does not record Vault's health: the system behind an
// engine may be down, or a scope misconfigured, while everything else works.
func (m *Minter) exchange(
	ctx context.Context, doing string, of bearer, do func(context.Context) (*api.Secret, error),
) (answer *api.Secret, err error) {
	login := m.logins.Load()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	err = m.patiently(bounded, of.since, func() error {
		answer, err = do(bounded)
		return err
	})
	if err == nil {
		return answer, nil
	}
	status := statusOf(err)
	if status/100 == 3 || status/100 == 5 {
		m.active.doubtful.Store(true)
	}
	if refuses(status) || (status == http.StatusForbidden && of.whose == wrapperToken) {
		answer, _ := errors.AsType[*answerError](err) // the status comes from it
		return nil, fmt.Errorf("%w: %s: %w", broker.ErrVaultRefused, doing, answer)
	}
	if status == http.StatusForbidden && of.whose == ownToken {
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
		return mintedSecret{}, fmt.Errorf("%w: its lease belongs to another path", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased && intent.Kind == scopes.KindPKI:
		return mintedSecret{}, fmt.Errorf("%w: the certificate has no lease: its role needs generate_lease=true", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased:
		return mintedSecret{}, fmt.Errorf("%w: it has no lease, so that nobody could end it", broker.ErrMintMismatch)
	case leased && !intent.Grant.Leased && !irrevocable(intent):
		return mintedSecret{}, fmt.Errorf("%w: it has a lease, and was to have none", broker.ErrMintMismatch)
	}
	switch intent.Kind {
	case scopes.KindPKI:
		return certificateOf(intent, answer)
	case scopes.KindSSH:
		return sshOf(intent, answer)

	case scopes.KindDatabase:
		made, err := read[struct {
			Username string `json:"username"`
			Password string `json:"password"`
		}](answer.Data)
		if err != nil {
			return mintedSecret{}, err
		}
		if made.Username == "" || made.Password == "" {
			return mintedSecret{}, fmt.Errorf("%w: the login has no username or no password", broker.ErrMintMismatch)
		}
		return handOver(made, made.Username, sha256.Sum256([]byte(made.Password)))

	// A secret that somebody stored, with its version if the engine keeps versions. It has no digest: with one, somebody could
	// check guesses of a weak secret.
	case scopes.KindKV:
		inner, isMap := answer.Data["data"].(map[string]any)
		metadata, described := answer.Data["metadata"].(map[string]any)
		version, numbered := metadata["version"].(json.Number)
		if isMap && described && numbered && len(answer.Data) == 2 {
			return handOver(map[string]any{"data": inner, "version": version}, "version "+version.String(), [32]byte{})
		}
		return handOver(map[string]any{"data": answer.Data}, "", [32]byte{})

	// The answer of an arbitrary engine. The credential's name is the first of the usual members for a name that is present, or
	// else the last part of the lease id. The digest is that of the first usual member for a secret, so that somebody who finds
	// the secret can look it up. If there is none, the digest is that of all data.
	case scopes.KindVault:
		name := firstText(answer.Data, "username", "access_key", "client_id", "service_account_name")
		if name == "" && answer.LeaseID != "" {
			name = path.Base(answer.LeaseID)
		}
		var digest [32]byte
		if !intent.Grant.Static {
			text := firstText(answer.Data, "password", "secret_key", "client_secret", "private_key_data", "private_key", "token", "service_account_token")
			if text == "" {
				all, _ := json.Marshal(answer.Data) // it has come from JSON
				text = string(all)
			}
			digest = sha256.Sum256([]byte(text))
		}
		return handOver(map[string]any{"data": answer.Data}, name, digest)

	default:
		return mintedSecret{}, fmt.Errorf("%w: the intent has an unknown kind", broker.ErrMintMismatch)
	}
}

// ofOrder reports whether a lease belongs to the requested path: Vault names a lease after its path.
func ofOrder(intent broker.Intent, answer *api.Secret) bool {
	return strings.HasPrefix(answer.LeaseID, intent.Grant.Path+"/")
}

// read decodes the members of an answer that T names.
func read[T any](data map[string]any) (T, error) {
	var out T
	raw, err := json.Marshal(data)
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

func firstText(data map[string]any, names ...string) string {
	for _, name := range names {
		if text, _ := data[name].(string); text != "" {
			return text
		}
	}
	return ""
}
