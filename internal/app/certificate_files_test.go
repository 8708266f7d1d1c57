package app

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// TestRenewedCertificateFiles checks that a renewed certificate is served without a restart, and that the old one is served
// until both files are replaced.
func TestRenewedCertificateFiles(t *testing.T) {
	t.Parallel()
	ca, caKey := testkit.SelfSigned(t)
	first, firstKey := testkit.Signed(t, ca, caKey)
	second, secondKey := testkit.Signed(t, ca, caKey)
	dir := t.TempDir()
	c := &certificateFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), log: slog.New(slog.DiscardHandler), now: time.Now}
	writePEM(t, c.cert, "CERTIFICATE", first.Raw)
	writePEM(t, c.key, "PRIVATE KEY", privateKey(t, firstKey))
	if err := c.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	go c.follow(t.Context(), 5*time.Millisecond)
	address := greeter(t, c)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	open := dialled(t, address, roots)

	if got := open.ConnectionState().PeerCertificates[0]; !got.Equal(first) {
		t.Fatal("what is in the files is not served")
	}
	writePEM(t, c.cert, "CERTIFICATE", second.Raw) // its key has not been written yet
	time.Sleep(50 * time.Millisecond)
	if got := dialled(t, address, roots).ConnectionState().PeerCertificates[0]; !got.Equal(first) {
		t.Error("a certificate without its key has changed what is served")
	}
	over, overKey := testkit.Certificate(t, &x509.Certificate{
		DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}, ca, caKey)
	writePEM(t, c.cert, "CERTIFICATE", over.Raw)
	writePEM(t, c.key, "PRIVATE KEY", privateKey(t, overKey))
	if err := c.read(t.Context()); err == nil {
		t.Error("a certificate whose time is over was taken")
	}
	if got := dialled(t, address, roots).ConnectionState().PeerCertificates[0]; !got.Equal(first) {
		t.Error("a certificate whose time is over is served")
	}
	writePEM(t, c.cert, "CERTIFICATE", second.Raw)
	writePEM(t, c.key, "PRIVATE KEY", privateKey(t, secondKey))
	deadline := time.Now().Add(patience)
	for !dialled(t, address, roots).ConnectionState().PeerCertificates[0].Equal(second) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for the renewed certificate to be served", patience)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := open.Write([]byte("still here")); err != nil {
		t.Errorf("an open connection has ended: %v", err)
	}
	answer := make([]byte, 10)
	if _, err := open.Read(answer); err != nil || string(answer) != "still here" {
		t.Errorf("an open connection answers %q, %v", answer, err)
	}
}

// greeter serves TLS with a certificate from files, and echoes what it receives.
func greeter(t *testing.T, c *certificateFiles) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: c.certificate, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go echo(conn)
		}
	}()
	return listener.Addr().String()
}

func echo(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	text := make([]byte, 100)
	for {
		n, err := conn.Read(text)
		if err != nil {
			return
		}
		if _, err := conn.Write(text[:n]); err != nil {
			return
		}
	}
}

func dialled(t *testing.T, address string, roots *x509.CertPool) *tls.Conn {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*tls.Conn) //nolint:forcetypeassert // a tls.Dialer makes nothing else
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func privateKey(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
