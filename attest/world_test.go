package attest_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// clock is a clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

// newClock starts at the system's time, which go-spiffe checks too.
func newClock() *clock { return &clock{now: time.Now().Truncate(time.Second)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world has two accepted trust domains that federate, and one that has a bundle but is not accepted.
type world struct {
	*attest.Attestor
	clock             *clock
	bundles           *spiffebundle.Set
	acme, other, evil *domain

	mu       sync.Mutex
	refusals []string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{clock: newClock(), bundles: spiffebundle.NewSet()}
	now := w.clock.Now()
	w.acme, w.other, w.evil = newDomain(t, "acme.test", now), newDomain(t, "other.test", now), newDomain(t, "evil.test", now)
	for _, d := range []*domain{w.acme, w.other, w.evil} {
		w.bundles.Add(d.bundle())
	}
	var err error
	w.Attestor, err = attest.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) config() attest.Config {
	return attest.Config{
		Bundles:      w.bundles,
		TrustDomains: []spiffeid.TrustDomain{w.acme.td, w.other.td},
		Audience:     audience,
		Now:          w.clock.Now,
		OnRefusal: func(remote net.Addr, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if remote == nil {
				err = attest.ErrNoIdentity // shows in the test as a wrong reason
			}
			w.refusals = append(w.refusals, refusal.Reason(err))
		},
	}
}

// refused returns the handshakes that were refused so far.
func (w *world) refused() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refusals
}

// stateOf returns the state of a finished handshake in which the client presented a chain.
func stateOf(t testing.TB, pair tls.Certificate) *tls.ConnectionState {
	t.Helper()
	state := &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		state.PeerCertificates = append(state.PeerCertificates, cert)
	}
	return state
}

// wantReason checks that err is a refusal with this reason and that no identity was returned.
func wantReason(t testing.TB, id attest.Identity, err error, want string) {
	t.Helper()
	if got := refusal.Reason(err); got != want {
		t.Errorf("got reason %q (%v), want %q", got, err, want)
	}
	if !id.IsZero() {
		t.Errorf("got identity %v along with an error", id.ID())
	}
}
