package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
)

// jktOf returns the key thumbprint that a token is bound to, or an empty string.
func jktOf(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		t.Fatalf("got %q, want a token", token)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Confirm struct {
			JKT string `json:"jkt"`
		} `json:"cnf"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return claims.Confirm.JKT
}

// pemFile writes the blocks to a file one after the other.
func pemFile(t *testing.T, blocks ...*pem.Block) string {
	t.Helper()
	var text bytes.Buffer
	for _, block := range blocks {
		if err := pem.Encode(&text, block); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pkcs8(t *testing.T, key any) *pem.Block {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &pem.Block{Type: "PRIVATE KEY", Bytes: der}
}

// bindsToKey checks that request and exec bind a token to the named key, and that the record says so.
func (s *session) bindsToKey(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	want := signer.Thumbprint()
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := pemFile(t, pkcs8(t, key))
	for name, file := range map[string]string{
		"PKCS #8": file,
		"SEC 1":   pemFile(t, &pem.Block{Type: "EC PARAMETERS", Bytes: []byte{5, 0}}, &pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1}),
	} {
		got := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-bound", "--dpop-key", file)
		got.want(t, 0, "requires DPoP proofs with your key")
		if jkt := jktOf(t, got.out); jkt != want {
			t.Errorf("%s: got a token bound to %q, want %q", name, jkt, want)
		}
		if strings.Contains(got.out+got.err, "PRIVATE") {
			t.Error("the key was printed")
		}
	}
	login := brevet(t, s.env, "request", "reports.orders.read", "--task", "t-bound", "--dpop-key", file)
	login.want(t, 0, "username=")
	got := s.exec(t, `echo "$TOKEN"`, "--dpop-key", file, "--scope", "github.issues.read", "--param", "repo=acme/api", "--env", "TOKEN")
	if jkt := jktOf(t, got.out); jkt != want {
		t.Errorf("got a token bound to %q by exec, want %q", jkt, want)
	}
	plain := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-bound")
	if jkt := jktOf(t, plain.out); jkt != "" {
		t.Errorf("without a key: got a token bound to %q", jkt)
	}
	record := brevet(t, s.as("auditor"), "audit", "export", "--format", "csv")
	if n := strings.Count(record.out, want); n != 3 {
		t.Errorf("the export names the key %d times, want once for each token", n)
	}
}

func TestInvalidDPoPKeysAreRefused(t *testing.T) {
	t.Parallel()
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ file, says string }{
		"public":      {pemFile(t, &pem.Block{Type: "PUBLIC KEY", Bytes: public}), "holds no private key in PEM"},
		"RSA":         {pemFile(t, pkcs8(t, weak)), "an unsupported key type"},
		"P-224":       {pemFile(t, pkcs8(t, key)), "an unsupported key type"},
		"damaged":     {pemFile(t, &pem.Block{Type: "PRIVATE KEY", Bytes: []byte("hunter2")}), "cannot be read"},
		"nothing":     {pemFile(t), "is empty"},
		"not a file":  {filepath.Join(t.TempDir(), "none"), "no such file"},
		"encrypted":   {pemFile(t, &pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), "holds no private key in PEM"},
		"too large":   {pemFile(t, &pem.Block{Type: "PRIVATE KEY", Bytes: make([]byte, 1<<17)}), "larger than"},
		"other lines": {pemFile(t, &pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "openssl genpkey"},
	} {
		args := []string{"github.issues.read", "--task", "t", "--dpop-key", tc.file}
		env := []string{"BREVET_SERVER=https://localhost:1", "SPIFFE_ENDPOINT_SOCKET=unix:///nowhere.sock"}
		got := brevet(t, env, append([]string{"request"}, args...)...)
		if got.code == 0 || !strings.Contains(got.err, tc.says) || strings.Contains(got.err, "hunter2") {
			t.Errorf("%s: got %d, %s; want %q", name, got.code, got.err, tc.says)
		}
	}
}
