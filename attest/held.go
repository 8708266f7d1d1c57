package attest

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var errNotFetched = errors.New("not fetched yet")

// held is the last good bundle of one trust domain and the state of its source. Sources write it, requests read it. A stored
// bundle is never modified, only replaced.
type held struct {
	domain spiffeid.TrustDomain
	name   string
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	current *spiffebundle.Bundle
	fetched time.Time
	err     error     // the current error of the source
	since   time.Time // when the source began to fail
}

func newHeld(td spiffeid.TrustDomain, name string, log *slog.Logger, now func() time.Time) *held {
	log = log.With("trust_domain", td.Name(), "source", name)
	return &held{domain: td, name: name, log: log, now: now, err: errNotFetched, since: now()}
}

// set replaces the bundle.
func (h *held) set(b *spiffebundle.Bundle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		h.log.Info("bundle source works")
	}
	h.current, h.fetched, h.err = b, h.now(), nil
}

// fail records an error and keeps the bundle for as long as MaxStale allows.
func (h *held) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failLocked(err)
}

// withdraw drops the bundle, because its source no longer has one.
func (h *held) withdraw(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = nil
	h.failLocked(err)
}

// failLocked logs only the first failure, because some sources retry each second.
func (h *held) failLocked(err error) {
	if h.err == nil {
		h.since = h.now()
	}
	if h.err == nil || errors.Is(h.err, errNotFetched) {
		h.log.Warn("bundle source fails", "error", err)
	}
	h.err = err
}

// last returns the last good bundle, however old it is, or nil if there is none.
func (h *held) last() *spiffebundle.Bundle {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

func (h *held) bundle() (*spiffebundle.Bundle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bundleLocked()
}

func (h *held) bundleLocked() (*spiffebundle.Bundle, error) {
	if h.current == nil {
		return nil, fmt.Errorf("no bundle for %s: %w", h.domain, h.err)
	}
	if h.err != nil && h.now().Sub(h.since) > MaxStale {
		return nil, fmt.Errorf("bundle for %s is stale: %w", h.domain, h.err)
	}
	return h.current, nil
}

// failing returns how long the source has been failing, or 0 if it works.
func (h *held) failing() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		return 0
	}
	return h.now().Sub(h.since)
}

func (h *held) status() BundleStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.bundleLocked()
	st := BundleStatus{TrustDomain: h.domain, Source: h.name, Available: err == nil, Fetched: h.fetched}
	if h.current != nil {
		st.Sequence, _ = h.current.SequenceNumber()
		st.X509Authorities, st.JWTAuthorities = len(h.current.X509Authorities()), len(h.current.JWTAuthorities())
		for _, authority := range h.current.X509Authorities() {
			if authority.NotAfter.After(st.Expires) {
				st.Expires = authority.NotAfter
			}
		}
	}
	if h.err != nil {
		st.Err, st.Since = h.err.Error(), h.since
		if h.current != nil {
			st.Until = h.since.Add(MaxStale)
		}
	}
	return st
}
