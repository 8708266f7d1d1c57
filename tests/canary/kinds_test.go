package canary_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"golang.org/x/crypto/ssh"
)

// kindsYAML has scopes of the kinds that need a Vault engine.
const kindsYAML = `scopes:
  - name: kinds.stored
    title: A stored secret
    authority: read
    resource: test:secret
    ttl: {default: 5m, max: 5m}
    credential: {kind: kv, path: secret/data/agents/canary}
  - name: kinds.path
    title: Whatever is at a path
    authority: read
    resource: test:path
    ttl: {default: 5m, max: 5m}
    credential: {kind: vault, method: read, path: database/creds/reporting}
  - name: kinds.pki
    title: A certificate
    authority: read
    resource: test:host
    ttl: {default: 5m, max: 5m}
    credential: {kind: pki, mount: pki, role: web, common_name: build-7.acme.test}
  - name: kinds.ssh
    title: An SSH certificate
    authority: read
    resource: test:user
    ttl: {default: 5m, max: 5m}
    credential: {kind: ssh, mount: ssh, role: deploy, principals: [deploy]}
`

// kinds requests one credential of each kind. A certificate is public. Only its key is secret, and the broker never has that.
func (w *world) kinds(t *testing.T, sandbox *client.Client) {
	t.Helper()
	stored := rand.Text()
	path, data := "secret/data/agents/canary", map[string]any{"data": map[string]any{"api_key": stored}}
	if _, err := w.Vault(t).Logical().WriteWithContext(t.Context(), path, data); err != nil {
		t.Fatal(err)
	}
	if got := w.field(t, w.issue(t, sandbox, client.Ask{Scope: "kinds.stored"}), "api_key"); got != stored {
		t.Fatal("what was stored is not what was handed over")
	}
	w.secrets["stored secret"] = stored
	w.secrets["password at a path"] = w.field(t, w.issue(t, sandbox, client.Ask{Scope: "kinds.path"}), "password")

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.keep(t, "private key of the certificates", key)
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	w.issue(t, sandbox, client.Ask{
		Scope: "kinds.pki", CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})),
	})
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	w.issue(t, sandbox, client.Ask{Scope: "kinds.ssh", PublicKey: string(ssh.MarshalAuthorizedKey(public))})
}

// field returns a member of the data that Vault returned for a path.
func (w *world) field(t *testing.T, token *client.Token, name string) string {
	t.Helper()
	var data map[string]any
	if err := json.Unmarshal([]byte(token.Field("data").Reveal()), &data); err != nil {
		t.Fatal(err)
	}
	text, _ := data[name].(string)
	return text
}
