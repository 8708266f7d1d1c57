package attest_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// H28: a client that does nothing but update its keys is cut off. crypto/tls has no call for that, so the records
// are made here, with the secret from the key log.
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
	flood := newKeyUpdates(t, log.String(), client.ConnectionState().CipherSuite)
	_ = raw.SetWriteDeadline(time.Now().Add(patience))
	for range 100 {
		if _, err := raw.Write(flood.next(t)); err != nil {
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

// keyUpdates makes the records of RFC 8446, section 4.6.3, each under the keys that the one before announced.
type keyUpdates struct {
	secret []byte
	hash   func() hash.Hash
	keyLen int
}

func newKeyUpdates(t *testing.T, log string, suite uint16) *keyUpdates {
	t.Helper()
	for line := range strings.Lines(log) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "CLIENT_TRAFFIC_SECRET_0" {
			continue
		}
		secret, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		if suite == tls.TLS_AES_256_GCM_SHA384 {
			return &keyUpdates{secret, sha512.New384, 32}
		}
		if suite == tls.TLS_AES_128_GCM_SHA256 {
			return &keyUpdates{secret, sha256.New, 16}
		}
	}
	t.Fatalf("no secret in the key log, or cipher suite %x, which is not AES", suite)
	return nil
}

func (k *keyUpdates) next(t *testing.T) []byte {
	t.Helper()
	block, err := aes.NewCipher(k.expand(t, "key", k.keyLen))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	inner := []byte{24, 0, 0, 1, 0, 22} // key_update, length 1, update_not_requested, content type handshake
	header := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(inner)+aead.Overhead()))
	record := aead.Seal(bytes.Clone(header), k.expand(t, "iv", 12), inner, header)
	k.secret = k.expand(t, "traffic upd", len(k.secret))
	return record
}

// expand is HKDF-Expand-Label with an empty context (RFC 8446, section 7.1).
func (k *keyUpdates) expand(t *testing.T, label string, length int) []byte {
	t.Helper()
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(length))
	info = append(append(info, byte(len(label))), label...)
	out, err := hkdf.Expand(k.hash, k.secret, string(append(info, 0)), length)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
