package mint

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/vault/api"
)

// Run keeps the login alive and the key's versions fresh until ctx ends; then it returns nil. It is called once.
func (m *Minter) Run(ctx context.Context) error {
	defer m.transport.CloseIdleConnections()
	var loops sync.WaitGroup
	loops.Go(func() { m.keepLogin(ctx) })
	loops.Go(func() { m.keepKeys(ctx) })
	loops.Wait()
	return nil
}

// keepLogin renews the login for as long as Vault allows, and then, or when Vault refuses the token, logs in
// anew. Refusals soon after a login are answered more and more slowly: a policy that forbids what we do is not
// mended by one more token.
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

// relogin tries until it is logged in, and returns false when ctx ends before.
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

// reason is why a login is no longer looked after.
type reason int

const (
	ended      reason = iota // ctx has
	spent                    // it cannot be renewed any further, or another token took its place
	turnedAway               // Vault refused it
)

// await returns when a new login is due, or ctx has ended.
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

// renew keeps a login alive in the background; the channel tells when that has come to its end.
func (m *Minter) renew(session *api.Secret) (over <-chan error, stop func()) {
	if session.Auth.LeaseDuration == 0 {
		return nil, func() {} // it never ends
	}
	watcher, err := m.loginClient.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: session})
	if err != nil {
		// Only a missing input gives an error, and there is one.
		panic("mint: " + err.Error())
	}
	go watcher.Start()
	return watcher.DoneCh(), watcher.Stop
}

// replaced tells whether the token's file, if it comes from one, now holds another token than the session's.
func (m *Minter) replaced(session *api.Secret) bool {
	if m.cfg.Auth.TokenFile == "" {
		return false
	}
	token, err := readSecret(m.cfg.Auth.TokenFile)
	return err == nil && token != session.Auth.ClientToken
}

// keepKeys reads the key's versions each Refresh, and sooner after a fault.
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

// newPause makes growing, jittered pauses, so that replicas do not come back all at once.
func newPause(first, longest time.Duration) *backoff.ExponentialBackOff {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = first, longest
	pause.Reset()
	return pause
}
