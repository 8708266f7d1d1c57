package mint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
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
	// whole means that the token lives to the end without renewal. short means that the lease has to be renewed with the token.
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

// checkWrapper checks a new token against the order (I7).
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
