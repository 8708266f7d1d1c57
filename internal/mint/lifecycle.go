package mint

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/broker"
	"github.com/hashicorp/vault/api"
)

// renewSlack is the number of seconds by which a renewal may fall short of the requested time: Vault counts whole seconds, from
// when the call reaches it.
const renewSlack = 2

// Renew extends a credential until minted.Until: its token, and with it the lease, or only the lease if that hangs on a carrier. See
// broker.Minter.
func (m *Minter) Renew(ctx context.Context, minted broker.Minted) error {
	switch {
	case minted.Empty() || minted.Whole:
		return nil // there is nothing to renew, or it already lives long enough
	case minted.Accessor == "":
		return m.renewLease(ctx, minted)
	}
	const doing = "renewing the token"
	wanted := max(1, m.left(minted.Until)) // to Vault, zero means the default
	answer, err := m.write(ctx, doing, "auth/token/renew-accessor", map[string]any{
		"accessor": minted.Accessor, "increment": wanted,
	})
	if err != nil {
		return err
	}
	if answer == nil || answer.Auth == nil || answer.Auth.LeaseDuration == 0 {
		return unavailable(doing, errNotUnderstood)
	}
	got := renewal{"token", "the limits of its role or of Vault are", answer.Auth.LeaseDuration}
	if err := got.check(wanted, m.left(minted.Until)); err != nil {
		return err
	}
	if minted.ShortLease {
		return m.renewLease(ctx, minted)
	}
	return nil
}

func (m *Minter) renewLease(ctx context.Context, minted broker.Minted) error {
	const doing = "renewing the lease"
	wanted := max(1, m.left(minted.Until))
	answer, err := m.write(ctx, doing, "sys/leases/renew", map[string]any{"lease_id": minted.Lease, "increment": wanted})
	if err != nil {
		return err
	}
	if answer == nil || answer.LeaseID != minted.Lease {
		return unavailable(doing, errNotUnderstood)
	}
	got := answer.LeaseDuration
	if minted.Accessor != "" { // the lease ends with its token
		got = min(got, wanted)
	}
	return renewal{"lease", "the max_ttl of its role is", got}.check(wanted, m.left(minted.Until))
}

// renewal is what Vault gave: of what, by which limits, and for how many seconds.
type renewal struct {
	what, limits string
	got          int
}

// check compares a renewal with the requested seconds, and with those that are left after the call: Vault may have taken long.
func (r renewal) check(wanted, left int) error {
	switch {
	case r.got > wanted:
		return fmt.Errorf("%w: the %s was renewed for %d s, want %d s at most", broker.ErrMintMismatch, r.what, r.got, wanted)
	case r.got < min(wanted, left)-renewSlack:
		return fmt.Errorf("%w: the %s was renewed for %d s of %d: %s too short", broker.ErrVaultRefused, r.what, r.got, wanted, r.limits)
	}
	return nil
}

// Revoke ends the lease and then the token. With sync, Vault answers only after the target system has ended the credential. If
// Vault cannot revoke the lease, Revoke keeps the token, so that a later call can try again. See broker.Minter.
func (m *Minter) Revoke(ctx context.Context, h broker.VaultLease) error {
	if isGitHub(h.Lease) {
		if err := m.endGitHub(ctx, h.Lease); err != nil {
			return err
		}
	} else if h.Lease != "" {
		_, err := m.write(ctx, "revoking the lease", "sys/leases/revoke", map[string]any{"lease_id": h.Lease, "sync": true})
		if err != nil {
			return err
		}
		if err := m.confirmGone(ctx, leases, h.Lease); err != nil {
			return err
		}
	}
	if h.Accessor == "" {
		return nil
	}
	_, err := m.write(ctx, "revoking the token", "auth/token/revoke-accessor", map[string]any{"accessor": h.Accessor})
	if err != nil && !errors.Is(err, broker.ErrVaultRefused) && !gone(err, tokens.gone) {
		return err
	}
	// If Vault refuses to revoke the token, the token may be gone already. The lookup finds out.
	return m.confirmGone(ctx, tokens, h.Accessor)
}

func (m *Minter) confirmGone(ctx context.Context, what held, id string) error {
	alive, err := m.alive(ctx, what, id)
	if err == nil && alive {
		err = fmt.Errorf("%w: %w", broker.ErrVaultUnavailable, errStillThere)
	}
	return err
}

// Alive reports whether Vault still holds the token or the lease of a credential. See broker.Minter.
func (m *Minter) Alive(ctx context.Context, h broker.VaultLease) (bool, error) {
	if h.Accessor != "" {
		// A token of GitHub counts as alive only as long as its token in Vault, which ends unless the credential is delivered.
		if alive, err := m.alive(ctx, tokens, h.Accessor); alive || err != nil || isGitHub(h.Lease) {
			return alive, err
		}
	}
	if isGitHub(h.Lease) {
		entry, err := m.readGitHub(ctx, h.Lease)
		return entry != nil, err
	}
	if h.Lease == "" {
		return false, nil
	}
	return m.alive(ctx, leases, h.Lease)
}

// held says how to look up a token or a lease in Vault, and with which messages Vault answers that it does not exist.
type held struct {
	doing, path, name, answer string
	gone                      []string
}

var (
	tokens = held{"looking for the token", "auth/token/lookup-accessor", "accessor", "accessor", []string{"invalid accessor", "bad token"}}
	leases = held{"looking for the lease", "sys/leases/lookup", "lease_id", "id", []string{"invalid lease"}}
)

func (m *Minter) alive(ctx context.Context, what held, id string) (bool, error) {
	answer, err := m.write(ctx, what.doing, what.path, map[string]any{what.name: id})
	if gone(err, what.gone) {
		return false, nil
	}
	if err == nil && (answer == nil || answer.Data[what.answer] != id) {
		err = unavailable(what.doing, errNotUnderstood)
	}
	return err == nil, err
}

// write makes one call, which the active node answers.
func (m *Minter) write(ctx context.Context, doing, path string, body map[string]any) (*api.Secret, error) {
	return m.atActive(ctx, doing, func(ctx context.Context, client *api.Client) (*api.Secret, error) {
		return client.Logical().WriteWithContext(ctx, path, body)
	})
}
