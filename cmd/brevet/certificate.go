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

// rereadCertificate is how often files with a certificate are read: whoever renews it does so days before it ends.
const rereadCertificate = 30 * time.Second

// servedCertificate is what the server proves itself with, and what may be wrong with it.
type servedCertificate struct {
	get  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	leaf func() *x509.Certificate
	// identity says why the Workload API does not give the broker's SVID at the moment; nil for files.
	identity func() error
	now      func() time.Time
}

// openCertificate returns the current certificate: SVIDs are replaced many times a day, and files when somebody renews what is in them.
func (s *service) openCertificate(ctx context.Context, cfg TLSConfig) (*servedCertificate, error) {
	if cfg.CertFile != "" {
		c := &certificateFiles{cert: cfg.CertFile, key: cfg.KeyFile, log: s.log}
		if err := c.read(ctx); err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		go c.follow(ctx, rereadCertificate) // nobody waits for a file that cannot be read
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

// ready fails when clients would refuse the certificate, or when it is about to expire because the Workload API no longer gives this identity.
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
	// watchCertificate is how often the certificate is looked at for the log.
	watchCertificate = 10 * time.Second
	// lastFifth of a certificate's life is when one that was not renewed is worth a warning. SPIRE renews at half of it.
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

// problem is what is wrong with the certificate; empty when nothing is.
func (c *servedCertificate) problem(leaf *x509.Certificate) string {
	if err := c.ready(context.Background()); err != nil {
		return err.Error()
	}
	if leaf != nil && leaf.NotAfter.Sub(c.now()) < leaf.NotAfter.Sub(leaf.NotBefore)/lastFifth {
		return certificateExpiring
	}
	return ""
}

// nameOf is the SPIFFE ID of a certificate, or its first DNS name.
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

// read takes what is in the files, if it is a certificate with its key.
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
			return fmt.Errorf("the certificate is good from %s until %s", leaf.NotBefore, leaf.NotAfter)
		}
		c.log.InfoContext(ctx, "serving with a new certificate", "file", c.cert, "until", leaf.NotAfter)
	}
	c.current.Store(&pair)
	return nil
}

// follow reads the files again and again until ctx ends. What cannot be read, such as a certificate whose key has not been
// written yet, changes nothing, and neither does one whose time is over.
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
