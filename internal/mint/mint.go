// Package mint makes credentials through Vault. It logs in with the broker's own identity, keeps that login alive, tracks the
// versions of the signing key, and asks Vault's Transit engine to sign JWTs with exactly the version that the intent names. It
// verifies every signature before it releases it.
//
// It must never hold a private key, never ask Vault twice for the same [broker.Order], never follow a redirect, never use a proxy,
// never take configuration from VAULT_* variables, and never release a credential that differs from the intent.
package mint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/go-jose/go-jose/v4"
	strict "github.com/go-json-experiment/json"
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
	transport   *quiet.Transport
	guarded     guard       // all clients send through it
	client      *api.Client // holds the login
	loginClient *api.Client // never holds a token: it logs in
	childClient *api.Client // never used itself: copies of it carry a credential's own token

	keys []*transitKey // as tokenKeys

	gitHub map[string]gitHubApp // by name

	carriers carriers
	active   active

	// logins counts successful logins, so that a refusal of an older token does not cause another login.
	logins  atomic.Int64
	refused chan struct{}

	mu      sync.Mutex
	session *api.Secret // the login that Run keeps alive
	entered time.Time   // when it began
	health  health
	lacking error // names the rights that are missing in Vault
}

// health is the outcome of the last calls to Vault.
type health struct {
	worked time.Time // when Vault last answered correctly
	fault  error     // of the last call; nil when it worked
}

// Open logs in and reads the signing key. It returns ErrConfig or ErrKeyUnfit if a retry cannot help, and
// broker.ErrVaultUnavailable otherwise. It reads the files that the configuration names, and Run reads them again.
func Open(ctx context.Context, cfg Config) (*Minter, error) {
	cfg.Mount = cmp.Or(cfg.Mount, "transit")
	cfg.TokenRole = cmp.Or(cfg.TokenRole, defaultTokenRole)
	cfg.JWKSMaxAge = cmp.Or(cfg.JWKSMaxAge, 5*time.Minute)
	cfg.Refresh = cmp.Or(cfg.Refresh, 30*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
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
		gitHub:    newGitHubApps(cfg),
		carriers:  carriers{byPolicy: map[string]carrier{}, unrenewed: map[string]int{}},
	}
	for _, k := range tokenKeys {
		m.keys = append(m.keys, &transitKey{algorithm: k.algorithm, types: k.types, signings: signings{key: cfg.SigningKey + k.suffix}})
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
	m.checkRights(ctx)
	return m, nil
}

// refresh reads the signing keys again. A key that has become unfit stops signing at once, but tokens that it signed before stay
// verifiable.
func (m *Minter) refresh(ctx context.Context) error {
	main := m.keys[0]
	ring, err := m.readKeys(ctx, main.signings.key, main.algorithm, main.types)
	switch {
	case err == nil:
		main.ring.Store(ring)
		for _, k := range m.keys[1:] {
			m.refreshOptional(ctx, k)
		}
	case errors.Is(err, ErrKeyUnfit):
		m.note(err)
		if last := main.ring.Load(); last != nil {
			main.ring.Store(&keyring{versions: last.versions, floor: math.MaxInt, read: last.read}) // no version may sign
		}
	}
	return err
}

// Key returns the version to sign with now. It returns an error if the minter last read the versions too long ago: a rotation may
// have happened since. Without this check, a replica could sign with a version that the others consider replaced. See broker.Minter.
func (m *Minter) Key(algorithm string) (broker.Key, error) {
	k := m.keyFor(algorithm)
	if k == nil {
		return broker.Key{}, fmt.Errorf("%w: no key in Vault signs with %q", broker.ErrVaultRefused, algorithm)
	}
	return m.key(k.ring.Load())
}

// keyFor returns the key that signs with an algorithm, or nil if none does.
func (m *Minter) keyFor(algorithm string) *transitKey {
	for _, k := range m.keys {
		if k.algorithm == algorithm {
			return k
		}
	}
	return nil
}

func (m *Minter) key(ring *keyring) (broker.Key, error) {
	now := m.cfg.Now()
	if ring.fault != nil {
		return broker.Key{}, ring.fault
	}
	if now.Sub(ring.read) > m.cfg.Refresh+m.cfg.JWKSMaxAge {
		return broker.Key{}, fmt.Errorf("%w: the signing key has not been read lately", broker.ErrVaultUnavailable)
	}
	chosen, ok := signing(ring.versions, ring.floor, now, m.wait)
	if !ok {
		return broker.Key{}, fmt.Errorf("%w: no version of the signing key may sign", broker.ErrVaultUnavailable)
	}
	return chosen.key, nil
}

// JWKS returns the RFC 7517 document of the versions that verifiers need now. It keeps answering while Vault is unavailable,
// because the public keys do not change.
func (m *Minter) JWKS() ([]byte, error) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, of := range m.keys {
		for _, v := range published(of.ring.Load().versions, m.cfg.Now(), m.wait) {
			set.Keys = append(set.Keys, jose.JSONWebKey{
				Key: v.public, KeyID: v.key.ID, Algorithm: v.key.Algorithm, Use: "sig",
			})
		}
	}
	document, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("encoding the JWKS: %w", err)
	}
	return document, nil
}

// Ready returns nil if a credential could be minted now. It makes no call: it checks that the last call to Vault succeeded and
// was recent, and that no right is missing. Run reads the key each Refresh, and more often after an error, with the same token and policy as minting. So a
// sealed Vault, a lost login and a broken connection all show here.
func (m *Minter) Ready(context.Context) error {
	m.mu.Lock()
	last, lacking := m.health, m.lacking
	m.mu.Unlock()
	if last.fault != nil {
		return last.fault
	}
	if lacking != nil {
		return lacking
	}
	if m.cfg.Now().Sub(last.worked) > 2*m.cfg.Refresh+m.cfg.Timeout {
		return fmt.Errorf("%w: no answer lately", broker.ErrVaultUnavailable)
	}
	_, err := m.Key(es256)
	return err
}

// call makes one call to Vault within the timeout and records what it shows about Vault's health. If Vault refuses the token, Run
// logs in again; the call itself has failed.
func (m *Minter) call(ctx context.Context, doing string, do func(context.Context) error) error {
	login := m.logins.Load()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	err := m.patiently(bounded, m.own().since, func() error { return do(bounded) })
	if err == nil {
		m.note(nil)
		return nil
	}
	if unmounted(err) {
		doing = fmt.Sprintf("%s (no secrets engine is mounted at %q: run brevet bootstrap)", doing, m.cfg.Mount)
	}
	err = unavailable(doing, err)
	if errors.Is(ctx.Err(), context.Canceled) {
		return err // our caller canceled, which says nothing about Vault
	}
	m.note(err)
	if statusOf(err) == http.StatusForbidden {
		m.loginRefused(login)
	}
	return err
}

// send writes a body to a path in Vault and reads the answer, with the address, the token and the headers of the Vault client. The
// client itself would copy the call several times and decode the answer into maps: 5 % of the broker's part of an issue.
func (m *Minter) send(ctx context.Context, path string, body, answer any) error {
	text, err := strict.Marshal(body)
	if err != nil {
		return err
	}
	to := m.client.NewRequest(http.MethodPut, "/v1/"+path)
	req, err := http.NewRequestWithContext(ctx, to.Method, to.URL.String(), bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header = to.Headers
	req.Header.Set(api.AuthHeaderName, to.ClientToken)
	resp, err := m.guarded.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return strict.UnmarshalRead(resp.Body, answer)
}

func (m *Minter) note(fault error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.fault = fault
	if fault == nil {
		m.health.worked = m.cfg.Now()
	}
}

// dataOf returns the data of an answer. The Vault client returns no error for an answer without data, so dataOf does.
func dataOf(secret *api.Secret, err error) (map[string]any, error) {
	if err != nil {
		return nil, err
	}
	if secret == nil || len(secret.Data) == 0 {
		return nil, errNotUnderstood
	}
	return secret.Data, nil
}

// Status asks Vault for its status and for the remaining life of the broker's login. If it returns an error, the rest of the
// result is unknown, and the error says why. A sealed Vault answers without an error, but reports no login.
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
	life, _, err := lookupSelf(ctx, m.client)
	if err != nil {
		return s, unavailable("looking up the login", err)
	}
	s.Login = time.Duration(life) * time.Second
	return s, nil
}

// SigningKeys returns the versions of the signing keys as last read, in the order of tokenKeys, and each key's oldest first. The next
// version of a key to sign is its first one that has not settled yet.
func (m *Minter) SigningKeys() []broker.SigningKey {
	var all []broker.SigningKey
	for _, of := range m.keys {
		ring, now := of.ring.Load(), m.cfg.Now()
		signs, _ := m.key(ring)
		given := map[broker.Key]bool{}
		for _, v := range published(ring.versions, now, m.wait) {
			given[v.key] = true
		}
		for _, v := range ring.versions {
			all = append(all, broker.SigningKey{
				Key: v.key, Created: v.created, Steady: v.created.Add(m.wait.settle), Signs: v.key == signs, Published: given[v.key],
			})
		}
	}
	return all
}
