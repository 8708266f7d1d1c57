package mint

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/hashicorp/vault/api"
)

// renewSlack is the number of seconds by which a renewal may fall short of the requested time: Vault counts whole seconds, from
// when the call reaches it.
const renewSlack = 2

// Renew extends the token of a credential, and with it the credential, until minted.Until. See broker.Minter.
func (m *Minter) Renew(ctx context.Context, minted broker.Minted) error {
	if minted.Accessor == "" || minted.Whole {
		return nil // no token stands behind it, or the token already lives to the end
	}
	const doing = "renewing the token"
	wanted := m.wanted(minted.Until)
	answer, err := m.write(ctx, doing, "auth/token/renew-accessor", map[string]any{
		"accessor": minted.Accessor, "increment": wanted,
	})
	if err != nil {
		return err
	}
	if answer == nil || answer.Auth == nil || answer.Auth.LeaseDuration == 0 {
		return unavailable(doing, errNotUnderstood)
	}
	switch got := answer.Auth.LeaseDuration; {
	case got > wanted:
		return fmt.Errorf("%w: the token was renewed for %d s, want %d s at most", broker.ErrMintMismatch, got, wanted)
	case got < wanted-renewSlack:
		return fmt.Errorf("%w: the token was renewed for %d s of %d: the limits of its role or of Vault are too short", broker.ErrVaultRefused, got, wanted)
	}
	if !minted.ShortLease {
		return nil
	}
	return m.renewLease(ctx, minted.Lease, m.wanted(minted.Until))
}

// shortLease reports whether a lease would end before its credential and can be renewed. Vault ends the lease with the token in
// any case, so a lease that lives longer, or cannot be renewed, needs no renewal.
func (m *Minter) shortLease(intent broker.Intent, answer *api.Secret) bool {
	return answer.LeaseID != "" && answer.Renewable && answer.LeaseDuration < m.left(intent)-renewSlack
}

// renewLease extends a lease to the life of its token.
func (m *Minter) renewLease(ctx context.Context, lease string, wanted int) error {
	const doing = "renewing the lease"
	answer, err := m.write(ctx, doing, "sys/leases/renew", map[string]any{"lease_id": lease, "increment": wanted})
	if err != nil {
		return err
	}
	if answer == nil || answer.LeaseID != lease {
		return unavailable(doing, errNotUnderstood)
	}
	if got := answer.LeaseDuration; got < wanted-renewSlack {
		return fmt.Errorf("%w: the lease was renewed for %d s of %d: the max_ttl of its role is too short", broker.ErrVaultRefused, got, wanted)
	}
	return nil
}

// wanted returns the whole seconds that are left, at least one: to Vault, zero means the default.
func (m *Minter) wanted(until time.Time) int {
	return max(1, int(until.Sub(m.cfg.Now())/time.Second))
}

// Revoke ends the lease and then the token. The lease has ended only when the target system has confirmed it. While the lease
// cannot be ended, the token stays: without it, nothing could revoke the lease later. See broker.Minter.
func (m *Minter) Revoke(ctx context.Context, h broker.VaultLease) error {
	if h.Lease != "" {
		_, err := m.write(ctx, "revoking the lease", "sys/leases/revoke", map[string]any{"lease_id": h.Lease, "sync": true})
		if err != nil {
			return err
		}
		if err := confirmGone(m.leaseAlive(ctx, h.Lease)); err != nil {
			return err
		}
	}
	if h.Accessor == "" {
		return nil
	}
	_, err := m.write(ctx, "revoking the token", "auth/token/revoke-accessor", map[string]any{"accessor": h.Accessor})
	if err != nil && !errors.Is(err, broker.ErrVaultRefused) && !gone(err, tokenGone) {
		return err
	}
	// If Vault refuses to revoke the token, the token may be gone already. The lookup finds out.
	return confirmGone(m.tokenAlive(ctx, h.Accessor))
}

func confirmGone(alive bool, err error) error {
	if err != nil {
		return err
	}
	if alive {
		return fmt.Errorf("%w: %w", broker.ErrVaultUnavailable, errStillThere)
	}
	return nil
}

// Alive reports whether Vault still holds the token or the lease of a credential. See broker.Minter.
func (m *Minter) Alive(ctx context.Context, h broker.VaultLease) (bool, error) {
	if h.Accessor != "" {
		if alive, err := m.tokenAlive(ctx, h.Accessor); alive || err != nil {
			return alive, err
		}
	}
	if h.Lease == "" {
		return false, nil
	}
	return m.leaseAlive(ctx, h.Lease)
}

// Vault's messages for a token or a lease that it does not have.
var (
	tokenGone = []string{"invalid accessor", "bad token"}
	leaseGone = []string{"invalid lease"}
)

func (m *Minter) tokenAlive(ctx context.Context, accessor string) (bool, error) {
	const doing = "looking for the token"
	answer, err := m.write(ctx, doing, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
	if gone(err, tokenGone) {
		return false, nil
	}
	if err == nil && (answer == nil || answer.Data["accessor"] != accessor) {
		err = unavailable(doing, errNotUnderstood)
	}
	return err == nil, err
}

func (m *Minter) leaseAlive(ctx context.Context, lease string) (bool, error) {
	const doing = "looking for the lease"
	answer, err := m.write(ctx, doing, "sys/leases/lookup", map[string]any{"lease_id": lease})
	if gone(err, leaseGone) {
		return false, nil
	}
	if err == nil && (answer == nil || answer.Data["id"] != lease) {
		err = unavailable(doing, errNotUnderstood)
	}
	return err == nil, err
}

// gone reports whether Vault says that the token or lease does not exist, by both the status and the words of its answer. With
// the status alone, a 404 for an unknown path or a 403 for our own login would pass for the end of a credential.
func gone(err error, words []string) bool {
	var answer *answerError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound:
	default:
		return false
	}
	return slices.ContainsFunc(words, func(word string) bool { return says(err, word) })
}

// says reports whether an error answer of Vault contains these words.
func says(err error, words string) bool {
	var answer *answerError
	return errors.As(err, &answer) && slices.ContainsFunc(answer.messages, func(message string) bool {
		return strings.Contains(message, words)
	})
}

// write makes one call with the broker's own token.
func (m *Minter) write(ctx context.Context, doing, path string, body map[string]any) (*api.Secret, error) {
	return m.exchange(ctx, doing, ownToken, func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, path, body)
	})
}
