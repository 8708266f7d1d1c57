package mint

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// The pure functions inside the package that the external tests check.
var (
	SigningInput = signingInput
	CheckClaims  = checkClaims
	Clip         = clip
	LifeOfJWT    = lifeOfJWT
)

// MintGrant mints what an order for this intent would mint. Only broker creates orders, and only for intents that a catalogue can
// express.
func MintGrant(ctx context.Context, m *Minter, intent broker.Intent) (broker.Credential, error) {
	return m.mintGrant(ctx, intent)
}

// Born is the number and the creation time of a key version.
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

// SigningVersion returns the number of the version that signs, or 0 if there is none.
func SigningVersion(born []Born, floor int, now time.Time, cfg Config) int {
	v, _ := signing(versionsOf(born), floor, now, overlapOf(cfg))
	return v.key.Version
}

// PublishedVersions returns the numbers of the versions in the JWKS.
func PublishedVersions(born []Born, now time.Time, cfg Config) []int {
	var out []int
	for _, v := range published(versionsOf(born), now, overlapOf(cfg)) {
		out = append(out, v.key.Version)
	}
	return out
}

// Queued returns the number of texts that wait for Vault to sign them.
func (m *Minter) Queued() int {
	m.keys[0].signings.mu.Lock()
	defer m.keys[0].signings.mu.Unlock()
	return len(m.keys[0].signings.waiting)
}
