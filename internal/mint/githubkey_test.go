package mint_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/secret"
)

func encoded(kind string, der []byte, err error) secret.Text {
	if err != nil {
		panic(err)
	}
	return secret.New(string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

// Bootstrap imports the key of a GitHub App so that Vault signs with it and never gives it out. A second key replaces the first.
func TestBootstrapImportsKeysOfGitHubApps(t *testing.T) {
	a := realVault(t)
	signs := func(app string) []byte {
		t.Helper()
		answer := a.write(t, "brevet-github/sign/"+app+"/sha2-256", map[string]any{
			"input": base64.StdEncoding.EncodeToString([]byte("text")), "signature_algorithm": "pkcs1v15", "marshaling_algorithm": "jws",
		})
		text, _ := answer["signature"].(string)
		raw, err := base64.RawURLEncoding.DecodeString(text[strings.LastIndexByte(text, ':')+1:])
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	digest := sha256.Sum256([]byte("text"))
	for i, bits := range []int{2048, 2048, 4096} {
		app := []string{"import-a", "import-a", "import-b"}[i]
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		text := encoded("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), nil)
		if i == 2 {
			der, err := x509.MarshalPKCS8PrivateKey(key)
			text = encoded("PRIVATE KEY", der, err)
		}
		b := bootstrap(a.Addr(), a.RootToken())
		b.GitHubKeys = map[string]secret.Text{app: text}
		if _, err := b.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, digest[:], signs(app)); err != nil {
			t.Errorf("key %d: %v", i, err)
		}
		if _, err := a.root.Logical().ReadWithContext(t.Context(), "brevet-github/export/signing-key/"+app); err == nil {
			t.Error("Vault gives the key out")
		}
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	for name, bad := range map[string]secret.Text{
		"not in PEM": secret.New("x"), "not RSA": encoded("PRIVATE KEY", der, err), "short": encoded("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(short), nil),
	} {
		b := bootstrap(a.Addr(), a.RootToken())
		b.GitHubKeys = map[string]secret.Text{"import-a": bad}
		if _, err := b.Run(t.Context()); !errors.Is(err, mint.ErrConfig) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b := bootstrap(a.Addr(), a.RootToken())
	b.GitHubKeys = map[string]secret.Text{"../x": secret.New("x")}
	if _, err := b.Run(t.Context()); !errors.Is(err, mint.ErrConfig) {
		t.Errorf("got %v for an App that is no plain name", err)
	}
}
