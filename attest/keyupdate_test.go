package attest_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// H28: a client that only updates its keys is cut off. crypto/tls has no call for that, so the test builds the records itself,
// with the secret from the key log.
func TestKeyUpdateFlood(t *testing.T) {
	w := newWorld(t)
	pair, roots := serverPair(t, w)
	cfg := w.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	ended := make(chan error, 1)
	go func() { ended <- readUntilError(ln, cfg) }()

	raw, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	var log bytes.Buffer
	svid := w.acme.svid(t, w.acme.leaf("/agents/a"))
	client := tls.Client(raw, &tls.Config{
		RootCAs: roots, ServerName: "localhost", KeyLogWriter: &log, Certificates: []tls.Certificate{svid},
	})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	flood := testkit.NewKeyUpdates(t, log.String(), client.ConnectionState().CipherSuite)
	_ = raw.SetWriteDeadline(time.Now().Add(patience))
	for range 100 {
		if _, err := raw.Write(flood.Next(t)); err != nil {
			break // cut off already
		}
	}
	err = <-ended
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "too many") {
		t.Errorf("got %v, want the server to end the connection for too many records", err)
	}
}

func readUntilError(ln net.Listener, cfg *tls.Config) error {
	raw, err := ln.Accept()
	if err != nil {
		return err
	}
	conn := tls.Server(raw, cfg)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = conn.Read(make([]byte, 1))
	return err
}
