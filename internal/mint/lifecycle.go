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

// renewSlack is by how much a renewal may fall short of what was asked for: Vault counts whole seconds, from when the
// call reaches it.
const renewSlack = 2

// Renew lets the token of a credential, and with it the credential, live until its time. See broker.Minter.
func (m *Minter) Renew(ctx context.Context, minted broker.Minted) error {
	if minted.Accessor == "" || minted.Whole {
		return nil // it lives under nothing, or to its end
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

// shortLease tells of a lease that would end before its credential, and can be renewed. Vault ends it with the token in any
// case, so that one which lives longer by itself, or cannot be renewed, is fine.
func (m *Minter) shortLease(intent broker.Intent, answer *api.Secret) bool {
	return answer.LeaseID != "" && answer.Renewable && answer.LeaseDuration < m.left(intent)-renewSlack
}

// renewLease lets a lease live as long as its token.
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

// wanted is how many whole seconds are left, at least one: zero would mean whatever is usual.
func (m *Minter) wanted(until time.Time) int {
	return max(1, int(until.Sub(m.cfg.Now())/time.Second))
}

// Revoke ends the lease, which is over only when the far side has confirmed it, and then the token. While the lease
// cannot be ended the token stays: with it gone, nobody would be left to ask. See broker.Minter.
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
	// What Vault refuses to revoke may be gone already. That is for the lookup to say.
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

// Alive tells whether Vault still holds the token or the lease of a credential. See broker.Minter.
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

// What Vault answers when it does not have what it is asked about.
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

// gone tells whether Vault says that there is no such thing: with a status that it says so with, and in its words. A
// 404 of a path that does not exist, or a 403 of our own login, would else pass for the end of a credential.
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

// says tells whether an answer that is an error holds these words of Vault's.
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
