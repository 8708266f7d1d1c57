package githubapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"time"
)

// listener can cut all connections, so that callers cannot reach the double.
type listener struct {
	net.Listener

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			_ = conn.Close()
			continue
		}
		tracked := &trackedConn{conn, l}
		l.open[tracked] = struct{}{}
		l.mu.Unlock()
		return tracked, nil
	}
}

// cut closes all connections, and each new one before TLS, until it is called with false.
func (l *listener) cut(closed bool) {
	l.mu.Lock()
	l.closed = closed
	var open []net.Conn
	if closed {
		for conn := range l.open {
			open = append(open, conn)
		}
	}
	l.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
}

type trackedConn struct {
	net.Conn

	from *listener
}

func (c *trackedConn) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// authority is a certificate authority with one server certificate.
type authority struct {
	cert   *x509.Certificate
	pem    []byte
	server tls.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test authority of GitHub's double"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: new(big.Int).Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: "github.com"},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"github.com", "api.github.com", "localhost", "github.test", "api.github.test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, cert, leafKey.Public(), key)
	if err != nil {
		return nil, err
	}
	return &authority{
		cert: cert, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		server: tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey},
	}, nil
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}
