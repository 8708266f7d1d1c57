package githubapi_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	clientID     = "Iv23liDoubleTest0001"
	installation = 4711
)

var appKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func key(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	one, err := appKey()
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func start(t *testing.T) *githubapi.Server {
	t.Helper()
	return githubapi.Start(t, githubapi.Options{
		Apps: []githubapi.App{{
			ID: 1001, ClientID: clientID, Slug: "brevet-test", Keys: []*rsa.PublicKey{&key(t).PublicKey},
			Installations: []githubapi.Installation{{
				ID: installation, Owner: "acme", Repositories: []string{"api", "site"},
				Permissions: map[string]string{"issues": "write", "contents": "write", "pull_requests": "read"},
			}},
		}},
		Repositories: []string{"acme/hidden"},
	})
}

// appJWT returns a JWT of the App with other claims than usual.
func appJWT(t *testing.T, signer *rsa.PrivateKey, change func(map[string]any)) string {
	t.Helper()
	now := time.Now()
	claims := map[string]any{"iss": clientID, "iat": now.Add(-time.Minute).Unix(), "exp": now.Add(9 * time.Minute).Unix()}
	change(claims)
	by, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: signer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(by).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// call sends one request, and returns the status and the answer.
func call(t *testing.T, hub *githubapi.Server, method, path, bearer, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, hub.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := (&http.Client{Transport: github.NewTransport(hub.Roots())}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := map[string]any{}
	_ = json.NewDecoder(resp.Body).Decode(&out) // some answers are empty or a list
	return resp.StatusCode, out
}

// token makes a token of the App.
func token(t *testing.T, hub *githubapi.Server, repositories []string, permissions map[string]string) string {
	t.Helper()
	ask, err := json.Marshal(map[string]any{"repositories": repositories, "permissions": permissions})
	if err != nil {
		t.Fatal(err)
	}
	status, got := call(t, hub, "POST", fmt.Sprintf("/app/installations/%d/access_tokens", installation), appJWT(t, key(t), func(map[string]any) {}), string(ask))
	text, _ := got["token"].(string)
	if status != 201 || text == "" {
		t.Fatalf("got status %d: %v", status, got)
	}
	return text
}

// run runs a program with only the given environment, and returns what it printed.
func run(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+cmd.Dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// GitHub's own libraries sign the App's JWT, make a token and use it, as they do with GitHub.
func TestOctokitWorksAsAnApp(t *testing.T) {
	hub := start(t)
	hub.AddIssue("acme/api", "First", "")
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key(t))})
	script, err := filepath.Abs("testdata/octokit.cjs")
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(t, []string{
		"NODE_EXTRA_CA_CERTS=" + hub.CAFile(), "SDKS=" + testkit.SDKs(t), "GITHUB=" + hub.URL(), "CLIENT_ID=" + clientID, "KEY=" + string(block),
	}, "node", script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var saw map[string]any
	if err := json.Unmarshal([]byte(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]), &saw); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]any{
		"app": "brevet-test", "installation": 4711.0, "repositories": []any{"acme/api"}, "repository": "acme/api", "comments": []any{"a comment"},
		"state": "closed", "titles": []any{"From Octokit", "First"}, "content": "two", "folder": []any{"docs/new.md"}, "stale": 409.0,
		"viewer": "brevet-test[bot]", "pulls": 403.0, "other": 404.0, "unknown": 404.0, "user": 403.0, "wider": 422.0, "foreign": 422.0,
		"anybody": 404.0, "ended": 204.0,
	}
	for name, value := range want {
		if !reflect.DeepEqual(saw[name], value) {
			t.Errorf("%s: got %v, want %v", name, saw[name], value)
		}
	}
	if live := hub.Live(); len(live) != 0 {
		t.Errorf("got %d live tokens, want none", len(live))
	}
	for _, one := range hub.Calls() {
		if one.Problem != "" {
			t.Errorf("%s %s: %s", one.Method, one.Path, one.Problem)
		}
	}
}

func TestGitClonesAndPushesWithinThePermission(t *testing.T) {
	hub := start(t)
	reader := token(t, hub, []string{"api"}, map[string]string{"contents": "read"})
	writer := token(t, hub, []string{"api"}, map[string]string{"contents": "write"})
	stranger := token(t, hub, []string{"api"}, map[string]string{"issues": "write"})
	env := []string{"GIT_SSL_CAINFO=" + hub.CAFile(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1"}
	url := func(token, full string) string {
		return strings.Replace(hub.CloneURL(full), "https://", "https://x-access-token:"+token+"@", 1)
	}
	folder := filepath.Join(t.TempDir(), "api")
	if out, err := run(t, env, "git", "clone", "-q", url(reader, "acme/api"), folder); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(folder, "README.md")); err != nil || string(text) != "# api\n" {
		t.Errorf("got %q, %v", text, err)
	}
	large := make([]byte, 3<<20) // git sends what is larger than 1 MB in chunks
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "large"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"add", "large"}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "Add"}} {
		if out, err := run(t, env, "git", append([]string{"-C", folder}, args...)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	push := func(token string) (string, error) {
		return run(t, env, "git", "-C", folder, "push", "-q", url(token, "acme/api"), "HEAD:main")
	}
	if out, err := push(reader); err == nil || !strings.Contains(out, "403") {
		t.Errorf("a token that may read pushes: %v\n%s", err, out)
	}
	if out, err := push(writer); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if status, got := call(t, hub, "GET", "/repos/acme/api/contents/large", reader, ""); status != 200 || got["size"] != float64(3<<20) {
		t.Errorf("the REST API answers %d, size %v", status, got["size"])
	}
	for name, from := range map[string]string{
		"another repository": url(reader, "acme/site"), "no permission": url(stranger, "acme/api"), "no such token": url("ghs_none", "acme/api"), "nobody": hub.CloneURL("acme/api"),
	} {
		if out, err := run(t, env, "git", "ls-remote", from); err == nil {
			t.Errorf("%s: git read %s", name, out)
		}
	}
	if status, _ := call(t, hub, "DELETE", "/installation/token", reader, ""); status != 204 {
		t.Fatalf("got status %d", status)
	}
	if out, err := run(t, env, "git", "ls-remote", url(reader, "acme/api")); err == nil {
		t.Errorf("a dead token reads %s", out)
	}
}

// gh takes the double for a server of GitHub Enterprise, because its host is not github.com.
func TestGhReadsAndWritesWithinThePermission(t *testing.T) {
	hub := start(t)
	hub.AddIssue("acme/api", "Seen by gh", "text")
	gh := func(token string, args ...string) (string, error) {
		return run(t, []string{
			"SSL_CERT_FILE=" + hub.CAFile(), "GH_HOST=" + hub.Addr(), "GH_ENTERPRISE_TOKEN=" + token, "GH_PROMPT_DISABLED=1", "NO_COLOR=1",
		}, "gh", args...)
	}
	repo := hub.Addr() + "/acme/api"
	reader := token(t, hub, []string{"api"}, map[string]string{"issues": "read"})
	writer := token(t, hub, []string{"api"}, map[string]string{"issues": "write"})
	stranger := token(t, hub, []string{"api"}, map[string]string{"contents": "read"})
	creator := token(t, hub, []string{"api"}, map[string]string{"issues": "write", "contents": "read"})
	for _, tc := range []struct {
		name  string
		token string
		args  []string
		want  string
		fails bool
	}{
		{"list", reader, []string{"issue", "list", "-R", repo}, "Seen by gh", false},
		{"view", reader, []string{"issue", "view", "1", "-R", repo, "--json", "title,body,state", "--jq", ".title"}, "Seen by gh", false},
		{"api", reader, []string{"api", "repos/acme/api/issues", "--jq", ".[].title"}, "Seen by gh", false},
		{"graphql", reader, []string{"api", "graphql", "-f", "query={viewer{login}}", "--jq", ".data.viewer.login"}, "brevet-test[bot]", false},
		{"repo", reader, []string{"repo", "view", repo, "--json", "nameWithOwner", "--jq", ".nameWithOwner"}, "acme/api", false},
		{"comment", reader, []string{"issue", "comment", "1", "-R", repo, "--body", "b"}, "not accessible", true},
		{"create", reader, []string{"issue", "create", "-R", repo, "--title", "t", "--body", "b"}, "not accessible", true},
		// gh asks for the default branch before it creates an issue, and GitHub refuses that without contents: read (cli/cli#12798).
		{"create", writer, []string{"issue", "create", "-R", repo, "--title", "By gh", "--body", "b"}, "defaultBranchRef", true},
		{"create", creator, []string{"issue", "create", "-R", repo, "--title", "By gh", "--body", "b"}, "/issues/2", false},
		{"comment", writer, []string{"issue", "comment", "1", "-R", repo, "--body", "b"}, "issuecomment", false},
		{"pulls", reader, []string{"pr", "list", "-R", repo}, "not accessible", true},
		{"list", stranger, []string{"issue", "list", "-R", repo}, "not accessible", true},
		{"other repository", reader, []string{"issue", "list", "-R", hub.Addr() + "/acme/site"}, "Could not resolve", true},
		{"no such token", "ghs_none", []string{"issue", "list", "-R", repo}, "401", true},
	} {
		out, err := gh(tc.token, tc.args...)
		if (err != nil) != tc.fails || !strings.Contains(out, tc.want) {
			t.Errorf("%s: got %v and %q, want %q", tc.name, err, out, tc.want)
		}
	}
}

func TestAppJWTsAreVerified(t *testing.T) {
	hub := start(t)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, tc := range map[string]struct {
		signer *rsa.PrivateKey
		change func(map[string]any)
		status int
	}{
		"good":             {key(t), func(map[string]any) {}, 200},
		"the App's id":     {key(t), func(c map[string]any) { c["iss"] = 1001 }, 200},
		"another key":      {stranger, func(map[string]any) {}, 401},
		"no issuer":        {key(t), func(c map[string]any) { delete(c, "iss") }, 401},
		"unknown issuer":   {key(t), func(c map[string]any) { c["iss"] = "Iv23none" }, 404},
		"no iat":           {key(t), func(c map[string]any) { delete(c, "iat") }, 401},
		"iat in future":    {key(t), func(c map[string]any) { c["iat"] = now.Add(time.Minute).Unix() }, 401},
		"iat is a text":    {key(t), func(c map[string]any) { c["iat"] = fmt.Sprint(now.Unix()) }, 401},
		"no exp":           {key(t), func(c map[string]any) { delete(c, "exp") }, 401},
		"expired":          {key(t), func(c map[string]any) { c["exp"] = now.Add(-time.Second).Unix() }, 401},
		"11 minutes":       {key(t), func(c map[string]any) { c["exp"] = now.Add(11 * time.Minute).Unix() }, 401},
		"11 minutes apart": {key(t), func(c map[string]any) { c["iat"] = now.Add(-2 * time.Minute).Unix() }, 401},
	} {
		if status, got := call(t, hub, "GET", "/app", appJWT(t, tc.signer, tc.change), ""); status != tc.status {
			t.Errorf("%s: got status %d (%v), want %d", name, status, got["message"], tc.status)
		}
	}
	if status, _ := call(t, hub, "GET", "/app", token(t, hub, []string{"api"}, map[string]string{"issues": "read"}), ""); status != 401 {
		t.Errorf("an installation token: got status %d, want 401", status)
	}
	if status, _ := call(t, hub, "GET", "/repos/acme/api", appJWT(t, key(t), func(map[string]any) {}), ""); status != 401 {
		t.Errorf("a JWT in place of a token: got status %d, want 401", status)
	}
}

// A body without repositories and permissions asks for all of them, as with GitHub.
func TestEmptyRequestGetsEverything(t *testing.T) {
	hub := start(t)
	status, _ := call(t, hub, "POST", fmt.Sprintf("/app/installations/%d/access_tokens", installation), appJWT(t, key(t), func(map[string]any) {}), "")
	live := hub.Live()
	if status != 201 || len(live) != 1 || !slices.Equal(live[0].Grant.Repositories, []string{"acme/api", "acme/site"}) || live[0].Grant.Permissions["contents"] != "write" {
		t.Errorf("got status %d and %+v", status, live)
	}
}

func TestTokensEndAfterAnHour(t *testing.T) {
	hub := start(t)
	one := token(t, hub, []string{"api"}, map[string]string{"issues": "read"})
	hub.Advance(59 * time.Minute)
	if status, _ := call(t, hub, "GET", "/repos/acme/api", one, ""); status != 200 || len(hub.Live()) != 1 {
		t.Errorf("after 59 minutes: got status %d and %d live tokens", status, len(hub.Live()))
	}
	hub.Advance(time.Minute)
	if status, _ := call(t, hub, "GET", "/repos/acme/api", one, ""); status != 401 || len(hub.Live()) != 0 {
		t.Errorf("after an hour: got status %d and %d live tokens", status, len(hub.Live()))
	}
}

// Requests that GitHub's description does not allow are refused, and the calls say why.
func TestInvalidRequestsAreRefused(t *testing.T) {
	hub := start(t)
	one := token(t, hub, []string{"api"}, map[string]string{"issues": "write"})
	for _, tc := range []struct{ method, path, body string }{
		{"POST", "/repos/acme/api/issues", `{"body":"no title"}`},
		{"POST", "/repos/acme/api/issues", `{"title":"t","labels":"x"}`},
		{"GET", "/repos/acme/api/issues?state=none", ""},
		{"PATCH", "/repos/acme/api/issues/1", `{"state":"done"}`},
	} {
		status, _ := call(t, hub, tc.method, tc.path, one, tc.body)
		calls := hub.Calls()
		if last := calls[len(calls)-1]; status != 422 || last.Problem == "" {
			t.Errorf("%s %s: got status %d and the problem %q", tc.method, tc.path, status, last.Problem)
		}
	}
}
