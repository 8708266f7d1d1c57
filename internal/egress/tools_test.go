package egress_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// toolbox runs other programs as the sandbox, with the environment variables of its gateway and nothing else of Brevet.
type toolbox struct {
	t        *testing.T
	dir      string
	environ  []string
	combined func(*exec.Cmd) ([]byte, error)
}

func (w *world) toolbox(t *testing.T) *toolbox {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, w.gateway.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	endpoint := egress.Endpoint{Address: w.addr, Password: secret.New(password), CA: ca}
	environ := append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "HOST=https://" + w.host.name(), "NAME=" + w.host.name(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local",
		"GOPATH=" + filepath.Join(dir, "go"), "GOCACHE=" + filepath.Join(dir, "cache"), "GONOSUMDB=example.org/*",
		"npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false", "PIP_DISABLE_PIP_VERSION_CHECK=1",
	}, endpoint.Environ()...)
	return &toolbox{t, dir, environ, (*exec.Cmd).CombinedOutput}
}

// run runs a script and returns its output.
func (b *toolbox) run(script string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "sh", "-ec", script)
	cmd.Dir, cmd.Env = b.dir, b.environ
	out, err := b.combined(cmd)
	if err != nil {
		b.t.Fatalf("%s\n%s%v", script, out, err)
	}
	if bytes.Contains(out, []byte(canary)) {
		b.t.Errorf("the key is in what it prints:\n%s", out)
	}
	return string(out)
}

// in returns the toolbox for another test.
func (b *toolbox) in(t *testing.T) *toolbox {
	other := *b
	other.t = t
	return &other
}

// keyed returns a handler that refuses requests without the key.
func keyed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != canary {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// repositories serves git over HTTP with git's own backend.
func repositories(t *testing.T) http.Handler {
	t.Helper()
	root := t.TempDir()
	for _, args := range [][]string{
		{"init", "-q", "--bare", "-b", "main", filepath.Join(root, "repo.git")}, {"-C", filepath.Join(root, "repo.git"), "config", "http.receivepack", "true"},
	} {
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %s", args, out)
		}
	}
	path, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	return &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/key/git",
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	}
}

// registry serves one npm package, one Go module and one pip package.
func registry(t *testing.T, w *world) http.Handler {
	t.Helper()
	pack := filepath.Join(t.TempDir(), "package")
	if err := os.MkdirAll(pack, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pack, "package.json"), []byte(`{"name": "thing", "version": "1.0.0"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tarball, err := exec.CommandContext(t.Context(), "tar", "-C", filepath.Dir(pack), "-cz", "package").Output()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(tarball)
	version := map[string]any{"name": "thing", "version": "1.0.0", "dist": map[string]any{
		"tarball": w.url("/key/npm/thing/-/thing-1.0.0.tgz"), "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
	}}
	document, err := json.Marshal(map[string]any{"name": "thing", "dist-tags": map[string]any{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": version}})
	if err != nil {
		t.Fatal(err)
	}
	const mod = "module example.org/thing\n"
	var module, wheel bytes.Buffer
	zipped(t, &module, map[string]string{"example.org/thing@v1.0.0/go.mod": mod, "example.org/thing@v1.0.0/thing.go": "package thing\n"})
	zipped(t, &wheel, map[string]string{
		"thing.py": "", "thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n", "thing-1.0.dist-info/RECORD": "",
	})
	mux := http.NewServeMux()
	for path, body := range map[string][]byte{
		"/key/npm/thing": document, "/key/npm/thing/-/thing-1.0.0.tgz": tarball, "/key/go/example.org/thing/@v/v1.0.0.info": []byte(`{"Version": "v1.0.0"}`),
		"/key/go/example.org/thing/@v/v1.0.0.mod": []byte(mod), "/key/go/example.org/thing/@v/v1.0.0.zip": module.Bytes(),
		"/key/simple/thing/": []byte(`<a href="/key/simple/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>`), "/key/simple/thing-1.0-py3-none-any.whl": wheel.Bytes(),
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	}
	return mux
}

func zipped(t *testing.T, to *bytes.Buffer, files map[string]string) {
	t.Helper()
	archive := zip.NewWriter(to)
	for name, text := range files {
		f, err := archive.Create(name)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
}

// Unmodified programs get through to hosts that require a key.
func TestUnmodifiedToolsWork(t *testing.T) {
	w := newWorld(t)
	w.toolsWork(t, w.toolbox)
}

// toolsWork runs each tool in a toolbox.
func (w *world) toolsWork(t *testing.T, toolbox func(*testing.T) *toolbox) {
	t.Helper()
	w.host.mux.Handle("/key/git/", keyed(repositories(t)))
	others := keyed(registry(t, w))
	for _, path := range []string{"/key/npm/", "/key/go/", "/key/simple/"} {
		w.host.mux.Handle(path, others)
	}
	w.host.mux.Handle("/key/hello", keyed(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })))
	const fetching = `fetch(process.env.HOST + "/key/hello").then(r => r.text()).then(console.log)`
	tools := []struct{ name, script, want string }{
		{"curl", `curl -sSf "$HOST/key/hello"`, "hello"},
		{"curl with HTTP 1.1", `curl -sSf --http1.1 "$HOST/key/hello"`, "hello"},
		{"curl by a base URL", `curl -sSf -u "brevet:$BREVET_EGRESS_PASSWORD" "$BREVET_EGRESS_URL/$NAME/key/hello"`, "hello"},
		{
			"git", `git clone -q "$HOST/key/git/repo.git" a 2>&1; cd a; echo one > one; git add one; git commit -qm one; git push -q origin HEAD:main
			git clone -q "$HOST/key/git/repo.git" ../b; cat ../b/one`, "one\n",
		},
		{"npm", `npm --registry "$HOST/key/npm/" install --prefix n thing >npm.log 2>&1 || { cat npm.log; exit 1; }; cat n/node_modules/thing/package.json`, `"thing"`},
		{"Go", `mkdir m; cd m; GOPROXY="$HOST/key/go" go mod init x 2>/dev/null; GOPROXY="$HOST/key/go" go mod download -json example.org/thing@v1.0.0; chmod -R u+w "$GOPATH"`, `"Version": "v1.0.0"`},
		{
			"Node with undici", `NODE_USE_ENV_PROXY= NODE_PATH='` + testkit.NodeModules(t) +
				`' node -e 'const {setGlobalDispatcher, EnvHttpProxyAgent} = require("undici"); setGlobalDispatcher(new EnvHttpProxyAgent()); ` + fetching + `'`, "hello",
		},
		{"Node by a base URL", `node -e 'fetch(process.env.BREVET_EGRESS_URL + "/" + process.env.NAME + "/key/hello", {headers: {authorization: "Bearer " + process.env.BREVET_EGRESS_PASSWORD}}).then(r => r.text()).then(console.log)'`, "hello"},
		{"Python", `python3 -c 'import os, urllib.request; print(urllib.request.urlopen(os.environ["HOST"] + "/key/hello").read().decode())'`, "hello"},
		{"pip", `python3 -m pip download -q --no-deps --index-url "$HOST/key/simple" thing; ls`, "thing-1.0-py3-none-any.whl"},
	}
	if nodeTakesProxies(t) {
		tools = append(tools, struct{ name, script, want string }{"Node", `node -e '` + fetching + `'`, "hello"})
	}
	for _, tc := range tools {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			if got := toolbox(t).run(tc.script); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q in it", got, tc.want)
			}
		})
	}
	if n := w.issued(t, "host.key.use"); n != 1 {
		t.Errorf("got %d credentials, want one for all of them", n)
	}
}

// nodeTakesProxies reports whether fetch of the installed Node obeys the proxy variables, as it does from 22.21 and 24.0 on.
func nodeTakesProxies(t *testing.T) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "node", "-p", "process.versions.node").Output()
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "%d.%d.", &major, &minor); err != nil {
		t.Fatalf("node has the version %q: %v", out, err)
	}
	return major >= 24 || major == 22 && minor >= 21
}
