package mint

import (
	"context"
	"encoding/json"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// Status asks Vault for its status and for the remaining life of the broker's login. An error says why the rest of the result is
// unknown. A sealed Vault answers without an error, but reports no login.
func (m *Minter) Status(ctx context.Context) (broker.VaultStatus, error) {
	m.mu.Lock()
	s := broker.VaultStatus{Worked: m.health.worked}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	began := m.cfg.Now()
	seal, err := m.loginClient.Sys().SealStatusWithContext(ctx)
	if err != nil {
		return s, unavailable("asking whether Vault is sealed", err)
	}
	s.RoundTrip, s.Version, s.Sealed = m.cfg.Now().Sub(began), clip(seal.Version), seal.Sealed
	if s.Sealed {
		return s, nil
	}
	s.Login, err = m.lifeLeft(ctx)
	return s, err
}

// lifeLeft asks for the remaining life of the broker's token. Zero means that it never expires.
func (m *Minter) lifeLeft(ctx context.Context) (time.Duration, error) {
	const doing = "looking up the login"
	data, err := dataOf(m.client.Logical().ReadWithContext(ctx, "auth/token/lookup-self"))
	if err != nil {
		return 0, unavailable(doing, err)
	}
	number, _ := data["ttl"].(json.Number)
	left, err := number.Int64()
	if err != nil || left < 0 {
		return 0, unavailable(doing, errNotUnderstood)
	}
	return time.Duration(left) * time.Second, nil
}

// SigningKeys returns the versions of the signing key as last read, oldest first. The next version to sign is the first one that
// has not settled yet.
func (m *Minter) SigningKeys() []broker.SigningKey {
	ring, now := m.ring.Load(), m.cfg.Now()
	signs, _ := m.Key()
	given := map[broker.Key]bool{}
	for _, v := range published(ring.versions, now, m.wait) {
		given[v.key] = true
	}
	var all []broker.SigningKey
	for _, v := range ring.versions {
		all = append(all, broker.SigningKey{
			Key: v.key, Created: v.created, Steady: v.created.Add(m.wait.settle), Signs: v.key == signs, Published: given[v.key],
		})
	}
	return all
}
