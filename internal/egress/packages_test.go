package egress_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit/registries"
)

const draft = `  - name: packages.npm.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: none}
    egress: [{hosts: [registry.npmjs.org], methods: [GET, HEAD], paths: ['/*', '/*%2f*', '/*/-/*', '/*/*/-/*']}]
  - name: packages.python.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: none}
    egress:
      - {hosts: [pypi.org], methods: [GET, HEAD], paths: ['/simple/**']}
      - {hosts: [files.pythonhosted.org], methods: [GET, HEAD], paths: ['/packages/**']}
  - name: packages.go.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: none}
    egress: [{hosts: [proxy.golang.org, sum.golang.org], methods: [GET, HEAD], paths: ['/**']}]
`

// ecosystems are package managers, each with a scope of the example catalogue.
var ecosystems = []struct {
	name, scope string
	install     string // prints what is in a package
	want        string
	calls       []string // that reach the registries, among others
	again       string   // installs in the folder that install has left, without what it has cached
	refused     []refusedCommand
}{
	{
		name: "npm", scope: "packages.npm.install", want: registries.NPMGreeting,
		install: `echo '{"name": "project", "version": "1.0.0", "dependencies": {"greeter": "^1.0.0"}}' >package.json
			npm install --package-lock-only
			npm ci --cache first
			node -p 'require("greeter")("world")'`,
		calls: []string{"registry.npmjs.org/@acme%2fwords", "registry.npmjs.org/@acme/words/-/words-1.2.0.tgz", "registry.npmjs.org/padding/-/padding-2.1.3.tgz"},
		again: "npm ci --cache second",
		refused: []refusedCommand{
			{"npm publish", "method=PUT host=" + registries.NPM},
			{"npm audit", "method=POST host=" + registries.NPM},
			{"npm ping", "method=GET host=" + registries.NPM},
			{"npm install https://elsewhere.test/a.tgz", "method=GET host=elsewhere.test"},
		},
	},
	{
		name: "pip", scope: "packages.python.install", want: registries.PythonGreeting,
		install: `python3 -m pip install --require-hashes -r requirements.txt --target lib
			PYTHONPATH=lib python3 -c 'import acme_greeter; print(acme_greeter.greet())'`,
		calls: []string{"pypi.org/simple/acme-words/", "files.pythonhosted.org/packages/", "pypi.org/simple/acme-build/"},
		again: "python3 -m pip install --no-cache-dir -r requirements.txt --target again",
		refused: []refusedCommand{
			{"python3 -m pip install --retries 0 --index-url https://elsewhere.test/simple/ acme-words --target other", "method=GET host=elsewhere.test"},
			{`curl -sSf -F :action=file_upload "$PYPI/legacy/"`, "method=POST host=" + registries.PyPI},
		},
	},
	{
		// The checksum database is asked through the proxy, and then itself.
		name: "go", scope: "packages.go.install", want: "const Greeting = words.Hello",
		install: `go mod init project
			printf 'package project\n\nimport _ "` + registries.GoModule + `"\n' >project.go
			go get ` + registries.GoModule + `@latest
			mv go.sum first.sum
			GOPATH=$PWD/second GOSUMDB="$GOSUMDB $SUMS" go get ` + registries.GoModule + `
			cmp go.sum first.sum
			GOPATH=$PWD/third GOSUMDB=off go mod download
			go mod verify
			cat "third/pkg/mod/` + registries.GoModule + `@v1.1.0/greeter.go"`,
		calls: []string{
			"proxy.golang.org/example.net/acme/greeter/@v/list", "proxy.golang.org/example.net/%21acme/%21old/@v/v2.0.0+incompatible.zip",
			"proxy.golang.org/sumdb/sum.golang.org/lookup/example.net/acme/words@v1.0.2", "sum.golang.org/lookup/example.net/acme/words@v1.0.2",
		},
		again: "GOPATH=$PWD/fourth go mod download",
		refused: []refusedCommand{
			{"GOPROXY=direct go get elsewhere.test/a", "method=GET host=elsewhere.test"},
			{`curl -sSf -X PUT "$GOPROXY/example.net/acme/words/@v/v1.0.3.zip"`, "method=PUT host=" + registries.Proxy},
		},
	},
}

// refusedCommand is a command that fails because the gateway refuses a call. log is in the line of the call.
type refusedCommand struct{ command, log string }

// packageWorld is a world with registries.
type packageWorld struct {
	*world
	at *registries.Registries
}

func newPackageWorld(t *testing.T) packageWorld {
	t.Helper()
	at := registries.Start(t)
	text := draft
	for _, host := range []string{registries.NPM, registries.PyPI, registries.Files, registries.Proxy, registries.SumDB} {
		text = strings.ReplaceAll(text, host, "'"+at.At(host)+"'")
	}
	w := packageWorld{newWorld(t, text), at}
	w.trusted = at.Authority
	w.open(t)
	return w
}

// sandboxed prepares a toolbox in which the package managers have their usual settings, but for the ports of the registries. The sandbox
// has credentials for all of them.
func (w packageWorld) sandboxed(b *toolbox) *toolbox {
	b.t.Helper()
	for name, text := range map[string]string{
		".npmrc": "//" + w.at.At(registries.NPM) + "/:_authToken=of-the-sandbox\n", ".netrc": "default login sandbox password of-the-sandbox\n",
		"requirements.txt": registries.Requirements(b.t),
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	b.environ = append(b.environ,
		"npm_config_audit=true", "npm_config_fund=true", "npm_config_update_notifier=true", "PIP_DISABLE_PIP_VERSION_CHECK=0", "GOFLAGS=-modcacherw", "GONOSUMDB=",
		"npm_config_registry="+w.at.URL(registries.NPM), "PYPI="+w.at.URL(registries.PyPI), "PIP_INDEX_URL="+w.at.URL(registries.PyPI)+"/simple/",
		"GOPROXY="+w.at.URL(registries.Proxy), "GOSUMDB="+w.at.SumKey, "SUMS="+w.at.URL(registries.SumDB),
	)
	return b
}

// Package managers install from open hosts, unchanged. All calls of a task share one permit, and nothing of the sandbox's own gets out.
func TestPackageManagersWork(t *testing.T) {
	w := newPackageWorld(t)
	w.packageManagersWork(t, w.toolbox)
}

func (w packageWorld) packageManagersWork(t *testing.T, box func(*testing.T) *toolbox) {
	t.Helper()
	boxes := map[string]*toolbox{}
	for _, e := range ecosystems {
		b := w.sandboxed(box(t))
		boxes[e.name] = b
		t.Run(e.name, func(t *testing.T) {
			began := time.Now()
			if got := b.in(t).run("exec 2>&1\n" + e.install); !strings.Contains(got, e.want) {
				t.Errorf("got %q, want %q in it", got, e.want)
			}
			t.Log(time.Since(began))
			taken := w.at.Taken()
			for _, call := range e.calls {
				if !slices.ContainsFunc(taken, func(one string) bool { return strings.HasPrefix(one, "GET https://"+call) }) {
					t.Errorf("got the calls %q, want %s among them", taken, call)
				}
			}
			for _, refused := range e.refused {
				got := b.in(t).run("exec 2>&1\n! " + refused.command)
				t.Log(refused.command, got, time.Since(began))
				w.wantLog(t, append(strings.Fields(refused.log), "refused=")...)
			}
			if n := w.issued(t, e.scope); n != 1 {
				t.Errorf("got %d records of %d calls, want 1", n, len(taken))
			}
		})
	}
	w.endTask(t)
	stop := w.stopwatch(t)
	for deadline := time.Now().Add(patience); call(t, w.proxied(t), request(t, "GET", w.at.URL(registries.NPM)+"/greeter", nil)).status == http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for a refusal after the end of the task", patience)
		}
	}
	stop("a refusal after the end of the task")
	w.at.Taken()
	for _, e := range ecosystems {
		t.Run(e.name+" after the task", func(t *testing.T) {
			t.Log(boxes[e.name].in(t).run("exec 2>&1\n! " + e.again))
		})
	}
	if taken := w.at.Taken(); len(taken) > 0 {
		t.Errorf("after the end of the task, the registries got %q", taken)
	}
}
