package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/wait"
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
		c := &certificateFiles{cert: cfg.CertFile, key: cfg.KeyFile, log: s.Log, now: s.Now}
		if err := c.read(ctx); err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		go c.follow(ctx, rereadCertificate) // a file that cannot be read is no reason to stop
		return &servedCertificate{get: c.certificate, leaf: c.leaf, identity: func() error { return nil }, now: s.Now}, nil
	}
	identity := client.NewIdentity(cfg.SVID)
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(WorkloadAPI(cfg.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return nil, fmt.Errorf("tls.workload_api: %w", err)
	}
	s.onClose(func() { _ = source.Close() })
	if err := identity.Err(); err != nil {
		if chosen, ok := errors.AsType[*client.IdentityError](err); ok && len(chosen.Given) > 0 {
			err = fmt.Errorf("%w: set tls.svid", err)
		}
		return nil, fmt.Errorf("tls.workload_api: %w", err)
	}
	return &servedCertificate{get: tlsconfig.GetCertificate(source), leaf: identity.Leaf, identity: identity.Err, now: s.Now}, nil
}

// ready returns an error if the certificate has expired, or if the Workload API no longer gives this identity. The certificate
// would then expire soon.
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
	if leaf := c.leaf(); leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// watchCertificate is how often watch checks the certificate.
const watchCertificate = 10 * time.Second

// watch logs what happens to the certificate, until ctx ends.
func (c *servedCertificate) watch(ctx context.Context, log *slog.Logger, every time.Duration) error {
	leaf, said := c.leaf(), ""
	for wait.For(ctx, every) {
		if now := c.leaf(); now != nil && leaf != nil && !now.Equal(leaf) {
			leaf, said = now, ""
			name := leaf.Subject.String()
			switch {
			case len(leaf.URIs) > 0: // a SPIFFE ID
				name = leaf.URIs[0].String()
			case len(leaf.DNSNames) > 0:
				name = leaf.DNSNames[0]
			}
			log.InfoContext(ctx, "certificate renewed", "name", name, "expires", leaf.NotAfter)
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
	return ctx.Err()
}

// certificateExpiring is the problem of a certificate that was not renewed before the last fifth of its lifetime. SPIRE renews
// after half of it.
const certificateExpiring = "expires soon"

// problem describes what is wrong with the certificate. It is empty if nothing is wrong.
func (c *servedCertificate) problem(leaf *x509.Certificate) string {
	if err := c.ready(context.Background()); err != nil {
		return err.Error()
	}
	if leaf != nil && leaf.NotAfter.Sub(c.now()) < leaf.NotAfter.Sub(leaf.NotBefore)/5 {
		return certificateExpiring
	}
	return ""
}

// certificateFiles are a certificate chain and its key, each in a file.
type certificateFiles struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time
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
	if before := c.current.Load(); before != nil {
		if slices.EqualFunc(before.Certificate, pair.Certificate, slices.Equal) {
			return nil
		}
		now, leaf := c.now(), pair.Leaf // LoadX509KeyPair sets it
		if leaf == nil {
			return errors.New("the certificate was not parsed")
		}
		if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
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
	for wait.For(ctx, every) {
		if err := c.read(ctx); err != nil {
			c.log.WarnContext(ctx, "certificate reload failed; keeping the current one", "file", c.cert, "error", err)
		}
	}
}
