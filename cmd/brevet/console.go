package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/brevet-dev/brevet/attest"
	pages "github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/net/netutil"
)

// mostConsoleConnections limits connections to the console, so that file descriptors are left for everything else.
const mostConsoleConnections = 2048

func (c *ConsoleConfig) check() error {
	errs := []error{checkAddress("console.listen", c.Listen)}
	if _, err := pages.ParseURL(c.URL); err != nil {
		errs = append(errs, fmt.Errorf("console.url: %w", err))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("console: set cert_file and key_file together"))
	}
	if c.CertFile == "" && !onLoopback(c.Listen) {
		errs = append(errs, errors.New("console.cert_file: required unless listen is a loopback address, to protect session cookies"))
	}
	return errors.Join(errs...)
}

func onLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// serveConsole serves the console if it is configured. of holds the console's dependencies; the other settings come from
// the configuration.
func (s *service) serveConsole(ctx context.Context, cfg Config, of pages.Config) error {
	if cfg.Console == nil {
		return nil
	}
	web, err := s.openConsole(cfg, of)
	if err != nil {
		return err
	}
	var secured *tls.Config
	if cfg.Console.CertFile != "" {
		certificate, err := s.openCertificate(ctx, TLSConfig{CertFile: cfg.Console.CertFile, KeyFile: cfg.Console.KeyFile})
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		secured = &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS13}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Console.Listen)
	if err != nil {
		return fmt.Errorf("listening on %s for the console: %w", cfg.Console.Listen, err)
	}
	listener = netutil.LimitListener(listener, mostConsoleConnections)
	srv := web.HTTP(secured)
	s.run(ctx, srv, func() error {
		if secured == nil {
			return srv.Serve(listener)
		}
		return srv.ServeTLS(listener, "", "")
	})
	s.log.InfoContext(ctx, "serving the console", "address", listener.Addr().String(), "url", cfg.Console.URL)
	return nil
}

func (s *service) openConsole(cfg Config, of pages.Config) (*pages.Console, error) {
	carrier, err := cfg.People.carrier()
	if err != nil {
		return nil, fmt.Errorf("people: %w", err)
	}
	if file := cfg.Console.ClientSecretFile; file != "" {
		text, err := readSecretFile(file)
		if err != nil {
			return nil, fmt.Errorf("console.client_secret_file: %w", err)
		}
		of.ClientSecret = secret.New(text)
	}
	for _, domain := range cfg.TrustDomains {
		of.TrustDomains = append(of.TrustDomains, domain.Name)
	}
	for _, p := range httpapi.ProblemTexts() {
		of.Problems = append(of.Problems, pages.Problem(p))
	}
	of.ClientID, of.HTTPClient, of.URL, of.Log, of.Now = cfg.People.ClientID, carrier, cfg.Console.URL, s.log, time.Now
	return pages.New(of)
}

// bundlesFor returns a function that reports to the console the state of the bundles that verify SVIDs.
func bundlesFor(sources *attest.Sources) func() []pages.Bundle {
	return func() []pages.Bundle {
		var all []pages.Bundle
		for _, s := range sources.Status() {
			b := pages.Bundle{TrustDomain: s.TrustDomain.Name(), Problem: s.Err}
			if s.Available {
				b.Fetched = s.Fetched
			}
			all = append(all, b)
		}
		return all
	}
}
