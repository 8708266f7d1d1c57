package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
)

// farCall is one call that a program made.
type farCall struct {
	path, authorization string
	form                url.Values
	body                map[string]any
}

// farSide records what official clients send, and answers so that they go on. It checks nothing: the tests look at what it has
// recorded.
type farSide struct {
	address, host, ca string

	mu    sync.Mutex
	calls []farCall
}

func newFarSide(t *testing.T) *farSide {
	t.Helper()
	f := &farSide{}
	f.address, f.ca = serveTLS(t, f)
	f.host = strings.TrimPrefix(f.address, "https://")
	return f
}

func (f *farSide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := farCall{path: r.Method + " " + r.URL.Path, authorization: r.Header.Get("Authorization") + r.Header.Get("X-Api-Key")}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		_ = json.NewDecoder(r.Body).Decode(&call.body)
	} else if r.ParseForm() == nil {
		call.form = r.Form
	}
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case call.form.Get("Action") == "AssumeRoleWithWebIdentity":
		w.Header().Set("Content-Type", "text/xml")
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
			<AccessKeyId>ASIAFAR</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration>
			</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, time.Now().Add(time.Minute).UTC().Format(time.RFC3339))
	case strings.HasSuffix(r.URL.Path, ":generateAccessToken"):
		fmt.Fprintf(w, `{"accessToken":"far-impersonated","expireTime":%q}`, time.Now().Add(time.Second).UTC().Format(time.RFC3339))
	case strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration"):
		fmt.Fprintf(w, `{"token_endpoint":"%[1]s/acme-tenant/oauth2/v2.0/token","authorization_endpoint":"%[1]s/a","issuer":"%[1]s/acme-tenant/v2.0","jwks_uri":"%[1]s/k","end_session_endpoint":"%[1]s/e"}`, f.address)
	case strings.Contains(r.URL.Path, "token"):
		fmt.Fprint(w, `{"access_token":"far-token","token_type":"Bearer","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","expires_in":5}`)
	case r.URL.Path == "/npm/-/whoami":
		fmt.Fprint(w, `{"username":"agent"}`)
	case r.URL.Path == "/v2/" && call.authorization == "":
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/v2/acme/site/tags/list":
		fmt.Fprint(w, `{"name":"acme/site","tags":["one"]}`)
	default:
		fmt.Fprint(w, `{"login":"agent","data":[],"has_more":false}`)
	}
}

// take returns the calls to a path, and forgets all calls.
func (f *farSide) take(path string) (calls []farCall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call.path == path {
			calls = append(calls, call)
		}
	}
	f.calls = nil
	return calls
}

// forScopes are scopes whose exchanges are at the far side, and one that reads stored secrets.
func (f *farSide) forScopes() map[string]string {
	scope := func(name, params, credential string) string {
		return "  - name: brief." + name + "\n    title: For a test\n    authority: read\n    params: " + params + "\n    resource: brief:" + name +
			"\n    ttl: {default: 6s, max: 5m}\n    credential: " + credential + "\n"
	}
	federated := func(name, audience, exchange string) string {
		return scope(name+".use", "{}", "{kind: jwt, audience: '"+audience+"', federation: {subject: 'brief:"+name+"', exchange: {as: "+name+", url: '"+f.address+"', "+exchange+"}}}")
	}
	return map[string]string{
		"for.yaml": "scopes:\n" +
			scope("key.use", "{of: {type: string, pattern: '[a-z]+', max_length: 40}}", "{kind: kv, path: 'secret/data/brief/{of}'}") +
			scope("bare.use", "{}", "{kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'brief:bare'}}") +
			federated("aws", "sts.amazonaws.com", "role: 'arn:aws:iam::123456789012:role/site', region: eu-central-1") +
			federated("google", "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/brevet",
				"service_account: 'site@acme.iam.gserviceaccount.com', iam_url: '"+f.address+"'") +
			federated("azure", "api://AzureADTokenExchange", "tenant: acme-tenant, client: 11111111-2222-3333-4444-555555555555, scope: 'https://storage.azure.com/.default'") +
			federated("anthropic", "https://api.anthropic.com", "organization: 11111111-2222-3333-4444-555555555555, rule: fdrl_1, service_account: svac_1"),
		"for.cedar": `@id("for")
permit (
  principal in Path::"spiffe://acme.example/research",
  action in [Action::"brief.key.use", Action::"brief.bare.use", Action::"brief.aws.use", Action::"brief.google.use", Action::"brief.azure.use",
    Action::"brief.anthropic.use"],
  resource
);
`,
	}
}

// forStack is a stack whose credentials are for programs that have their own files.
type forStack struct {
	*session
	far *farSide
}

// TestExecFor runs official clients unmodified, each with the credential in the files and variables that it reads.
func TestExecFor(t *testing.T) {
	t.Parallel()
	far := newFarSide(t)
	s := forStack{startBriefWith(t, far.forScopes()), far}
	s.env = append(s.env, "NODE_EXTRA_CA_CERTS="+far.ca, "SSL_CERT_FILE="+far.ca, "AWS_CA_BUNDLE="+far.ca, "NODE_PATH="+testkit.SDKs(t), "HOME="+t.TempDir())
	t.Run("aws", s.forAWS)
	t.Run("aws keys", s.forAWSKeys)
	t.Run("google", s.forGoogle)
	t.Run("azure", s.forAzure)
	t.Run("anthropic", s.forAnthropic)
	t.Run("keys in variables", s.forKeys)
	t.Run("gh", s.forGH)
	t.Run("git", s.forGit)
	t.Run("docker", s.forDocker)
	t.Run("npm", s.forNPM)
	t.Run("mistakes", s.forMistakes)
	s.stop(t, syscall.SIGTERM)
}

// store stores a secret in Vault.
func (s forStack) store(t *testing.T, name string, members map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "vault", "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"data": members})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.config(t).Vault.Address+"/v1/secret/data/brief/"+name, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Vault-Token", object(t, string(text))["root_token"].(string))
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", resp, err)
	}
	_ = resp.Body.Close()
}

// other are variables that lead to other credentials.
func other(s forStack, pairs ...string) []string {
	return append(s.env[:len(s.env):len(s.env)], pairs...)
}

// node returns a shell command that runs a script. now is a promise to be awaited, and wait one for seconds.
func node(script string) string {
	return `node -e 'const wait = s => new Promise(r => setTimeout(r, 1000 * s)); (async () => {` + script + `})().catch(e => { console.error(e); process.exit(1) })'`
}

// claims returns the claims of a JWT.
func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("got %q, want a JWT", token)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return object(t, string(text))
}

// renewed checks that the calls carry tokens for an audience, and that a later call has another token.
func renewed(t *testing.T, audience string, tokens ...string) {
	t.Helper()
	if len(tokens) < 2 || tokens[0] == tokens[len(tokens)-1] {
		t.Fatalf("got %d tokens, want at least two, the first and the last different", len(tokens))
	}
	for _, token := range tokens {
		if got := claims(t, token)["aud"]; got != audience {
			t.Errorf("got the audience %v, want %s", got, audience)
		}
	}
}

// forAWS checks that the AWS SDK for JavaScript and boto3 exchange the token in the file, and the renewed one later, although
// the environment and the user's files have other credentials.
func (s forStack) forAWS(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(home+"/.aws", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(home+"/.aws/credentials", []byte("[default]\naws_access_key_id = OTHER\naws_secret_access_key = other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Versions of boto3 before 1.28 do not know AWS_ENDPOINT_URL_STS, so this one sends its request to the far side by itself.
	const farBoto3 = `import os, botocore.session
s = botocore.session.get_session()
def send(request, **_): request.url = os.environ["FAR"] + "/"
s.register("before-send.sts.AssumeRoleWithWebIdentity", send)
print(s.get_credentials().access_key)`
	env := other(s, "FAR="+s.far.address, "HOME="+home, "AWS_ACCESS_KEY_ID=OTHER", "AWS_SECRET_ACCESS_KEY=other", "AWS_PROFILE=default")
	got := startExec(t, env, node(`
		const provider = require("@aws-sdk/credential-providers").fromNodeProviderChain();
		const first = await provider(); console.log(first.accessKeyId, process.env.AWS_REGION, process.env.AWS_EC2_METADATA_DISABLED);
		await wait(5); await provider();`)+`
		python3 -c '`+farBoto3+`'`,
		"--task", "t:aws.1", "--scope", "brief.aws.use", "--for", "aws").finish(t)
	got.want(t, 0, "ASIAFAR eu-central-1 true\nASIAFAR\n")
	var tokens []string
	for _, call := range s.far.take("POST /") {
		if call.form.Get("RoleArn") != "arn:aws:iam::123456789012:role/site" || call.form.Get("RoleSessionName") != "t-aws.1" || call.authorization != "" {
			t.Errorf("got %v", call)
		}
		tokens = append(tokens, call.form.Get("WebIdentityToken"))
	}
	renewed(t, "sts.amazonaws.com", tokens...)
	// Without an exchange in the scope, the role comes from the environment.
	role := other(s, "AWS_ROLE_ARN=arn:aws:iam::1:role/mine", "AWS_REGION=eu-west-1", "AWS_ENDPOINT_URL_STS="+s.far.address)
	startExec(t, role, node(`await require("@aws-sdk/credential-providers").fromNodeProviderChain()()`), "--scope", "brief.bare.use", "--for", "aws").
		finish(t).want(t, 0)
	if calls := s.far.take("POST /"); len(calls) != 1 || calls[0].form.Get("RoleArn") != "arn:aws:iam::1:role/mine" || !strings.HasPrefix(calls[0].form.Get("RoleSessionName"), "exec-") {
		t.Errorf("got %v", calls)
	}
}

// forAWSKeys checks that one client, while it runs, changes to the keys of the renewed credential.
func (s forStack) forAWSKeys(t *testing.T) {
	s.store(t, "aws", map[string]any{"access_key": "ASIAONE", "secret_key": `a"b\c`, "session_token": "session"})
	env := other(s, "AWS_WEB_IDENTITY_TOKEN_FILE=/nonexistent", "AWS_ROLE_ARN=other", "AWS_SESSION_TOKEN=other")
	p := startExec(t, env, node(`
		const provider = require("@aws-sdk/credential-providers").fromNodeProviderChain();
		const say = async () => { const c = await provider(); console.log(c.accessKeyId, c.secretAccessKey, c.sessionToken, c.expiration - Date.now() < 10000) };
		await say(); while ((await provider()).accessKeyId == "ASIAONE") await wait(0.2); await say();`)+`
		python3 -c 'import boto3; c = boto3.Session().get_credentials().get_frozen_credentials(); print(c.access_key, c.secret_key, c.token)'
		stat -c %a "$BREVET_DIR"/aws "$BREVET_DIR"/aws/* | sort -u | tr '\n' ' '`, "--scope", "brief.key.use", "--param", "of=aws", "--for", "aws")
	p.waitFor(t, p.out, "\n")
	s.store(t, "aws", map[string]any{"access_key": "ASIATWO", "secret_key": "d", "security_token": "later"})
	got := p.finish(t)
	got.want(t, 0)
	want := "ASIAONE a\"b\\c session true\nASIATWO d later true\nASIATWO d later\n600 700 "
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func (s forStack) forGoogle(t *testing.T) {
	startExec(t, other(s, "GOOGLE_APPLICATION_CREDENTIALS=/nonexistent", "GOOGLE_CLOUD_PROJECT=acme"), node(`
		const {GoogleAuth} = require("google-auth-library");
		const auth = new GoogleAuth({scopes: "https://www.googleapis.com/auth/cloud-platform"}); const client = await auth.getClient();
		console.log((await client.getAccessToken()).token); await wait(5); await client.getAccessToken();`), "--scope", "brief.google.use", "--for", "google").
		finish(t).want(t, 0, "far-impersonated\n")
	const audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/brevet"
	s.far.mu.Lock()
	impersonated := 0
	for _, call := range s.far.calls {
		if call.path == "POST /v1/projects/-/serviceAccounts/site@acme.iam.gserviceaccount.com:generateAccessToken" && call.authorization == "Bearer far-token" {
			impersonated++
		}
	}
	s.far.mu.Unlock()
	var tokens []string
	for _, call := range s.far.take("POST /v1/token") {
		if call.form.Get("audience") != audience {
			t.Errorf("got %v", call.form)
		}
		tokens = append(tokens, call.form.Get("subject_token"))
	}
	renewed(t, audience, tokens...)
	if impersonated < 2 {
		t.Errorf("got %d impersonations, want one for each exchange", impersonated)
	}
}

// forAzure checks two clients, since one keeps the content of the file for five minutes.
func (s forStack) forAzure(t *testing.T) {
	startExec(t, other(s, "AZURE_CLIENT_SECRET=other", "AZURE_CLIENT_ID=other", "AZURE_TOKEN_CREDENTIALS=dev"), node(`
		const {DefaultAzureCredential} = require("@azure/identity");
		const get = () => new DefaultAzureCredential({disableInstanceDiscovery: true}).getToken("https://storage.azure.com/.default");
		console.log((await get()).token); await wait(5); await get();`), "--scope", "brief.azure.use", "--for", "azure").
		finish(t).want(t, 0, "far-token\n")
	var tokens []string
	for _, call := range s.far.take("POST /acme-tenant/oauth2/v2.0/token") {
		if call.form.Get("client_id") != "11111111-2222-3333-4444-555555555555" || call.form.Get("client_secret") != "" {
			t.Errorf("got %v", call.form)
		}
		tokens = append(tokens, call.form.Get("client_assertion"))
	}
	renewed(t, "api://AzureADTokenExchange", tokens...)
}

func (s forStack) forAnthropic(t *testing.T) {
	startExec(t, other(s, "ANTHROPIC_API_KEY=other", "ANTHROPIC_AUTH_TOKEN=other", "ANTHROPIC_PROFILE=other"), node(`
		const client = new (require("@anthropic-ai/sdk").default)();
		await client.models.list(); await wait(5); await client.models.list(); console.log("ok");`), "--scope", "brief.anthropic.use", "--for", "anthropic").
		finish(t).want(t, 0, "ok\n")
	var tokens []string
	for _, call := range s.far.take("POST /v1/oauth/token") {
		if diff := cmp.Diff([]any{"fdrl_1", "11111111-2222-3333-4444-555555555555", "svac_1"},
			[]any{call.body["federation_rule_id"], call.body["organization_id"], call.body["service_account_id"]}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		tokens = append(tokens, call.body["assertion"].(string))
	}
	renewed(t, "https://api.anthropic.com", tokens...)
}

// forKeys checks that SDKs which read a key from a variable alone get it there, for the longest TTL.
func (s forStack) forKeys(t *testing.T) {
	s.store(t, "anthropic", map[string]any{"key": "sk-ant-one"})
	s.store(t, "openai", map[string]any{"key": "sk-two", "organization": "acme"})
	env := other(s, "ANTHROPIC_BASE_URL="+s.far.address, "ANTHROPIC_AUTH_TOKEN=other", "OPENAI_BASE_URL="+s.far.address+"/openai", "OPENAI_ADMIN_KEY=other")
	got := startExec(t, env, node(`
		await new (require("@anthropic-ai/sdk").default)().models.list();
		await new (require("openai").default)().models.list(); console.log("ok");`), "--task", "t-keys",
		"--scope", "brief.key.use", "--param", "of=anthropic", "--for", "anthropic", "--scope", "brief.key.use", "--param", "of=openai", "--for", "openai=key").finish(t)
	got.want(t, 0, "cannot be renewed")
	s.far.mu.Lock()
	for _, call := range s.far.calls {
		if want := map[string]string{"GET /v1/models": "Bearer sk-ant-one", "GET /openai/models": "Bearer sk-two"}[call.path]; call.authorization != want {
			t.Errorf("%s: got %q, want %q", call.path, call.authorization, want)
		}
	}
	n := len(s.far.calls)
	s.far.mu.Unlock()
	if s.far.take(""); n != 2 {
		t.Errorf("got %d calls, want two", n)
	}
	for _, record := range s.records(t, "--task", "t-keys") {
		if record["ttl"] != 300.0 {
			t.Errorf("got the TTL %v, want the longest", record["ttl"])
		}
	}
}

// forGH checks that gh, which reads its files at each start, sends the renewed token.
func (s forStack) forGH(t *testing.T) {
	program(t, "gh")
	s.store(t, "github", map[string]any{"token": "ghs_one", "repositories": []string{"acme/api"}})
	p := startExec(t, other(s, "GH_TOKEN=other", "GITHUB_TOKEN=other"), `gh api user; echo; while gh api user >/dev/null && ! grep -q ghs_two "$GH_CONFIG_DIR/hosts.yml"; do sleep 0.2; done
		gh api user; stat -c %a "$GH_CONFIG_DIR" "$GH_CONFIG_DIR"/* | sort -u | tr '\n' ' '`,
		"--scope", "brief.key.use", "--param", "of=github", "--for", "gh="+s.far.host)
	p.waitFor(t, p.out, "\n")
	s.store(t, "github", map[string]any{"token": "ghs_two"})
	p.finish(t).want(t, 0, `"login":"agent"`, "600 700 ")
	calls := s.far.take("GET /api/v3/user")
	if len(calls) < 3 || calls[0].authorization != "token ghs_one" || calls[len(calls)-1].authorization != "token ghs_two" {
		t.Errorf("got %v", calls)
	}
	// Other hosts do not get it.
	startExec(t, s.env, `gh auth token --hostname github.com`, "--scope", "brief.key.use", "--param", "of=github", "--for", "gh="+s.far.host).
		finish(t).want(t, 1, "no oauth token")
}

// forGit checks that git sends the token of --for gh to this host alone, whatever helpers and settings it has besides.
func (s forStack) forGit(t *testing.T) {
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", "--bare", filepath.Join(root, "acme", "api.git")).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	address, ca := gitServer(t, root, func(user, password string) bool { return user == "x-access-token" && password == "ghs_git" })
	s.store(t, "git", map[string]any{"token": "ghs_git"})
	env := other(s, "GIT_SSL_CAINFO="+ca, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=kept",
		"GIT_CONFIG_KEY_1=credential.helper", "GIT_CONFIG_VALUE_1=!echo username=other; echo password=other; :",
		"GIT_CONFIG_KEY_2=http."+address+"/.extraheader", "GIT_CONFIG_VALUE_2=Authorization: Basic b3RoZXI6b3RoZXI=")
	startExec(t, env, `git ls-remote `+address+`/acme/api.git && git config user.name
		printf 'protocol=https\nhost=github.com\n\n' | git credential fill | grep password`,
		"--scope", "brief.key.use", "--param", "of=git", "--for", "gh="+strings.TrimPrefix(address, "https://")).
		finish(t).want(t, 0, "kept\npassword=other\n")
}

// forDocker checks that skopeo, which reads what docker, podman, buildah and crane read, sends the renewed login.
func (s forStack) forDocker(t *testing.T) {
	program(t, "skopeo")
	s.store(t, "docker", map[string]any{"username": "robot", "password": `one"'\$`})
	s.store(t, "registry", map[string]any{"token": "two"})
	const list = `skopeo list-tags docker://`
	startExec(t, other(s, "DOCKER_AUTH_CONFIG={}"), list+s.far.host+`/acme/site; skopeo login --get-login `+s.far.host+`; cat "$DOCKER_CONFIG/config.json"`,
		"--scope", "brief.key.use", "--param", "of=registry", "--for", "docker=AWS@"+s.far.host).finish(t).want(t, 0, `"one"`, "AWS\n")
	if calls := s.far.take("GET /v2/acme/site/tags/list"); len(calls) != 1 || calls[0].authorization != "Basic "+base64.StdEncoding.EncodeToString([]byte("AWS:two")) {
		t.Errorf("got %v", calls)
	}
	startExec(t, s.env, `true`, "--scope", "brief.key.use", "--param", "of=docker", "--for", "docker="+s.far.host).finish(t).want(t, 1, "not supported")
	s.store(t, "docker", map[string]any{"username": "robot", "password": "one$`;"})
	p := startExec(t, s.env, `skopeo login --get-login `+s.far.host+`; first=$(cat "$REGISTRY_AUTH_FILE"); while [ "$(cat "$REGISTRY_AUTH_FILE")" = "$first" ]; do sleep 0.2; done; `+list+s.far.host+`/acme/site`,
		"--scope", "brief.key.use", "--param", "of=docker", "--for", "docker="+s.far.host)
	p.waitFor(t, p.out, "\n")
	s.store(t, "docker", map[string]any{"username": "robot", "password": "next"})
	p.finish(t).want(t, 0, "robot\n", `"one"`)
	if calls := s.far.take("GET /v2/acme/site/tags/list"); len(calls) != 1 || calls[0].authorization != "Basic "+base64.StdEncoding.EncodeToString([]byte("robot:next")) {
		t.Errorf("got %v", calls)
	}
	startExec(t, s.env, `skopeo login --get-login docker.io`, "--scope", "brief.key.use", "--param", "of=registry", "--for", "docker=me@docker.io").finish(t).want(t, 0, "me\n")
}

// forNPM checks that npm, which reads its configuration at each start, sends the renewed token to this registry alone.
func (s forStack) forNPM(t *testing.T) {
	s.store(t, "npm", map[string]any{"token": "npm_one"})
	env := other(s, "npm_config_userconfig=/nonexistent", "npm_config_//"+s.far.host+"/npm/:_authToken=other", "NPM_CONFIG_CAFILE="+s.far.ca)
	p := startExec(t, env, `npm whoami; while ! grep -q npm_two "$NPM_CONFIG_USERCONFIG"; do sleep 0.2; done; npm whoami`,
		"--scope", "brief.key.use", "--param", "of=npm", "--for", "npm="+s.far.host+"/npm")
	p.waitFor(t, p.out, "\n")
	s.store(t, "npm", map[string]any{"token": "npm_two"})
	p.finish(t).want(t, 0, "agent\nagent\n")
	calls := s.far.take("GET /npm/-/whoami")
	if len(calls) != 2 || calls[0].authorization != "Bearer npm_one" || calls[1].authorization != "Bearer npm_two" {
		t.Errorf("got %v", calls)
	}
}

func (s forStack) forMistakes(t *testing.T) {
	s.store(t, "hostile", map[string]any{"token": "a\nregistry=https://evil.example/", "key": `a"b`, "access_key": "A"})
	hostile := []string{"--scope", "brief.key.use", "--param", "of=hostile"}
	for _, tc := range []struct {
		name  string
		env   []string
		flags []string
		want  string
	}{
		{"a token with a line break for npm", nil, with(hostile, "--for", "npm=npm.acme.example"), "not supported"},
		{"a token with a line break for gh", nil, with(hostile, "--for", "gh"), "not supported"},
		{"a token with a line break for docker", nil, with(hostile, "--for", "docker=h.example"), "not supported"},
		{"a key with a quote", nil, with(hostile, "--for", "openai=key"), "not supported"},
		{"no secret key", nil, with(hostile, "--for", "aws"), "access_key and secret_key"},
		{"no such field", nil, with(hostile, "--for", "anthropic=password"), "no field"},
		{"a JWT for openai", nil, with(repo, "--for", "openai"), "no SDK of OpenAI reads one"},
		{"a token for another cloud", nil, []string{"--scope", "brief.aws.use", "--for", "azure"}, "use --for aws"},
		{"no role", nil, []string{"--scope", "brief.bare.use", "--for", "aws"}, "set AWS_ROLE_ARN"},
		{"no tenant", nil, []string{"--scope", "brief.bare.use", "--for", "azure"}, "set AZURE_CLIENT_ID"},
		{"no rule", nil, []string{"--scope", "brief.bare.use", "--for", "anthropic"}, "set ANTHROPIC_FEDERATION_RULE_ID"},
		{"a role with a line break", []string{"AWS_ROLE_ARN=a\nb"}, []string{"--scope", "brief.bare.use", "--for", "aws"}, "not supported"},
		{"no provider of Google", nil, []string{"--scope", "brief.bare.use", "--for", "google"}, "workload identity provider"},
		{"a stored key for google", nil, with(hostile, "--for", "google"), "use a scope that issues a JWT"},
		{"an invalid host", nil, with(hostile, "--for", "gh=a b"), "not the name of a host"},
		{"a host with a line break", nil, with(hostile, "--for", "npm=a\nregistry"), "not a registry"},
		{"no registry", nil, with(hostile, "--for", "docker"), "use --for docker=HOST"},
		{"a path of npm that leaves", nil, with(hostile, "--for", "npm=a/b?c"), "not a registry"},
		{"a value for psql", nil, with(hostile, "--for", "psql=x"), "takes nothing after its name"},
		{"twice", nil, with(repo, "--for", "npm=a.example", "--for", "npm=b.example"), "set --for npm only once"},
		{"a variable and a file", nil, with(hostile, "--for", "openai=key", "--file", "a"), "a separate --scope"},
		{"a variable by kind and a file", nil, with(hostile, "--for", "anthropic", "--file", "a"), "a separate --scope"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := startExec(t, append(s.env[:len(s.env):len(s.env)], tc.env...), `echo ran; ls -A "$BREVET_DIR"`, tc.flags...).finish(t)
			got.want(t, 1, tc.want)
			if got.out != "" || strings.Contains(got.err, "evil.example") {
				t.Errorf("got %q on standard output and %q", got.out, got.err)
			}
		})
	}
}
