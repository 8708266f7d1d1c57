package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// rereadCertificate is the interval at which certificate files are read. Certificates are usually renewed days before they
// expire.
const rereadCertificate = 30 * time.Second

// servedCertificate provides the server's current certificate and reports problems with it.
type servedCertificate struct {
	get  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	leaf func() *x509.Certificate
	// identity returns an error while the Workload API does not give the broker's SVID. It always returns nil for files.
	identity func() error
	now      func() time.Time
}

// openCertificate opens the configured certificate and keeps it current. SVIDs rotate many times a day, and certificate
// files change when somebody renews them.
func (s *service) openCertificate(ctx context.Context, cfg TLSConfig) (*servedCertificate, error) {
	if cfg.CertFile != "" {
		c := &certificateFiles{cert: cfg.CertFile, key: cfg.KeyFile, log: s.log}
		if err := c.read(ctx); err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		go c.follow(ctx, rereadCertificate) // a file that cannot be read is no reason to stop
		return &servedCertificate{get: c.certificate, leaf: c.leaf, identity: func() error { return nil }, now: time.Now}, nil
	}
	identity := client.NewIdentity(cfg.SVID)
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(cfg.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return nil, fmt.Errorf("tls.workload_api: %w", err)
	}
	s.onClose(func() { _ = source.Close() })
	if err := identity.Err(); err != nil {
		return nil, fmt.Errorf("tls.workload_api: %w", withOption(err, "tls.svid"))
	}
	return &servedCertificate{get: tlsconfig.GetCertificate(source), leaf: identity.Leaf, identity: identity.Err, now: time.Now}, nil
}

// ready returns an error if the certificate has expired, or if the Workload API no longer gives this identity, so that the
// certificate is about to expire.
func (c *servedCertificate) ready(context.Context) error {
	if err := c.identity(); err != nil {
		return err
	}
	if end := c.expires(); !c.now().Before(end) {
		return fmt.Errorf("the certificate expired at %s", end.Format(time.RFC3339))
	}
	return nil
}

func (c *servedCertificate) expires() time.Time {
	leaf := c.leaf()
	if leaf == nil {
		return time.Time{}
	}
	return leaf.NotAfter
}

const (
	// watchCertificate is how often watch checks the certificate.
	watchCertificate = 10 * time.Second
	// lastFifth defines when watch warns about a certificate that was not renewed: in the last fifth of its lifetime. SPIRE
	// renews after half of it.
	lastFifth = 5
)

// watch logs what happens to the certificate, until ctx ends.
func (c *servedCertificate) watch(ctx context.Context, log *slog.Logger, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	leaf, said := c.leaf(), ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if now := c.leaf(); now != nil && leaf != nil && !now.Equal(leaf) {
			leaf, said = now, ""
			log.InfoContext(ctx, "certificate renewed", "name", nameOf(leaf), "expires", leaf.NotAfter)
		}
		if problem := c.problem(leaf); problem != said {
			said = problem
			switch problem {
			case "":
			case certificateExpiring:
				log.WarnContext(ctx, "certificate expires soon and was not renewed", "expires", c.expires())
			default:
				log.ErrorContext(ctx, "certificate is not usable", "problem", problem, "expires", c.expires())
			}
		}
	}
}

const certificateExpiring = "expires soon"

// problem describes what is wrong with the certificate. It is empty if nothing is wrong.
func (c *servedCertificate) problem(leaf *x509.Certificate) string {
	if err := c.ready(context.Background()); err != nil {
		return err.Error()
	}
	if leaf != nil && leaf.NotAfter.Sub(c.now()) < leaf.NotAfter.Sub(leaf.NotBefore)/lastFifth {
		return certificateExpiring
	}
	return ""
}

// nameOf returns a certificate's SPIFFE ID, its first DNS name, or its subject.
func nameOf(leaf *x509.Certificate) string {
	if len(leaf.URIs) > 0 {
		return leaf.URIs[0].String()
	}
	if len(leaf.DNSNames) > 0 {
		return leaf.DNSNames[0]
	}
	return leaf.Subject.String()
}

// certificateFiles are a certificate chain and its key, each in a file.
type certificateFiles struct {
	cert, key string
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]
}

func (c *certificateFiles) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

func (c *certificateFiles) leaf() *x509.Certificate { return c.current.Load().Leaf }

// read loads the files if they hold a certificate and its key. It refuses a new certificate that has expired or is not
// valid yet.
func (c *certificateFiles) read(ctx context.Context) error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	before := c.current.Load()
	switch {
	case before == nil:
	case slices.EqualFunc(before.Certificate, pair.Certificate, slices.Equal):
		return nil
	default:
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			return err
		}
		if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
			return fmt.Errorf("the certificate is valid only from %s until %s", leaf.NotBefore, leaf.NotAfter)
		}
		c.log.InfoContext(ctx, "serving with a new certificate", "file", c.cert, "until", leaf.NotAfter)
	}
	c.current.Store(&pair)
	return nil
}

// follow reads the files periodically until ctx ends. It keeps the current certificate if it cannot read the new one, for
// example because the new key has not been written yet, or if the new one is not valid now.
func (c *certificateFiles) follow(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := c.read(ctx); err != nil {
				c.log.WarnContext(ctx, "certificate reload failed; keeping the current one", "file", c.cert, "error", err)
			}
		}
	}
}
