package testkit

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
)

// The GitHub App of a GitHub, as a scope of kind github names it.
const (
	GitHubApp          = "acme"
	GitHubInstallation = 48872301
	gitHubClientID     = "Iv23liAcmeBrevetTest"
)

// GitHub is a double of GitHub with an App that is installed on the account acme, with the repositories api, docs and site.
type GitHub struct {
	*githubapi.Server

	// KeyPEM is the App's private key.
	KeyPEM secret.Text
}

// gitHubKey is the key of the App in all tests of a process, because they share a Vault.
var gitHubKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// StartGitHub starts a GitHub that ends with the test.
func StartGitHub(t testing.TB) *GitHub {
	t.Helper()
	key, err := gitHubKey()
	if err != nil {
		t.Fatal(err)
	}
	server := githubapi.Start(t, githubapi.Options{
		Apps: []githubapi.App{{
			ID: 1001, ClientID: gitHubClientID, Slug: "brevet-acme", Keys: []*rsa.PublicKey{&key.PublicKey},
			Installations: []githubapi.Installation{{
				ID: GitHubInstallation, Owner: "acme", Repositories: []string{"api", "docs", "site"},
				Permissions: map[string]string{"contents": "write", "issues": "write", "pull_requests": "write"},
			}},
		}},
		Repositories: []string{"acme/secret", "evil/api"},
	})
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return &GitHub{server, secret.New(string(block))}
}

// App returns the App as a server's configuration has it.
func (g *GitHub) App() mint.GitHubApp {
	u, err := url.Parse(g.URL())
	if err != nil {
		panic(err)
	}
	return mint.GitHubApp{App: github.App{ClientID: gitHubClientID, URL: u}, Roots: g.Roots()}
}

// gitHubImported imports the App's key into the Vault of this process once.
var gitHubImported sync.Once

// apps returns the configuration of the Apps, and the keys that are to be imported.
func (g *GitHub) apps() (apps map[string]mint.GitHubApp, keys map[string]secret.Text) {
	if g == nil {
		return nil, nil
	}
	gitHubImported.Do(func() { keys = map[string]secret.Text{GitHubApp: g.KeyPEM} })
	return map[string]mint.GitHubApp{GitHubApp: g.App()}, keys
}
