package testkit

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
	"hash"
	"strings"
	"testing"
)

// KeyUpdates makes KeyUpdate records (RFC 8446, section 4.6.3), each under the keys that the previous one announced.
type KeyUpdates struct {
	secret []byte
	hash   func() hash.Hash
	keyLen int
}

// NewKeyUpdates takes the keys of a connection from the client's key log.
func NewKeyUpdates(t testing.TB, log string, suite uint16) *KeyUpdates {
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
			return &KeyUpdates{secret, sha512.New384, 32}
		}
		if suite == tls.TLS_AES_128_GCM_SHA256 {
			return &KeyUpdates{secret, sha256.New, 16}
		}
	}
	t.Fatalf("no secret in the key log, or cipher suite %x, which is not AES", suite)
	return nil
}

// Next returns the record of the next update.
func (k *KeyUpdates) Next(t testing.TB) []byte {
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
func (k *KeyUpdates) expand(t testing.TB, label string, length int) []byte {
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
