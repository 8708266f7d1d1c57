package faults_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/crypto/ssh"
)

// catalogue has one scope of each kind, with the kind as its name.
var catalogue = []scopes.File{
	{Name: "scopes.yaml", Data: []byte(openScopes)},
	{Name: "gated.yaml", Data: []byte(gatedScopes)},
	{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);
@id("people") forbid (principal, action in Action::"gated.*", resource) unless { context.approved };`)},
}

// gatedScopes are the same scopes, with approval by a person.
var gatedScopes = strings.NewReplacer("- name: test.", "- name: gated.",
	"ttl: {default: 10m, max: 10m}", "ttl: {default: 10m, max: 10m}\n    approval: {group: oncall}",
	"ttl: {default: 15m, max: 15m}", "ttl: {default: 15m, max: 15m}\n    approval: {group: oncall}").Replace(openScopes)

const openScopes = `
scopes:
  - name: test.jwt
    title: A signed token
    authority: read
    resource: test:jwt
    ttl: {default: 10m, max: 10m}
    credential: {kind: jwt, audience: https://gateway.acme.test}
  - name: test.vault-token
    title: A Vault token
    authority: read
    params: {agent: {type: enum, values: [researcher, writer]}}
    resource: test:agents/{agent}
    ttl: {default: 10m, max: 10m}
    credential: {kind: vault-token, policy: [{path: 'secret/data/agents/{agent}', capabilities: [read]}]}
  - name: test.database
    title: A database login
    authority: read
    resource: test:database
    ttl: {default: 10m, max: 10m}
    credential: {kind: database, mount: database, role: reporting}
  - name: test.carried
    title: A database login without a token of its own
    authority: read
    resource: test:carried
    ttl: {default: 10m, max: 10m}
    credential: {kind: database, mount: database, role: reporting}
  - name: test.pki
    title: A certificate
    authority: read
    params: {host: {type: string, pattern: '[a-z0-9-]+'}}
    resource: test:host/{host}
    ttl: {default: 10m, max: 10m}
    credential: {kind: pki, mount: pki, role: web, common_name: '{host}.acme.test'}
  - name: test.ssh
    title: An SSH certificate
    authority: read
    params: {user: {type: string, pattern: '[a-z]+'}}
    resource: test:user/{user}
    ttl: {default: 10m, max: 10m}
    credential: {kind: ssh, mount: ssh, role: deploy, principals: ['{user}']}
  - name: test.kv
    title: A stored secret
    authority: read
    params: {name: {type: string, pattern: '[a-z]+'}}
    resource: test:secret/{name}
    ttl: {default: 10m, max: 10m}
    credential: {kind: kv, path: 'secret/data/agents/{name}'}
  - name: test.vault
    title: Whatever is at a path
    authority: read
    params: {role: {type: string, pattern: '[a-z]+'}}
    resource: test:role/{role}
    ttl: {default: 10m, max: 10m}
    credential: {kind: vault, method: read, path: 'database/creds/{role}'}
  - name: test.github
    title: A token of GitHub
    authority: read
    params: {repo: {type: string, pattern: '[a-z]+'}}
    resource: test:repo/{repo}
    ttl: {default: 10m, max: 10m}
    credential: {kind: github, app: acme, installation: 48872301, repositories: ['acme/{repo}'], permissions: {issues: read}}
  - name: test.aws
    title: Keys of AWS that nobody can revoke
    authority: read
    resource: test:aws
    ttl: {default: 15m, max: 15m}
    credential: {kind: vault, method: write, path: aws/creds/site, revocable: false, min_ttl: 15m}
  - name: test.kubernetes
    title: A token of a new service account
    authority: read
    resource: test:kubernetes
    ttl: {default: 10m, max: 10m}
    credential: {kind: vault, method: write, path: kubernetes/creds/pods, data: {kubernetes_namespace: shop, ttl: 10m}}
`

// kind says how to request one kind of credential, and how to find out whether it works.
type kind struct {
	name string
	body func() map[string]any
	// works reports whether the credential opens its target. It returns an error if it cannot find out. It is nil for a kind that
	// only expires.
	works func(ctx context.Context, e *inventory, a answer) (bool, error)
	// second means that a fault strikes the second credential of a replica. The first of a database login has a token of its own.
	second bool
	// lives is works for a kind that nobody can revoke.
	lives func(ctx context.Context, e *inventory, a answer) (bool, error)
}

func (k kind) leased() bool { return k.works != nil }

// opens calls works until it returns no error: a server that is down rejects valid credentials too.
func (k kind) opens(t *testing.T, e *inventory, a answer) bool {
	t.Helper()
	for began := time.Now(); ; pauseFor(t.Context(), 200*time.Millisecond) {
		works, err := k.works(t.Context(), e, a)
		if err == nil {
			return works
		}
		if t.Context().Err() != nil || time.Since(began) > patience(5*time.Second) {
			t.Fatalf("whether the %s works could not be told: %v", k.name, err)
		}
	}
}

func (k kind) static() bool  { return k.name == "kv" }
func (k kind) dynamic() bool { return k.name != "jwt" }

var kinds = []kind{
	{name: "jwt", body: plain(nil)},
	{name: "vault-token", body: plain(map[string]any{"agent": "researcher"}), works: tokenWorks},
	{name: "database", body: plain(nil), works: loginWorks},
	{name: "carried", body: plain(nil), works: loginWorks, second: true},
	{name: "pki", body: withCSR, works: certificateWorks},
	{name: "ssh", body: withPublicKey},
	{name: "kv", body: plain(map[string]any{"name": "researcher"})},
	{name: "vault", body: plain(map[string]any{"role": "reporting"}), works: dataLoginWorks},
	{name: "github", body: plain(map[string]any{"repo": "api"}), works: issuesOpen},
	{name: "aws", body: plain(nil), lives: keyWorks},
	{name: "kubernetes", body: plain(nil), works: accountWorks},
}

func plain(params map[string]any) func() map[string]any {
	return func() map[string]any {
		if params == nil {
			return map[string]any{}
		}
		return map[string]any{"params": params}
	}
}

func withCSR() map[string]any {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err)
	}
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return map[string]any{"params": map[string]any{"host": "build-7"}, "csr": string(csr)}
}

func withPublicKey() map[string]any {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		panic(err)
	}
	return map[string]any{
		"params": map[string]any{"user": "deploy"}, "public_key": strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))),
	}
}

// answer is the response that a sandbox received.
type answer struct {
	status     int
	ID         string         `json:"id"`
	Kind       string         `json:"kind"`
	Token      string         `json:"token"`
	Credential map[string]any `json:"credential"`
	Code       string         `json:"code"`
	Ended      []struct {
		ID, Status, Cause, Why string
	} `json:"ended"`
}

func (a answer) has() bool { return a.status == http.StatusCreated }

func (a answer) text(name string) string {
	text, _ := a.Credential[name].(string)
	return text
}

// call sends one request and never a second: a broken connection is an outcome too. A nil body is none.
func call(ctx context.Context, client *http.Client, target string, body map[string]any) (answer, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	if body == nil {
		encoded = nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(encoded))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, broken := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	a := answer{status: resp.StatusCode}
	// A caller with the whole body has the credential, even if the connection broke right after it.
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, errors.Join(broken, fmt.Errorf("status %d with a body that is no JSON: %w", resp.StatusCode, err))
	}
	return a, nil
}

func tokenWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	req := e.vault.NewRequest(http.MethodGet, "/v1/secret/data/agents/researcher")
	req.ClientToken = a.text("token")
	resp, err := e.vault.RawRequestWithContext(ctx, req) //nolint:staticcheck // the only call that takes a token of its own
	if resp != nil {
		_ = resp.Body.Close()
	}
	if said, ok := errors.AsType[*api.ResponseError](err); ok && said.StatusCode == http.StatusForbidden {
		return false, nil
	}
	return err == nil, err
}

func loginWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	return login(ctx, e.target, a.text("username"), a.text("password"))
}

func dataLoginWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	data, _ := a.Credential["data"].(map[string]any)
	user, _ := data["username"].(string)
	password, _ := data["password"].(string)
	return login(ctx, e.target, user, password)
}

func issuesOpen(ctx context.Context, e *inventory, a answer) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.hub.URL()+"/repos/acme/api/issues", nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+a.text("token"))
	req.Header.Set("User-Agent", "faults")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: e.hub.Roots(), MinVersion: tls.VersionTLS12}}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusUnauthorized:
		return false, nil
	default:
		return false, fmt.Errorf("GitHub answers %d", resp.StatusCode)
	}
}

func keyWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	data, _ := a.Credential["data"].(map[string]any)
	id, _ := data["access_key"].(string)
	key, _ := data["secret_key"].(string)
	session, _ := data["session_token"].(string)
	return e.engines.STS.Accepts(ctx, id, key, session)
}

func accountWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	data, _ := a.Credential["data"].(map[string]any)
	token, _ := data["service_account_token"].(string)
	return e.engines.Cluster.Accepts(ctx, token)
}

// noLogin are the codes that Postgres returns for a login that does not work: invalid_password, also for a role that is gone, and
// invalid_authorization_specification, for a role that may not log in.
var noLogin = []string{"28P01", "28000"}

func login(ctx context.Context, target, user, password string) (bool, error) {
	u, err := url.Parse(target)
	if err != nil {
		return false, err
	}
	u.User = url.UserPassword(user, password)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, u.String())
	if said, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(noLogin, said.Code) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var orders int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
		return false, err // of a login that is ending at this moment: opens tries again
	}
	if orders == 0 {
		return false, errors.New("there are no orders to see")
	}
	return true, nil
}

func certificateWorks(ctx context.Context, e *inventory, a answer) (bool, error) {
	secret, err := e.vault.Logical().ReadWithContext(ctx, "pki/cert/"+a.text("serial_number"))
	if err != nil {
		return false, err
	}
	if secret == nil {
		return false, errors.New("Vault does not know it")
	}
	return fmt.Sprint(secret.Data["revocation_time"]) == "0", nil
}
