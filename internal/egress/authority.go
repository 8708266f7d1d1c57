package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"sync"
	"time"
)

const (
	authorityLife = 90 * 24 * time.Hour
	leafLife      = 24 * time.Hour
	// early backdates certificates, for sandboxes whose clocks are behind.
	early = 5 * time.Minute
	// mostLeaves bounds memory: the catalogue and its wildcards decide which names exist.
	mostLeaves = 1000
)

// authority signs the certificates that sandboxes see. Its key exists only in memory, for as long as the gateway runs.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
	now  func() time.Time

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

func newAuthority(now func() time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	template := template(now(), authorityLife, "brevet egress")
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the authority: %w", err)
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &authority{key: key, cert: cert, pem: encoded, now: now, leaves: map[string]*tls.Certificate{}}, nil
}

// template returns an unsigned certificate with a random 127-bit serial number, because no two certificates may share one.
func template(now time.Time, life time.Duration, name string) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // crypto/rand never fails
	serial[0] &= 0x7f
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-early), NotAfter: now.Add(life),
	}
}

// leaf returns the certificate for a host. It caches each certificate for half of its life.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if kept := a.leaves[host]; kept != nil && a.now().Before(kept.Leaf.NotAfter.Add(-leafLife/2)) {
		return kept, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	template := template(a.now(), leafLife, "")
	template.DNSNames = []string{host}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	if len(a.leaves) >= mostLeaves {
		clear(a.leaves)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	a.leaves[host] = made
	return made, nil
}
