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

	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// rereadCertificate is how often files with a certificate are read: whoever renews it does so days before it ends.
const rereadCertificate = 30 * time.Second

// openCertificate returns a function that gives the current certificate: SVIDs are replaced many times a day, and files when
// somebody renews what is in them.
func (s *service) openCertificate(ctx context.Context, cfg TLSConfig) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if cfg.CertFile != "" {
		c := &certificateFiles{cert: cfg.CertFile, key: cfg.KeyFile, log: s.log}
		if err := c.read(ctx); err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		go c.follow(ctx, rereadCertificate) // nobody waits for a file that cannot be read
		return c.certificate, nil
	}
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(cfg.WorkloadAPI)...))
	if err != nil {
		return nil, fmt.Errorf("tls.workload_api: %w", err)
	}
	s.onClose(func() { _ = source.Close() })
	return tlsconfig.GetCertificate(source), nil
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
				c.log.WarnContext(ctx, "the certificate cannot be read again: the last one is served on", "file", c.cert, "error", err)
			}
		}
	}
}
