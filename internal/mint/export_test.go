package mint

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// What the external tests look at inside: the pure functions that signing rests on.
var (
	SigningInput = signingInput
	Clip         = clip
)

// MintGrant mints what an order for this intent would: orders come from broker alone, and there only for what a
// catalogue can say.
func MintGrant(ctx context.Context, m *Minter, intent broker.Intent) (broker.Credential, error) {
	return m.mintGrant(ctx, intent)
}

// Born is a key version by its number and time of creation.
type Born struct {
	Version int
	At      time.Time
}

func versionsOf(born []Born) []version {
	var out []version
	for _, b := range born {
		out = append(out, version{key: broker.Key{Version: b.Version}, created: b.At})
	}
	return out
}

// SigningVersion is the number of the version that signs, 0 for none.
func SigningVersion(born []Born, floor int, now time.Time, cfg Config) int {
	v, _ := signing(versionsOf(born), floor, now, overlapOf(cfg))
	return v.key.Version
}

// PublishedVersions are the numbers of the versions in the JWKS.
func PublishedVersions(born []Born, now time.Time, cfg Config) []int {
	var out []int
	for _, v := range published(versionsOf(born), now, overlapOf(cfg)) {
		out = append(out, v.key.Version)
	}
	return out
}

// Queued counts the texts that wait for Vault to sign them.
func (m *Minter) Queued() int {
	m.signings.mu.Lock()
	defer m.signings.mu.Unlock()
	return len(m.signings.waiting)
}
