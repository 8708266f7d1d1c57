package testkit

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/passkey"
)

// Pages opens a listener for Options.Pages.
func Pages(t testing.TB) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func originOf(t testing.TB, listener net.Listener) string {
	t.Helper()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "http://localhost:" + port
}

// site returns the relying party of the stack's passkeys.
func (s *Stack) site(t testing.TB) passkey.RelyingParty {
	t.Helper()
	if s.options.Pages == nil {
		return Site
	}
	return passkey.RelyingParty{ID: "localhost", Origins: []string{originOf(t, s.options.Pages)}}
}

// Console serves this replica's console until the test ends, and returns its URL: http on localhost.
func (s *Stack) Console(t testing.TB) string {
	t.Helper()
	listener := s.options.Pages
	if listener == nil {
		listener = Pages(t)
	}
	url := originOf(t, listener)
	s.serveConsole(t, listener, url)
	return url
}

// ConsoleBehind serves this replica's console for a proxy that serves it at url, and returns the address for the proxy.
func (s *Stack) ConsoleBehind(t testing.TB, url string) (address string) {
	t.Helper()
	listener := Pages(t)
	s.serveConsole(t, listener, url)
	return listener.Addr().String()
}

func (s *Stack) serveConsole(t testing.TB, listener net.Listener, url string) {
	t.Helper()
	cfg := console.Config{
		Broker: s.Broker, People: s.Config.People, ClientID: clientID, Sessions: s.ledger, Past: s.ledger, Ledger: s.ledger, Vault: s.Minter, InclusionProofs: s.ledger, LogKeys: s.LogKey, URL: url,
		TrustDomains: []string{s.Acme.TrustDomain().Name(), s.Other.TrustDomain().Name()}, TrustedProxies: s.options.TrustedProxies,
		Key: s.ledger.CursorKey(), Log: s.log, Now: s.options.Now, Voted: s.Server.CountVote,
	}
	fetched := s.options.Now()
	cfg.Bundles = func() []console.Bundle {
		return []console.Bundle{
			{TrustDomain: s.Acme.TrustDomain().Name(), Fetched: fetched}, {TrustDomain: s.Other.TrustDomain().Name(), Fetched: fetched},
		}
	}
	for _, p := range httpapi.ProblemTexts() {
		cfg.Problems = append(cfg.Problems, console.Problem(p))
	}
	if s.options.Sessions != nil {
		s.options.Sessions(&cfg)
	}
	c, err := console.New(cfg)
	if err != nil {
		t.Fatalf("making the console: %v", err)
	}
	srv := c.HTTP(nil)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(listener) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving the console: %v", err)
		}
	})
}
