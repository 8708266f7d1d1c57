package mint

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/hashicorp/vault/api"
)

const (
	// probeLife is how long the token of a check lives if Vault does not revoke it.
	probeLife = 5 * time.Second
	// probePolicies is how many policies one token has. Vault's answer repeats their names, and its size is bounded.
	probePolicies = 1000
)

// MissingPolicies implements [broker.Minter]. It creates a token as for credentials, which nobody uses: Vault warns about each policy that
// does not exist. Without other rights, the broker can learn this in no other way.
func (m *Minter) MissingPolicies(ctx context.Context, names []string) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	for some := range slices.Chunk(names, probePolicies) {
		found, err := m.probe(ctx, some)
		if err != nil {
			return nil, err
		}
		missing = append(missing, found...)
	}
	return missing, nil
}

func (m *Minter) probe(ctx context.Context, names []string) (missing []string, err error) {
	const doing = "checking the policies of scopes"
	life := seconds(int(probeLife / time.Second))
	answer, err := m.exchange(ctx, doing, m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, "auth/token/create/"+m.cfg.TokenRole, map[string]any{
			"policies": names, "no_default_policy": true, "display_name": "brevet-check",
			"ttl": life, "explicit_max_ttl": life, "renewable": false, "num_uses": 1,
		})
	})
	if errors.Is(err, broker.ErrVaultRefused) { // the token role is missing, or does not allow all of the policies
		m.cfg.Log.WarnContext(ctx, "vault creates no token with the policies of scopes", "error", err)
		return names, nil
	}
	if err != nil {
		return nil, err
	}
	if answer == nil || answer.Auth == nil || answer.Auth.Accessor == "" {
		return nil, unavailable(doing, errNotUnderstood)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if err := m.Revoke(ending, broker.VaultLease{Accessor: answer.Auth.Accessor}); err != nil {
		m.cfg.Log.WarnContext(ctx, "token of a check not revoked: it expires by itself", "seconds", int(probeLife/time.Second), "error", err)
	}
	for _, name := range names {
		warned := slices.ContainsFunc(answer.Warnings, func(w string) bool { return strings.Contains(w, strconv.Quote(name)) })
		if warned || !slices.Contains(answer.Auth.Policies, name) {
			missing = append(missing, name)
		}
	}
	return missing, nil
}
