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
	pem, err := os.ReadFile(r.CAFile)
	if err != nil {
		return t, fmt.Errorf("ca_file: %w", err)
	}
	t.Roots = x509.NewCertPool()
	if !t.Roots.AppendCertsFromPEM(pem) {
		return t, fmt.Errorf("ca_file: %s holds no PEM certificate", r.CAFile)
	}
	return t, nil
}
