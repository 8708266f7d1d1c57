package app

import (
	"context"
	"crypto/x509"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// patience is how long a test waits for something that happens soon.
const patience = time.Minute

func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if time.Since(began) > limit {
			t.Fatalf("waited %s for this: %s", limit, what)
		}
	}
}

func servedID(t *testing.T, c *servedCertificate) string {
	t.Helper()
	pair, err := c.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.URIs[0].String()
}

// TestBrokerKeepsItsIdentity checks that the broker ignores additional SVIDs, even if one comes first, and that it is not
// ready without its own.
func TestBrokerKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	own, other := testkit.Identity("/brevet", ""), testkit.Identity("/other", "")
	agent := testkit.NewAgent(t, own)
	s := &service{Process: Process{Now: time.Now}}
	t.Cleanup(s.close)
	c, err := s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.Address})
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string { return c.leaf().SerialNumber.String() }
	for _, given := range [][]devstack.WorkloadIdentity{{other, own}, {own, other}} {
		before := serial()
		agent.Gives(given...)
		within(t, patience, "a renewed certificate", func() bool { return serial() != before })
		if got := servedID(t, c); got != own.ID.String() || c.ready(t.Context()) != nil {
			t.Errorf("serving as %s, %v, want %s", got, c.ready(t.Context()), own.ID)
		}
	}
	agent.Gives(other)
	within(t, patience, "not ready without the identity", func() bool { return c.ready(t.Context()) != nil })
	if err := c.ready(t.Context()); !strings.Contains(err.Error(), "does not give "+own.ID.String()) || servedID(t, c) != own.ID.String() {
		t.Errorf("got %v, serving as %s", err, servedID(t, c))
	}
	agent.Gives(own)
	within(t, patience, "ready with the identity back", func() bool { return c.ready(t.Context()) == nil })
}

func TestBrokerChoosesAmongSVIDs(t *testing.T) {
	t.Parallel()
	agent := testkit.NewAgent(t, testkit.Identity("/other", "internal"), testkit.Identity("/brevet", "external"))
	open := func(choice string) (*servedCertificate, error) {
		s := &service{Process: Process{Now: time.Now}}
		t.Cleanup(s.close)
		return s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.Address, SVID: choice})
	}
	if _, err := open(""); err == nil || !strings.Contains(err.Error(), "spiffe://acme.example/other (hint internal), spiffe://acme.example/brevet (hint external)") ||
		!strings.Contains(err.Error(), "tls.svid") {
		t.Errorf("got %v, want both, and the key that chooses", err)
	}
	for _, choice := range []string{"external", "spiffe://" + "acme.example" + "/brevet"} {
		if c, err := open(choice); err != nil || servedID(t, c) != "spiffe://acme.example/brevet" {
			t.Errorf("%s: got %v", choice, err)
		}
	}
	if _, err := open("nobody"); err == nil || !strings.Contains(err.Error(), "does not give nobody") {
		t.Errorf("got %v", err)
	}
}

// TestCertificateProblemsAreVisible checks that problems of a certificate show in readiness, and in the log before it
// expires.
func TestCertificateProblemsAreVisible(t *testing.T) {
	t.Parallel()
	agent := testkit.NewAgent(t, testkit.Identity("/brevet", ""))
	s := &service{Process: Process{Now: time.Now}}
	t.Cleanup(s.close)
	c, err := s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.Address})
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64
	c.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	for _, step := range []struct {
		ahead time.Duration
		want  string
		ready bool
	}{{0, "", true}, {50 * time.Minute, certificateExpiring, true}, {61 * time.Minute, "the certificate expired at", false}} {
		ahead.Store(int64(step.ahead))
		if got, err := c.problem(c.leaf()), c.ready(context.Background()); !strings.HasPrefix(got, step.want) || (got == "") != (step.want == "") || (err == nil) != step.ready {
			t.Errorf("after %s: got %q, %v, want %q", step.ahead, got, err, step.want)
		}
	}
	said := &testkit.Buffer{}
	log, err := NewLogger(LogConfig{Level: "info", Format: "text"}, said)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.watch(t.Context(), log, 5*time.Millisecond) }()
	within(t, patience, "an error in the log", func() bool { return strings.Contains(said.String(), "certificate is not usable") })
	ahead.Store(0)
	agent.Gives(testkit.Identity("/brevet", ""))
	within(t, patience, "the renewal in the log", func() bool { return strings.Contains(said.String(), "certificate renewed") })
}
