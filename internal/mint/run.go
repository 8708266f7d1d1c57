package mint

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/vault/api"
)

// Run keeps the login alive and the key's versions fresh until ctx ends, and then returns nil. It must be called only once.
func (m *Minter) Run(ctx context.Context) error {
	defer m.transport.CloseIdleConnections()
	var loops sync.WaitGroup
	loops.Go(func() { m.keepLogin(ctx) })
	loops.Go(func() { m.keepKeys(ctx) })
	loops.Wait()
	return nil
}

// keepLogin renews the login for as long as Vault allows. When Vault allows no more, or refuses the token, it logs in again. It
// waits longer and longer after refusals that follow soon after a login: a new token does not fix a policy that forbids what
// Brevet does.
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
		if !m.relogin(ctx, pause, patient) {
			return
		}
		since = m.cfg.Now()
	}
}

// relogin retries until it is logged in. It returns false if ctx ends first.
func (m *Minter) relogin(ctx context.Context, pause *backoff.ExponentialBackOff, patient bool) bool {
	for {
		if patient && !wait.For(ctx, pause.NextBackOff()) {
			return false
		}
		err := m.login(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		m.cfg.Log.WarnContext(ctx, "logging in to vault did not work", "error", err)
		patient = true
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
	over, stop := m.renew(session)
	defer stop()
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
			if m.replaced(session) {
				return spent
			}
		}
	}
}

// renew keeps a login alive in the background. It sends to the channel when the login can no longer be renewed.
func (m *Minter) renew(session *api.Secret) (over <-chan error, stop func()) {
	if session.Auth.LeaseDuration == 0 {
		return nil, func() {} // the token never expires
	}
	watcher, err := m.loginClient.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: session})
	if err != nil {
		// The only possible error is a missing input, and the input is present.
		panic("mint: " + err.Error())
	}
	go watcher.Start()
	return watcher.DoneCh(), watcher.Stop
}

// replaced reports whether the login's token file, if there is one, now holds another token than the session's.
func (m *Minter) replaced(session *api.Secret) bool {
	if m.cfg.Auth.TokenFile == "" {
		return false
	}
	token, err := readSecret(m.cfg.Auth.TokenFile)
	return err == nil && token != session.Auth.ClientToken
}

// keepKeys reads the key's versions each Refresh, and sooner after an error.
func (m *Minter) keepKeys(ctx context.Context) {
	retry := newPause(min(time.Second, m.cfg.Refresh), m.cfg.Refresh)
	next := m.cfg.Refresh
	for wait.For(ctx, next) {
		err := m.refresh(ctx)
		if err == nil {
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
