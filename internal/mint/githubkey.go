package mint

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
	"github.com/tink-crypto/tink-go/v2/kwp/subtle"
)

// mountGitHub enables the engines that credentials of kind github use, and imports the keys of Apps. Vault never gives a key out again.
func (b Bootstrap) mountGitHub(ctx context.Context, client *api.Client) error {
	if !b.GitHub && len(b.GitHubKeys) == 0 {
		return nil
	}
	for path, engine := range map[string]*api.MountInput{
		scopes.GitHubKeys:   {Type: "transit", Description: "Keys of GitHub Apps that Brevet signs with"},
		scopes.GitHubTokens: {Type: "kv", Options: map[string]string{"version": "1"}, Description: "Tokens of GitHub that Brevet will revoke"},
	} {
		if err := inUse(client.Sys().MountWithContext(ctx, path, engine)); err != nil {
			return fmt.Errorf("enabling the engine at %s: %w", path, err)
		}
	}
	for app, key := range b.GitHubKeys {
		if err := importKey(ctx, client, scopes.GitHubKeys+"/", app, key); err != nil {
			return fmt.Errorf("importing the key of the GitHub App %s: %w", app, err)
		}
	}
	return nil
}

// importKey imports an RSA key in PEM, as a new version if the key exists. The key leaves this process only encrypted for Vault.
func importKey(ctx context.Context, client *api.Client, mount, name string, key secret.Text) error {
	der, bits, err := readRSA(key)
	if err != nil {
		return err
	}
	answer, err := dataOf(client.Logical().ReadWithContext(ctx, mount+"wrapping_key"))
	if err != nil {
		return fmt.Errorf("reading the wrapping key: %w", err)
	}
	text, _ := answer["public_key"].(string)
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return fmt.Errorf("reading the wrapping key: %w", errNotUnderstood)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	wrapping, isRSA := parsed.(*rsa.PublicKey)
	if err != nil || !isRSA {
		return fmt.Errorf("reading the wrapping key: %w", errNotUnderstood)
	}
	// The two layers that Vault expects: the key encrypted by a new AES key (RFC 5649), and that by the wrapping key.
	ephemeral := make([]byte, 32)
	if _, err := rand.Read(ephemeral); err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	wrapper, err := subtle.NewKWP(ephemeral)
	if err != nil {
		return fmt.Errorf("wrapping the key: %w", err)
	}
	inner, err := wrapper.Wrap(der)
	if err != nil {
		return fmt.Errorf("wrapping the key: %w", err)
	}
	outer, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, wrapping, ephemeral, nil)
	if err != nil {
		return fmt.Errorf("wrapping the key: %w", err)
	}
	ciphertext := base64.StdEncoding.EncodeToString(append(outer, inner...))
	// Vault refuses to import a name that exists. Then the key is a new version, and signs from now on.
	if existing, err := client.Logical().ReadWithContext(ctx, mount+"keys/"+name); err != nil {
		return fmt.Errorf("reading the key: %w", err)
	} else if existing != nil {
		_, err := client.Logical().WriteWithContext(ctx, mount+"keys/"+name+"/import_version", map[string]any{"ciphertext": ciphertext, "hash_function": "SHA256"})
		if answer, ok := errors.AsType[*api.ResponseError](err); ok && answer.StatusCode == http.StatusBadRequest {
			return fmt.Errorf("%w: Vault does not accept it as a new version of the key that is there: %s", ErrConfig, clip(strings.Join(answer.Errors, " ")))
		}
		return err
	}
	_, err = client.Logical().WriteWithContext(ctx, mount+"keys/"+name+"/import", map[string]any{
		"ciphertext": ciphertext, "hash_function": "SHA256", "type": fmt.Sprintf("rsa-%d", bits),
		"exportable": false, "allow_plaintext_backup": false, "allow_rotation": false,
	})
	return err
}

// readRSA returns an RSA key in PKCS #8, with its size. GitHub gives keys out in PKCS #1.
func readRSA(text secret.Text) (der []byte, bits int, err error) {
	block, _ := pem.Decode([]byte(text.Reveal()))
	if block == nil {
		return nil, 0, fmt.Errorf("%w: it is not in PEM", ErrConfig)
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		parsed, failed := x509.ParsePKCS8PrivateKey(block.Bytes)
		other, isRSA := parsed.(*rsa.PrivateKey)
		if failed != nil || !isRSA {
			return nil, 0, fmt.Errorf("%w: it is not an RSA private key", ErrConfig)
		}
		key = other
	}
	switch bits = key.N.BitLen(); bits {
	case 2048, 3072, 4096:
	default:
		return nil, 0, fmt.Errorf("%w: an RSA key of %d bits cannot be imported, only 2048, 3072 or 4096", ErrConfig, bits)
	}
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, 0, fmt.Errorf("encoding the key: %w", err)
	}
	return der, bits, nil
}
