package brevettest

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/brevet-dev/brevet/console"
	"github.com/brevet-dev/brevet/server"
)

// Console serves the pages of this replica until the test ends, and returns where: http on localhost.
func (s *Stack) Console(t testing.TB) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cfg := console.Config{
		Broker: s.Broker, People: s.Config.People, ClientID: clientID, Sessions: s.ledger, Proofs: s.ledger, LogKeys: s.LogKey, URL: "http://localhost:" + port,
		TrustDomains: []string{s.Acme.TrustDomain().Name(), s.Other.TrustDomain().Name()}, Key: s.ledger.CursorKey(), Log: s.log, Now: s.options.Now,
	}
	for _, p := range server.ProblemTexts() {
		cfg.Problems = append(cfg.Problems, console.Problem(p))
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
	return cfg.URL
}
