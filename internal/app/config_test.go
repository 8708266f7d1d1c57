package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

const goodConfig = `
listen: 127.0.0.1:8443
issuer: https://brevet.acme.example
tls: {workload_api: 'unix:///run/spire/agent.sock'}
trust_domains:
  - name: acme.example
    workload_api: unix:///run/spire/agent.sock
    auditors: ['spiffe://acme.example/ops/auditor']
    admins: ['spiffe://acme.example/ops/admin']
    orchestrators: ['spiffe://acme.example/runtime']
catalogue: catalog
postgres: {url_file: secrets/url}
vault:
  address: https://vault:8200
  ca_file: vault-ca.pem
  approle: {role_id_file: secrets/role_id, secret_id_file: secrets/secret_id}
`

func TestCursorKeyComesFromItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	read := func(text string) ([]byte, error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(write(t, goodConfig+"cursor_key_file: "+file+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		return (&service{cfg: cfg}).cursorKey()
	}
	want := strings.Repeat("k", 32)
	if got, err := read(want + "\n"); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := read(want[1:]); err == nil || !strings.Contains(err.Error(), "cursor_key_file") || strings.Contains(err.Error(), "kk") {
		t.Errorf("got %q, %v for a short key, want an error that names the key of the configuration and not the secret", got, err)
	}
	if _, err := Load(write(t, goodConfig+"cursor_key: "+want+"\n")); err == nil {
		t.Error("got a key in the configuration itself accepted")
	}
}

func TestLoadConfig(t *testing.T) {
	cfg, err := Load(write(t, goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	if want := "/secrets/url"; !filepath.IsAbs(cfg.Postgres.URLFile) || !strings.HasSuffix(cfg.Postgres.URLFile, want) {
		t.Errorf("got url_file %s, want an absolute path that ends in %s", cfg.Postgres.URLFile, want)
	}
	if cfg.Vault.SigningKey != "brevet" || cfg.Vault.TokenRole != "brevet" {
		t.Errorf("got signing key %q and token role %q, want the default of both, brevet", cfg.Vault.SigningKey, cfg.Vault.TokenRole)
	}
}

func withPeople(bootstrap string) string {
	return "catalogue: catalog\npeople: {issuer: 'https://id.acme.example', client_id: brevet, roles: [], bootstrap_admin: '" + bootstrap + "'}"
}

// TestRolesOfWorkloads checks that a role holds in the trust domain that lists it, or below its paths.
func TestRolesOfWorkloads(t *testing.T) {
	text := strings.Replace(goodConfig, "admins: ['spiffe://acme.example/ops/admin']",
		"admins: ['spiffe://acme.example/ops/admin', {id: 'spiffe://other.example/lab', within: ['spiffe://acme.example/research', 'spiffe://acme.example/a/b']}]", 1)
	cfg, err := Load(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	again, err := yaml.Dump(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err = Load(write(t, string(again))); err != nil {
		t.Fatal(err)
	}
	want := []httpapi.Role{
		{ID: spiffeid.RequireFromString("spiffe://acme.example/ops/admin"), TrustDomains: []spiffeid.TrustDomain{spiffeid.RequireTrustDomainFromString("acme.example")}},
		{ID: spiffeid.RequireFromString("spiffe://other.example/lab"), Within: []spiffeid.ID{
			spiffeid.RequireFromString("spiffe://acme.example/research"), spiffeid.RequireFromString("spiffe://acme.example/a/b"),
		}},
	}
	_, got, _, err := cfg.roles()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b spiffeid.ID) bool { return a == b }), cmp.Comparer(func(a, b spiffeid.TrustDomain) bool { return a == b })); diff != "" {
		t.Errorf("admins (-want +got):\n%s", diff)
	}
}

// TestBootstrapAdmin checks that a subject alone and a subject with the issuer name the same person.
func TestBootstrapAdmin(t *testing.T) {
	for _, text := range []string{"root", "https://id.acme.example#root"} {
		cfg, err := Load(write(t, strings.Replace(goodConfig, "catalogue: catalog", withPeople(text), 1)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := cfg.People.open(time.Now)
		if want := "https://id.acme.example#root"; err != nil || e.bootstrap != want {
			t.Errorf("%s: got %q, %v, want %q", text, e.bootstrap, err, want)
		}
	}
}

// withConsole returns a console, for a line of the good configuration.
func withConsole(keys string) string {
	return withPeople("root") + "\nconsole: {listen: '127.0.0.1:8444', url: 'https://console.acme.example', " + keys + "}\n"
}

func TestSessionDefaults(t *testing.T) {
	for keys, want := range map[string][3]time.Duration{
		"":                                    {30 * time.Minute, 8 * time.Hour, 15 * time.Minute},
		"session_length: 10m":                 {10 * time.Minute, 10 * time.Minute, 10 * time.Minute},
		"session_idle: 1h, login_max_age: 1h": {time.Hour, 8 * time.Hour, time.Hour},
	} {
		cfg, err := Load(write(t, strings.Replace(goodConfig, "catalogue: catalog", withConsole(keys), 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]time.Duration{cfg.Console.SessionIdle, cfg.Console.SessionLength, cfg.Console.LoginMaxAge}; got != want {
			t.Errorf("%s: got %s, want %s", keys, got, want)
		}
	}
}

// TestLoadConfigRefuses checks that each message names the key and what to do, because its reader has the file open.
func TestLoadConfigRefuses(t *testing.T) {
	for _, tc := range []struct{ name, from, to, want string }{
		{"unknown key", "catalogue: catalog", "catalogue: catalog\ncolour: red", "colour"},
		{"key twice", "catalogue: catalog", "catalogue: catalog\ncatalogue: other", "catalogue"},
		{"no issuer", "issuer: https://brevet.acme.example", "", "issuer:"},
		{"issuer without TLS", "https://brevet.acme", "http://brevet.acme", "is not an https URL"},
		{"no listen address", "127.0.0.1:8443", "8443", "listen: \"8443\" is not host:port"},
		{"proxy that is no address", "catalogue: catalog", "catalogue: catalog\ntrusted_proxies: [proxy.acme.example]", "trusted_proxies: \"proxy.acme.example\" is not an address or a network"},
		{"proxy that is everybody", "catalogue: catalog", "catalogue: catalog\ntrusted_proxies: [127.0.0.1, '::/0']", "trusted_proxies: \"::/0\" would let every caller claim any address"},
		{"two bundle sources", "    auditors:", "    bundle_file: b.json\n    auditors:", "trust_domains.acme.example: set exactly one of"},
		{"auditor that is no SPIFFE ID", "spiffe://acme.example/ops/auditor", "ops/auditor", "auditors: \"ops/auditor\" is not a SPIFFE ID"},
		{"admin that is no SPIFFE ID", "spiffe://acme.example/ops/admin", "https://acme.example", "admins: \"https://acme.example\" is not a SPIFFE ID"},
		{"orchestrator that is no SPIFFE ID", "spiffe://acme.example/runtime", "spiffe://acme.example", "orchestrators: \"spiffe://acme.example\" is not a SPIFFE ID"},
		{"limit of another trust domain", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', within: ['spiffe://other.example/research']}", "admins: spiffe://acme.example/ops/admin: within \"spiffe://other.example/research\": not in the trust domain"},
		{"limit that is no SPIFFE ID", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', within: [/research]}", "within \"/research\""},
		{"limit with a pattern", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', within: ['spiffe://acme.example/*']}", "within \"spiffe://acme.example/*\""},
		{"limit left empty", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', within: []}", "within is empty"},
		{"limit that is null", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', within: }", "within is empty"},
		{"limit misspelt", "'spiffe://acme.example/ops/admin'", "{id: 'spiffe://acme.example/ops/admin', whithin: ['spiffe://acme.example/a']}", "whithin"},
		{"limit without an ID", "'spiffe://acme.example/ops/admin'", "{within: ['spiffe://acme.example/a']}", "admins: \"\" is not a SPIFFE ID"},
		{"resource server that is no SPIFFE ID", "catalogue: catalog", "catalogue: catalog\nresource_servers: [{id: api, audiences: [a]}]", "resource_servers: \"api\" is not a SPIFFE ID"},
		{"resource server for nothing", "catalogue: catalog", "catalogue: catalog\nresource_servers: [{id: 'spiffe://acme.example/api'}]", "resource_servers: spiffe://acme.example/api: audiences is empty"},
		{"resource server twice", "catalogue: catalog", "catalogue: catalog\nresource_servers: [{id: 'spiffe://acme.example/api', audiences: [a]}, {id: 'spiffe://acme.example/api', audiences: [b]}]", "resource_servers: spiffe://acme.example/api is listed twice"},
		{"logins that delegate", "catalogue: catalog", strings.Replace(withPeople("root"), "roles:", "delegation_audiences: [agents, brevet], roles:", 1), "people: people: the client id must not be a delegation audience"},
		{"bootstrap admin of another provider", "catalogue: catalog", withPeople("https://other.example#root"), "people:"},
		{"bootstrap admin that is no subject", "catalogue: catalog", withPeople("Root Admin"), "is not a person of"},
		{"session that is too long", "catalogue: catalog", withConsole("session_length: 25h"), "console.session_length: 25h0m0s is not between 1m and 24h"},
		{"session that idles longer than it lasts", "catalogue: catalog", withConsole("session_length: 1h, session_idle: 2h"), "console.session_idle: 2h0m0s is not between 1m and session_length"},
		{"changes without a login", "catalogue: catalog", withConsole("login_max_age: -1s"), "console.login_max_age: -1s is not between 1m and session_length"},
		{"https Vault without CA", "  ca_file: vault-ca.pem\n", "", "vault.ca_file: required"},
		{"two logins", "  approle:", "  token_file: t\n  approle:", "vault: set exactly one of token_file, approle, jwt; 2 are set"},
		{"no trust domain", "trust_domains:\n  - name: acme.example\n    workload_api: unix:///run/spire/agent.sock\n    auditors: ['spiffe://acme.example/ops/auditor']\n    admins: ['spiffe://acme.example/ops/admin']\n    orchestrators: ['spiffe://acme.example/runtime']\n", "", "trust_domains: at least one is required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := strings.Replace(goodConfig, tc.from, tc.to, 1)
			if changed == goodConfig {
				t.Fatalf("%q is not in the good configuration", tc.from)
			}
			_, err := Load(write(t, changed))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that says %q", err, tc.want)
			}
		})
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "brevet.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExampleConfigurationLoads checks that the server accepts the example configuration to which the documentation points.
func TestExampleConfigurationLoads(t *testing.T) {
	if _, err := Load("../../deploy/brevet.yaml"); err != nil {
		t.Error(err)
	}
}
