package mint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/vault/api"
)

// longestLogin is the longest time that a login should live without renewal. It bounds the use of a stolen token.
const longestLogin = time.Hour

// login gets a fresh token and switches to it.
func (m *Minter) login(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	session, err := m.enter(ctx)
	if err != nil {
		m.note(err)
		return err
	}
	m.client.SetToken(session.Auth.ClientToken)
	m.logins.Add(1)
	m.mu.Lock()
	m.session, m.entered = session, m.cfg.Now()
	m.mu.Unlock()
	m.note(nil)
	life := time.Duration(session.Auth.LeaseDuration) * time.Second
	m.cfg.Log.InfoContext(ctx, "logged in to vault", "life", life, "renewable", session.Auth.Renewable)
	if life == 0 || life > longestLogin {
		m.cfg.Log.WarnContext(ctx, "vault token lives longer than it should", "life", life, "should", longestLogin)
	}
	return nil
}

// enter gets a token in the configured way.
func (m *Minter) enter(ctx context.Context) (*api.Secret, error) {
	const doing = "logging in"
	if m.cfg.Auth.TokenFile != "" {
		return m.adopt(ctx, m.cfg.Auth.TokenFile)
	}
	var method string
	var body map[string]any
	var err error
	if role := m.cfg.Auth.AppRole; role != nil {
		var secret string
		secret, err = readSecret(role.SecretIDFile)
		method, body = cmp.Or(role.Mount, "approle"), map[string]any{"role_id": role.RoleID, "secret_id": secret}
	} else {
		by := m.cfg.Auth.JWT
		var token string
		if by.Token == nil {
			token, err = readSecret(by.TokenFile)
		} else if token, err = by.Token(ctx); err != nil {
			err = fmt.Errorf("getting the JWT: %w", err)
		} else if token == "" {
			err = errors.New("getting the JWT: it is empty")
		}
		method, body = cmp.Or(by.Mount, "jwt"), map[string]any{"role": by.Role, "jwt": token}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", broker.ErrVaultUnavailable, doing, err)
	}
	session, err := m.loginClient.Logical().WriteWithContext(ctx, "auth/"+method+"/login", body)
	if err == nil && (session == nil || session.Auth == nil || session.Auth.ClientToken == "") {
		err = errNotUnderstood
	}
	if err != nil {
		return nil, unavailable(doing, err)
	}
	return session, nil
}

// adopt reads the token from a file and asks Vault how long it lives.
func (m *Minter) adopt(ctx context.Context, file string) (*api.Secret, error) {
	const doing = "taking the token from its file"
	token, err := readSecret(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", broker.ErrVaultUnavailable, doing, err)
	}
	// Use a separate client: a bad token must not replace one that still works.
	client, err := newClient(m.cfg, m.guarded)
	if err != nil {
		return nil, err
	}
	client.SetToken(token)
	var life int
	var renewable bool
	err = m.patiently(ctx, m.cfg.Now(), func() (err error) { // the other program may have made it just now
		life, renewable, err = lookupSelf(ctx, client)
		return err
	})
	if err != nil {
		return nil, unavailable(doing, err)
	}
	return &api.Secret{Auth: &api.SecretAuth{ClientToken: token, LeaseDuration: life, Renewable: renewable && life > 0}}, nil
}

// lookupSelf asks how many seconds a client's token may still live, and whether it can be renewed. Zero means that it never
// expires.
func lookupSelf(ctx context.Context, client *api.Client) (life int, renewable bool, err error) {
	data, err := dataOf(client.Logical().ReadWithContext(ctx, "auth/token/lookup-self"))
	if err != nil {
		return 0, false, err
	}
	number, _ := data["ttl"].(json.Number)
	seconds, err := number.Int64()
	renewable, _ = data["renewable"].(bool)
	if err != nil || seconds < 0 {
		return 0, false, errNotUnderstood
	}
	return int(seconds), renewable, nil
}

func readSecret(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading a login file: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return "", fmt.Errorf("reading a login file: %s is empty", file)
	}
	return text, nil
}

// Run keeps the login alive and the key's versions fresh until ctx ends, and then returns nil. It must be called only once.
func (m *Minter) Run(ctx context.Context) error {
	defer m.transport.CloseIdleConnections()
	var loops sync.WaitGroup
	loops.Go(func() { m.keepLogin(ctx) })
	loops.Go(func() { m.keepKeys(ctx) })
	loops.Wait()
	return nil
}

// keepLogin renews the login for as long as Vault allows. When Vault allows no more, or refuses the token, it logs in again. If
// Vault refuses a new token soon after the login, keepLogin waits longer each time, because then the cause is probably a policy,
// and one more login does not help.
func (m *Minter) keepLogin(ctx context.Context) {
	pause := newPause(100*time.Millisecond, 30*time.Second)
	since := m.cfg.Now()
	for {
		why := m.await(ctx)
		if why == ended {
			return
		}
		age := m.cfg.Now().Sub(since)
		patient := age < time.Second || (why == turnedAway && age < time.Minute)
		if !patient {
			pause.Reset()
		}
		for ; ; patient = true {
			if patient && !wait.For(ctx, pause.NextBackOff()) {
				return
			}
			err := m.login(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			m.cfg.Log.WarnContext(ctx, "logging in to vault did not work", "error", err)
		}
		since = m.cfg.Now()
	}
}

// reason says why keepLogin stops using a login.
type reason int

const (
	ended      reason = iota // ctx has ended
	spent                    // the login cannot be renewed any further, or the token file holds another token
	turnedAway               // Vault refused the token
)

// await blocks until a new login is due or ctx has ended.
func (m *Minter) await(ctx context.Context) reason {
	m.mu.Lock()
	session := m.session
	m.mu.Unlock()
	// A login that expires is kept alive in the background, until it can no longer be renewed.
	var over <-chan error
	if session.Auth.LeaseDuration > 0 {
		watcher, err := m.loginClient.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: session})
		if err != nil {
			// The only possible error is a missing input, and the input is present.
			panic("mint: " + err.Error())
		}
		go watcher.Start()
		defer watcher.Stop()
		over = watcher.DoneCh()
	}
	tick := time.NewTicker(m.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ended
		case <-over: //nolint:errcheck // why it ended does not matter
			return spent
		case <-m.refused:
			return turnedAway
		case <-tick.C:
			if file := m.cfg.Auth.TokenFile; file != "" {
				if token, err := readSecret(file); err == nil && token != session.Auth.ClientToken {
					return spent
				}
			}
		}
	}
}

// keepKeys reads the key's versions each Refresh, and sooner after an error.
func (m *Minter) keepKeys(ctx context.Context) {
	retry := newPause(min(time.Second, m.cfg.Refresh), m.cfg.Refresh)
	next := m.cfg.Refresh
	for wait.For(ctx, next) {
		err := m.refresh(ctx)
		if err == nil {
			m.checkRights(ctx)
			retry.Reset()
			next = m.cfg.Refresh
			continue
		}
		if ctx.Err() != nil {
			return
		}
		m.cfg.Log.WarnContext(ctx, "reading the signing key did not work", "error", err)
		next = retry.NextBackOff()
	}
}

// newPause makes growing pauses with jitter, so that replicas do not retry all at once.
func newPause(first, longest time.Duration) *backoff.ExponentialBackOff {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = first, longest
	pause.Reset()
	return pause
}
