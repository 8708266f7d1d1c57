package mint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/vault/api"
)

var (
	_ broker.Minter = (*Minter)(nil)
	_ broker.Signer = (*Minter)(nil)
)

// Minter implements broker.Minter with Vault's engines. Its methods are safe for concurrent use.
type Minter struct {
	cfg         Config
	wait        overlap
	transport   *http.Transport
	guarded     guard       // what all clients speak through
	client      *api.Client // holds the login
	loginClient *api.Client // holds no token ever: it logs in
	childClient *api.Client // is never used itself: copies of it carry a credential's own token

	ring     atomic.Pointer[keyring]
	signings signings

	// logins counts successful logins, so that a refusal of an older token asks for none.
	logins  atomic.Int64
	refused chan struct{}

	mu      sync.Mutex
	session *api.Secret // the login that Run keeps alive
	health  health
}

// health is what the last calls to Vault told.
type health struct {
	worked time.Time // when Vault last answered as it should
	fault  error     // of the last call; nil when it worked
}

// Open logs in and reads the signing key. The error is ErrConfig or ErrKeyUnfit when trying again cannot help,
// and broker.ErrVaultUnavailable otherwise. Files that the configuration names are read here, and again by Run.
func Open(ctx context.Context, cfg Config) (*Minter, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	transport, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	m := &Minter{
		cfg:       cfg,
		wait:      overlapOf(cfg),
		transport: transport,
		refused:   make(chan struct{}, 1),
		signings:  signings{key: cfg.SigningKey},
	}
	m.guarded = guard{next: transport}
	if cfg.Transport != nil {
		m.guarded.next = cfg.Transport(transport)
	}
	for _, client := range []**api.Client{&m.client, &m.loginClient, &m.childClient} {
		if *client, err = newClient(cfg, m.guarded); err != nil {
			return nil, err
		}
	}
	if err = m.login(ctx); err == nil {
		err = m.refresh(ctx)
	}
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	return m, nil
}

// refresh reads the signing key anew. A key that has become unfit signs no more at once, while what it signed
// before stays verifiable.
func (m *Minter) refresh(ctx context.Context) error {
	ring, err := m.readKeys(ctx, m.cfg.SigningKey)
	switch {
	case err == nil:
		m.ring.Store(ring)
	case errors.Is(err, ErrKeyUnfit):
		m.note(err)
		if last := m.ring.Load(); last != nil {
			m.ring.Store(last.silenced())
		}
	}
	return err
}

// Key returns the version to sign with now. When the versions have not been read for so long that a rotation
// may have passed unseen there is none, so no replica signs with a version that the others take for replaced.
func (m *Minter) Key() (broker.Key, error) {
	ring, now := m.ring.Load(), m.cfg.Now()
	if now.Sub(ring.read) > m.cfg.Refresh+m.cfg.JWKSMaxAge {
		return broker.Key{}, fmt.Errorf("%w: the signing key has not been read lately", broker.ErrVaultUnavailable)
	}
	chosen, ok := signing(ring.versions, ring.floor, now, m.wait)
	if !ok {
		return broker.Key{}, fmt.Errorf("%w: no version of the signing key may sign", broker.ErrVaultUnavailable)
	}
	return chosen.key, nil
}

// JWKS returns the RFC 7517 document of the versions that verifiers need now. It goes on answering while Vault
// is away: the public keys stay what they were.
func (m *Minter) JWKS() ([]byte, error) {
	ring := m.ring.Load()
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, v := range published(ring.versions, m.cfg.Now(), m.wait) {
		set.Keys = append(set.Keys, jose.JSONWebKey{
			Key: v.public, KeyID: v.key.ID, Algorithm: v.key.Algorithm, Use: "sig",
		})
	}
	document, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("encoding the JWKS: %w", err)
	}
	return document, nil
}

// Ready tells whether a credential could be minted now. It asks nobody: the last call to Vault worked, and was
// not long ago. Run reads the key each Refresh, and more often after a fault, with the same token and through
// the same policy as minting, so a seal, a lost login and a broken line all show here.
func (m *Minter) Ready(context.Context) error {
	m.mu.Lock()
	last := m.health
	m.mu.Unlock()
	if last.fault != nil {
		return last.fault
	}
	if m.cfg.Now().Sub(last.worked) > 2*m.cfg.Refresh+m.cfg.Timeout {
		return fmt.Errorf("%w: no answer lately", broker.ErrVaultUnavailable)
	}
	_, err := m.Key()
	return err
}

// call runs one call to Vault within the timeout, and keeps account of what it told about Vault's health. A
// refused token has Run log in again; the call itself has failed.
func (m *Minter) call(ctx context.Context, doing string, do func(context.Context) (map[string]any, error)) (map[string]any, error) {
	login := m.logins.Load()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	data, err := do(bounded)
	if err == nil {
		m.note(nil)
		return data, nil
	}
	if unmounted(err) {
		doing = fmt.Sprintf("%s (no secrets engine is mounted at %q: run brevet bootstrap)", doing, m.cfg.Mount)
	}
	err = unavailable(doing, err)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, err // our caller went away, which says nothing about Vault
	}
	m.note(err)
	if statusOf(err) == http.StatusForbidden {
		m.loginRefused(login)
	}
	return nil, err
}

func (m *Minter) note(fault error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.fault = fault
	if fault == nil {
		m.health.worked = m.cfg.Now()
	}
}

// dataOf takes the data out of an answer. The client gives no error for an answer without any.
func dataOf(secret *api.Secret, err error) (map[string]any, error) {
	if err != nil {
		return nil, err
	}
	if secret == nil || len(secret.Data) == 0 {
		return nil, errNotUnderstood
	}
	return secret.Data, nil
}
