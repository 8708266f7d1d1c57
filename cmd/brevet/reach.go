package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
)

// check reports what is wrong without reading the CA file.
func (r ReachConfig) check(name string) error {
	var errs []error
	for _, cidr := range r.AllowPrivateCIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			errs = append(errs, fmt.Errorf("%s.allow_private_cidrs: %q is not a network such as 10.1.0.0/16", name, cidr))
		}
	}
	return errors.Join(errs...)
}

// target reads the CA file and returns the target for a URL.
func (r ReachConfig) target(url string) (safehttp.Target, error) {
	t := safehttp.Target{URL: secret.New(url)}
	for _, cidr := range r.AllowPrivateCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return t, fmt.Errorf("allow_private_cidrs: %w", err)
		}
		t.AllowPrivate = append(t.AllowPrivate, prefix.Masked())
	}
	if r.AllowHTTPLoopback {
		t.Plaintext = safehttp.PlaintextLoopback
	}
	if r.CAFile == "" {
		return t, nil
	}
	roots, err := readRoots(r.CAFile)
	if err != nil {
		return t, fmt.Errorf("ca_file: %w", err)
	}
	t.Roots = roots
	return t, nil
}

// readRoots returns the certificates in a PEM file.
func readRoots(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no PEM certificate", path)
	}
	return roots, nil
}
