package main

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/hashicorp/vault/api"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

// plan is a deployment that is built step by step. From the dev stack it uses only PostgreSQL and Vault.
type plan struct {
	dir, schema string
	db          *testkit.DB
	vault       string
	issuer      *devstack.Issuer
	config      string
	socket      string
}

func newPlan(t *testing.T) *plan {
	t.Helper()
	stack := testkit.Devstack(t)
	p := &plan{dir: t.TempDir(), db: testkit.EmptyDB(t), vault: stack.Vault.Addr()}
	p.schema = parse(t, p.db.AdminURL).Query().Get("search_path")
	p.write(t, "owner-url", p.db.AdminURL)
	p.write(t, "password", rand.Text())
	p.write(t, "auditor-password", rand.Text())
	p.write(t, "root-token", stack.Vault.RootToken())
	return p
}

func (p *plan) path(name string) string { return filepath.Join(p.dir, name) }

func (p *plan) write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(p.path(name), []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p.path(name)
}

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (p *plan) bootstrap(t *testing.T, more ...string) result {
	t.Helper()
	return inProcess(t, append([]string{
		"bootstrap", "--database-url-file", p.path("owner-url"),
		"--broker-user", p.schema + "_broker", "--broker-password-file", p.path("password"),
		"--auditor-user", p.schema + "_auditor", "--auditor-password-file", p.path("auditor-password"),
		"--vault-address", p.vault, "--vault-token-file", p.path("root-token"), "--vault-approle-dir", p.path("approle"),
		"--transit-mount", "transit-" + strings.ReplaceAll(p.schema, "_", "-"), "--signing-key", "tokens",
		"--approle", p.schema, "--token-role", p.schema, // the tests share one Vault
	}, more...)...)
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	migrate := func(args ...string) result {
		return inProcess(t, append(append([]string{"migrate"}, args...), "--database-url-file", p.path("owner-url"))...)
	}
	applied := func() (count, all int) {
		got := migrate("status", "--output", "json")
		got.want(t, 0)
		var list []struct{ Applied bool }
		if err := yaml.Unmarshal([]byte(got.out), &list); err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if m.Applied {
				count++
			}
		}
		return count, len(list)
	}
	migrate("up").want(t, 0, "applied 00001_ledger.sql")
	migrate().want(t, 0, "the schema is up to date")
	migrate("status").want(t, 0, "MIGRATION", "00001_ledger.sql", "true")
	count, all := applied()
	if count != all || all == 0 {
		t.Fatalf("got %d of %d applied, want all", count, all)
	}
	migrate("down", "--yes=false").want(t, 1, "nothing was changed")
	if got, _ := applied(); got != all {
		t.Errorf("--yes=false: got %d applied, want %d", got, all)
	}
	for left := all - 1; left >= 0; left-- {
		migrate("down", "--yes").want(t, 0, "reverted the newest migration")
		if got, _ := applied(); got != left {
			t.Errorf("got %d applied, want %d", got, left)
		}
	}
	migrate("down", "--yes").want(t, 1, "no migration has been applied")
	migrate("up").want(t, 0)
	p.write(t, "owner-url", "postgres://owner:hunter2@127.0.0.1:1/brevet")
	got := migrate("up")
	got.want(t, 1, "connection refused")
	if strings.Contains(got.err, "hunter2") {
		t.Errorf("the error shows the password: %s", got.err)
	}
}

// TestBootstrapThenServe checks that bootstrap creates everything that the broker needs, and nothing else.
func TestBootstrapThenServe(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	first := p.bootstrap(t)
	first.want(t, 0, "the database is ready", "Vault is ready; the broker's AppRole login is in "+p.path("approle"))
	if first.out != "" {
		t.Errorf("got %q on standard output, want nothing", first.out)
	}
	roleID, secretID := p.read(t, "approle/role_id"), p.read(t, "approle/secret_id")
	p.bootstrap(t).want(t, 0, "the schema is up to date", "earlier secret ids destroyed: 1")
	if p.read(t, "approle/role_id") != roleID || p.read(t, "approle/secret_id") == secretID {
		t.Error("the second run should keep the role and bring a new secret id")
	}
	if again := p.bootstrap(t, "--keep-secret-ids", "--secret-id-ttl", "24h", "--secret-id-cidr", "127.0.0.0/8"); again.code != 0 ||
		strings.Contains(again.err, "destroyed") || !strings.Contains(again.err, "the login expires at ") {
		t.Errorf("got %d, %s; want no secret id destroyed, and its end named", again.code, again.err)
	}
	for _, secret := range []string{p.read(t, "password"), p.read(t, "root-token"), secretID} {
		if strings.Contains(first.err, secret) {
			t.Error("bootstrap shows a secret")
		}
	}
	if info, err := os.Stat(p.path("approle/secret_id")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("secret_id: got mode %v, %v, want 0600", info.Mode(), err)
	}
	p.leastPrivilege(t)
	p.serves(t)
}

func (p *plan) read(t *testing.T, name string) string {
	t.Helper()
	text, err := secret.ReadFile(p.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (p *plan) login(t *testing.T, user, passwordFile string) string {
	t.Helper()
	u := parse(t, p.db.AdminURL)
	u.User = url.UserPassword(p.schema+user, p.read(t, passwordFile))
	return u.String()
}

// leastPrivilege tries statements that the two logins may not run.
func (p *plan) leastPrivilege(t *testing.T) {
	t.Helper()
	for user, forbidden := range map[string][]string{
		"_broker": {
			"DELETE FROM entries", "UPDATE entries SET kind = 'x'", "TRUNCATE entries", "DELETE FROM issuances",
			"UPDATE issuances SET spiffe_id = 'x'", "CREATE TABLE mine ()", "CREATE ROLE mine",
		},
		"_auditor": {"INSERT INTO ledger_head (size) VALUES (1)", "UPDATE issuances SET status = 'failed'", "SELECT cursor_key FROM deployment"},
	} {
		conn := testkit.Connect(t, p.login(t, user, map[string]string{"_broker": "password", "_auditor": "auditor-password"}[user]))
		if _, err := conn.Exec(t.Context(), "SELECT count(*) FROM entries"); err != nil {
			t.Errorf("%s may not read the record: %v", user, err)
		}
		for _, statement := range forbidden {
			if _, err := conn.Exec(t.Context(), statement); err == nil {
				t.Errorf("%s may %s", user, statement)
			}
		}
	}
}

// serves runs the broker with what bootstrap wrote, and requests a credential as a sandbox.
func (p *plan) serves(t *testing.T) {
	t.Helper()
	p.configure(t)
	broker := launch(t, nil, "serve", "--config", p.config)
	broker.waitFor(t, broker.err, "msg=serving")
	if strings.Contains(broker.err.String(), "could rewrite the ledger") {
		t.Errorf("the broker's login is more than bootstrap should give: %s", broker.err)
	}
	within(t, patience, "ready", func() bool {
		return brevet(t, nil, "ready", "--config", p.config).code == 0
	})
	ready := brevet(t, []string{"BREVET_CONFIG=" + p.config}, "ready", "--output", "json")
	ready.want(t, 0)
	if health := object(t, ready.out); health["status"] != "ok" {
		t.Errorf("got %s, want ok", ready.out)
	}
	cfg, err := app.Load(p.config)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "darwin" { // on macOS Go trusts the keychain and no file
		p.asks(t, cfg)
	}
	broker.signal(t, syscall.SIGTERM)
	broker.finish(t).want(t, 0)
	brevet(t, nil, "ready", "--config", p.config).want(t, 1, "checking the server on "+cfg.Listen, "connection refused")
}

// asks requests a credential from a broker with a Web PKI certificate.
func (p *plan) asks(t *testing.T, cfg app.Config) {
	t.Helper()
	env := []string{"BREVET_SERVER=" + cfg.Issuer, "SPIFFE_ENDPOINT_SOCKET=" + p.socket, "SSL_CERT_FILE=" + p.path("ca.pem")}
	got := brevet(t, env, "request", "github.issues.read", "repo=acme/api", "--task", "t-bootstrap")
	got.want(t, 0)
	if !aToken.MatchString(got.out) {
		t.Errorf("got %q, want a token", got.out)
	}
	brevet(t, env, "request", "github.issues.read", "repo=acme/api", "--task", "t-bootstrap", "--jwt").want(t, 0)
	testkit.CheckLedger(t, p.db.AdminURL)
	conn := testkit.Connect(t, p.login(t, "_auditor", "auditor-password"))
	rows, _ := conn.Query(t.Context(), "SELECT status FROM issuances WHERE task = 't-bootstrap'")
	if found, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(found) != 2 {
		t.Errorf("the auditor's login reads %v, %v, want two records", found, err)
	}
}

// configure writes what an operator would: certificates in files, the bundle in a file, and the logins from bootstrap.
func (p *plan) configure(t *testing.T) {
	t.Helper()
	domain := spiffeid.RequireTrustDomainFromString(local.Domain)
	var err error
	if p.issuer, err = devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: domain, Now: time.Now}); err != nil {
		t.Fatal(err)
	}
	endpoint, err := p.issuer.ServeWorkload(p.path("agent.sock"), spiffeid.RequireFromPath(domain, "/research/agent-7"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	p.socket = endpoint.Addr()
	bundle, err := p.issuer.Bundle().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "bundle.json", string(bundle))
	p.webCertificate(t)
	p.write(t, "broker-url", p.login(t, "_broker", "password"))
	catalogue, err := filepath.Abs(exampleCatalogue)
	if err != nil {
		t.Fatal(err)
	}
	address := free(t)
	data, err := yaml.Dump(app.Config{
		Listen: address, Issuer: "https://" + strings.Replace(address, "127.0.0.1", "localhost", 1),
		TLS:          app.TLSConfig{CertFile: "server.pem", KeyFile: "server-key.pem"},
		TrustDomains: []app.TrustDomainConfig{{Name: local.Domain, BundleFile: "bundle.json"}},
		Catalogue:    catalogue,
		Postgres:     app.PostgresConfig{URLFile: "broker-url"},
		Vault: app.VaultConfig{
			Address: p.vault, TransitMount: "transit-" + strings.ReplaceAll(p.schema, "_", "-"), SigningKey: "tokens", TokenRole: p.schema,
			AppRole: &app.AppRoleConfig{RoleIDFile: "approle/role_id", SecretIDFile: "approle/secret_id"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.config = p.write(t, "brevet.yaml", string(data))
}

// webCertificate generates an authority and a certificate for localhost.
func (p *plan) webCertificate(t *testing.T) {
	t.Helper()
	ca, caKey := testkit.SelfSigned(t)
	leaf, leafKey := testkit.Signed(t, ca, caKey)
	key, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem":         {Type: "CERTIFICATE", Bytes: ca.Raw},
		"server.pem":     {Type: "CERTIFICATE", Bytes: leaf.Raw},
		"server-key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		p.write(t, name, string(pem.EncodeToMemory(block)))
	}
}

func TestBootstrapSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	for _, tc := range []struct {
		name string
		more []string
		want string
	}{
		{"Vault does not answer", []string{"--vault-address", "http://127.0.0.1:1"}, "preparing Vault at http://127.0.0.1:1: creating a token for the active node: Post"},
		{"token is refused", []string{"--vault-token-file", p.write(t, "other-token", "hvs.hunter2")}, "preparing Vault"},
		{"token is not there", []string{"--vault-token-file", "/nonexistent/token"}, "--vault-token-file: reading a secret"},
		{"password is empty", []string{"--broker-password-file", p.write(t, "empty", "")}, "is empty"},
		{"auditor without password", []string{"--auditor-user="}, "set --auditor-user and --auditor-password-file together"},
		{"broker would be the owner", []string{"--broker-user", parse(t, p.db.AdminURL).User.Username()}, "the role exists and is privileged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := p.bootstrap(t, tc.more...)
			got.want(t, 1, tc.want)
			if strings.Contains(got.err, "hunter2") {
				t.Errorf("the error shows a secret: %s", got.err)
			}
		})
	}
}

// TestDeploymentsShareVault checks that the bootstrap of one deployment leaves the policy of another one alone.
func TestDeploymentsShareVault(t *testing.T) {
	t.Parallel()
	first, second := newPlan(t), newPlan(t)
	first.bootstrap(t).want(t, 0)
	before := first.policy(t)
	second.bootstrap(t).want(t, 0)
	if after := first.policy(t); after != before || before == "" || before == second.policy(t) {
		t.Errorf("got the policy %q after another bootstrap, want %q", after, before)
	}
}

// policy returns the policy of the broker's AppRole.
func (p *plan) policy(t *testing.T) string {
	t.Helper()
	client, err := api.NewClient(&api.Config{Address: p.vault})
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(testkit.Devstack(t).Vault.RootToken())
	text, err := client.Sys().GetPolicyWithContext(t.Context(), p.schema)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
