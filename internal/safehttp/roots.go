package safehttp

import (
	"crypto/x509"
	"fmt"
	"os"
)

// ReadRoots returns the certificates in a PEM file.
func ReadRoots(path string) (*x509.CertPool, error) {
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
