// Package integrations_test uses what Brevet issues with the official clients of GitHub, AWS, Google Cloud, Azure, Anthropic and OpenAI:
// in the form that each client reads by itself, and through an egress gateway. Brevet, its PostgreSQL and its Vault are real. The other
// systems are strict doubles: internal/testkit/githubapi and internal/testkit/federation.
package integrations_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/federation"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const (
	agents  = "spiffe://acme.test/agents/"
	auditor = "spiffe://acme.test/ops/auditor"
	// patience bounds one program.
	patience = 60 * time.Second
)

// world is a Brevet with a GitHub and clouds on the other side.
type world struct {
	stack  *testkit.Stack
	hub    *testkit.GitHub
	clouds *federation.Far
	// binary is brevet, sdks the folder of the official clients, and data that of the scripts.
	binary, sdks, data string
	// names is a proxy by which clients reach the clouds under the names that these publish.
	names *federation.Names
	// roots is a PEM file with the authorities of all other systems.
	roots string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{hub: testkit.StartGitHub(t), clouds: federation.NewFar(t), sdks: testkit.SDKs(t)}
	w.names = w.clouds.Names(t)
	w.hub.AddIssue("acme/api", "content of a.txt", "")
	w.hub.AddIssue("acme/docs", "of another repository", "")
	w.stack = testkit.NewStack(t, testkit.Options{
		Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(w.catalogue())}, {Name: "policies.cedar", Data: []byte(`@id("agents")
permit (principal in Path::"spiffe://acme.test/agents", action, resource);
`)}},
		GitHub: w.hub, Auditors: []string{auditor},
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	election, swept := w.stack.DB.Ledger(t), make(chan struct{})
	go func() {
		defer close(swept)
		_ = w.stack.Broker.Sweep(ctx, election)
	}()
	t.Cleanup(func() { stop(); <-swept })
	w.clouds.Trust(federation.Issuer{URL: testkit.Audience, HTTP: &http.Client{Transport: toStack{w.stack.HTTP(t, nil).Transport, w.stack.Addr}, Timeout: 30 * time.Second}})
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	w.data, w.binary = filepath.Join(folder, "testdata"), filepath.Join(t.TempDir(), "brevet")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.binary, "../../cmd/brevet")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building brevet: %v\n%s", err, out)
	}
	var all []byte
	for _, name := range []string{w.hub.CAFile(), w.clouds.Authority.File} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	w.roots = filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(w.roots, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// toStack sends calls to the issuer's host to a stack.
type toStack struct {
	http.RoundTripper
	addr string
}

func (to toStack) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host, r.Host = to.addr, to.addr
	return to.RoundTripper.RoundTrip(r)
}

// github is the origin of GitHub by a name: a host in a rule is a DNS name.
func (w *world) github() string { return strings.Replace(w.hub.URL(), "127.0.0.1", "localhost", 1) }

func hostOf(origin string) string { return strings.TrimPrefix(origin, "https://") }

// short is the TTL of scopes whose credentials expire while a program runs. On a busy machine, a program of Node takes seconds to start,
// and it has to make its first call before that.
const short = 8 * time.Second

// briefly is this TTL for a system. A gateway asks Google for a token that lives no longer than the gateway uses the credential, which is
// half of a short life. It uses no such token that lives less than five seconds.
func briefly(system string) time.Duration {
	if system == "google" {
		return 14 * time.Second
	}
	return short
}

// catalogue has, for each system, a scope, one with a short TTL (brief), and one whose audience is wrong (wrong).
func (w *world) catalogue() string {
	var all strings.Builder
	scope := func(name, params, ttl, credential, egress string) {
		fmt.Fprintf(&all, "  - name: %s\n    title: For a test\n    authority: read\n    params: %s\n    resource: test:%s\n    ttl: {default: %s, max: 10m}\n    credential: %s\n    egress: %s\n",
			name, params, name, ttl, credential, egress)
	}
	all.WriteString("scopes:\n")
	repo := "{repo: {type: string, pattern: '[a-z]+'}}"
	hub := hostOf(w.github())
	for suffix, ttl := range map[string]string{"read": "5m", "brief": short.String()} {
		scope("github.issues."+suffix, repo, ttl,
			"{kind: github, app: acme, installation: 48872301, repositories: ['acme/{repo}'], permissions: {issues: read}}",
			fmt.Sprintf("[{hosts: ['%s'], methods: [GET, POST], paths: [/repos/**, /api/v3/**, /graphql]}]", hub))
		scope("github.code."+suffix, repo, ttl,
			"{kind: github, app: acme, installation: 48872301, repositories: ['acme/{repo}'], permissions: {contents: read}}",
			fmt.Sprintf("[{hosts: ['%s'], methods: [GET, POST], paths: [/acme/**], send: {as: basic, user: x-access-token}}]", hub))
	}
	for _, system := range systems {
		exchange, audience := strings.ReplaceAll(system.exchange, "URL", w.clouds.URL), system.audience
		wrong := audience + "x" // a name that the other system does not know
		for suffix, ttl := range map[string]string{"use": "5m", "brief": briefly(system.as).String(), "wrong": "5m"} {
			if suffix == "wrong" {
				audience = wrong
			} else {
				audience = system.audience
			}
			scope("cloud."+system.as+"."+suffix, "{}", ttl,
				fmt.Sprintf("{kind: jwt, audience: '%s', federation: {subject: '%s', exchange: {%s}}}", audience, federation.Subject, exchange),
				fmt.Sprintf("[{hosts: ['%s'], methods: [GET, POST], paths: ['/**']%s}]", hostOf(w.clouds.Resources), system.send))
		}
	}
	// What coding agents need, and no more: docs/coding-agents.md.
	for system, rule := range map[string]string{
		"anthropic": "paths: [/v1/messages, /v1/messages/count_tokens], headers: ['x-claude-*']",
		"openai":    "paths: [/openai/v1/responses], headers: [originator, session-id, thread-id, 'x-codex-*', 'x-openai-internal-codex-*']",
	} {
		for _, one := range systems {
			if one.as == system {
				scope("agents."+system, "{}", "5m",
					fmt.Sprintf("{kind: jwt, audience: '%s', federation: {subject: '%s', exchange: {%s}}}", one.audience, federation.Subject, strings.ReplaceAll(one.exchange, "URL", w.clouds.URL)),
					fmt.Sprintf("[{hosts: ['%s'], methods: [POST], %s}]", hostOf(w.clouds.Resources), rule))
			}
		}
	}
	return all.String()
}

// systems are the clouds with their exchanges. URL is the origin of the exchanges.
var systems = []struct{ as, audience, exchange, send string }{
	{"aws", "sts.amazonaws.com", "as: aws, role: '" + federation.RoleARN(federation.SiteRole) + "', region: eu-central-1, url: 'URL'", ", send: {as: aws, service: s3, region: eu-central-1}"},
	{"google", federation.Provider, "as: google, service_account: '" + federation.SiteAccount + "', url: 'URL', iam_url: 'URL'", ""},
	{"azure", "api://AzureADTokenExchange", "as: azure, tenant: " + federation.Tenant + ", client: " + federation.SiteClient + ", scope: 'https://storage.azure.com/.default', url: 'URL'", ""},
	{"anthropic", "https://api.anthropic.com", "as: anthropic, organization: " + federation.Organization + ", rule: fdrl_1, service_account: svac_1, url: 'URL'", ""},
	{"openai", "https://api.openai.com/v1", "as: openai, identity_provider: idp_1, service_account: sa-1, url: 'URL'", ""},
}

// result is what a program has printed.
type result struct {
	out, err string
	failed   error
}

// workloadAPI serves the SVIDs of a sandbox, and returns its address.
func (w *world) workloadAPI(t *testing.T, sandbox string) string {
	t.Helper()
	endpoint, err := w.stack.Acme.ServeIdentities(filepath.Join(testkit.SocketFolder(t), "agent.sock"), func() []devstack.WorkloadIdentity {
		return []devstack.WorkloadIdentity{{ID: spiffeid.RequireFromString(sandbox)}}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	return endpoint.Addr()
}

// exec runs a shell script as the program of brevet exec, for a task.
func (w *world) exec(t *testing.T, socket, task string, env, flags []string, script string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := append([]string{"exec", "--task", task}, flags...)
	cmd := exec.CommandContext(ctx, w.binary, append(args, "--", "sh", "-c", script)...)
	home := t.TempDir()
	cmd.Dir = home
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "SDKS=" + w.sdks, "DATA=" + w.data, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"BREVET_SERVER=" + w.stack.URL, "BREVET_SERVER_ID=spiffe://acme.test/brevet", "SPIFFE_ENDPOINT_SOCKET=" + socket,
		"GITHUB=" + w.github(), "RESOURCES=" + w.clouds.Resources, "EXCHANGES=" + w.clouds.URL, "NAMES=" + w.names.URL, "GOOGLE_CLOUD_PROJECT=p",
		"NODE_NO_WARNINGS=1", "GH_PROMPT_DISABLED=1", "GH_NO_UPDATE_NOTIFIER=1", "DEBUG=" + os.Getenv("INTEGRATIONS_DEBUG"),
		"SSL_CERT_FILE=" + w.roots, "NODE_EXTRA_CA_CERTS=" + w.roots, "GIT_SSL_CAINFO=" + w.roots, "CURL_CA_BUNDLE=" + w.roots, "AWS_CA_BUNDLE=" + w.roots,
	}, env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Errorf("the program does not end within %s:\n%s%s", patience, out.String(), said.String())
	}
	return result{strings.TrimSpace(out.String()), said.String(), err}
}

// want fails the test unless the program printed exactly these lines. A line that ends in ... stands for its beginning.
func (r result) want(t *testing.T, lines ...string) {
	t.Helper()
	got := strings.Split(r.out, "\n")
	ok := len(got) == len(lines)
	for i := 0; ok && i < len(lines); i++ {
		prefix, open := strings.CutSuffix(lines[i], "...")
		// A limit of the rate, or a client that does not start, is no refusal.
		ok = got[i] == lines[i] || open && strings.HasPrefix(got[i], prefix) && got[i] != "error 429" && !strings.HasPrefix(got[i], "error ERR_") && got[i] != "error "
	}
	if !ok {
		t.Errorf("got\n%s\nwant\n%s\non standard error:\n%s", r.out, strings.Join(lines, "\n"), r.err)
	}
}

// endTask ends a task as its sandbox does.
func (w *world) endTask(t *testing.T, sandbox, task string) {
	t.Helper()
	if _, err := w.stack.Client(t, sandbox).EndTask(t.Context(), task, client.TaskEnd{Reason: "the case is over"}); err != nil {
		t.Errorf("ending the task: %v", err)
	}
}

// statuses returns the statuses of a task's issuances, newest first.
func (w *world) statuses(t *testing.T, task string) []openapi.Status {
	t.Helper()
	page, err := w.stack.Client(t, auditor).Page(t.Context(), client.Filter{Task: task, Limit: 50})
	if err != nil {
		t.Fatal(err)
	}
	var all []openapi.Status
	for _, one := range page.Issuances {
		all = append(all, one.Status)
	}
	return all
}
