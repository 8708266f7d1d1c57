package egress_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/examples"
	"github.com/brevet-dev/brevet/internal/testkit/registries"
)

// ecosystems are package managers, each with a scope of the example catalogue.
var ecosystems = []struct {
	name, scope string
	install     string   // prints what is in a package
	want        string   // what it prints
	calls       []string // that reach the registries, among others
	again       string   // installs once more, from the registries
	refused     []refusedCommand
	closed      []string // calls that no rule of the catalogue allows
}{
	{
		name: "npm", scope: "packages.npm.read", want: registries.NPMGreeting,
		install: `echo '{"name": "project", "version": "1.0.0", "files": [], "dependencies": {"greeter": "^1.0.0"}}' >package.json
			npm install --package-lock-only
			npm ci --cache first
			node -p 'require("greeter")("world")'`,
		calls: []string{"registry.npmjs.org/@acme%2fwords", "registry.npmjs.org/@acme/words/-/words-1.2.0.tgz", "registry.npmjs.org/padding/-/padding-2.1.3.tgz"},
		again: "npm ci --cache second",
		refused: []refusedCommand{
			{"npm publish", "method=PUT host=" + registries.NPM, "403 Forbidden - PUT"},
			{"npm audit", "method=POST host=" + registries.NPM, "the rules allow GET, HEAD"},
		},
		closed: []string{
			"POST registry.npmjs.org/-/npm/v1/security/audits", "PUT registry.npmjs.org/greeter", "DELETE registry.npmjs.org/greeter/-rev/1", "GET registry.npmjs.org/-/whoami",
			"GET registry.npmjs.org/-/v1/search?text=greeter", "GET registry.npmjs.org/@acme%2fwords%2fmore", "GET registry.npmjs.org/..%2fwords",
		},
	},
	{
		name: "pip", scope: "packages.pypi.read", want: registries.PythonGreeting,
		install: `python3 -m pip install --require-hashes -r requirements.txt --target lib
			PYTHONPATH=lib python3 -c 'import acme_greeter; print(acme_greeter.greet())'`,
		calls: []string{"pypi.org/simple/acme-words/", "files.pythonhosted.org/packages/", "pypi.org/simple/acme-build/"},
		again: "python3 -m pip install --no-cache-dir -r requirements.txt --target again",
		refused: []refusedCommand{
			{"python3 -m pip install --index-url https://elsewhere.test/simple/ acme-words --target other", "method=GET host=elsewhere.test", "No matching distribution"},
		},
		closed: []string{"POST pypi.org/legacy/", "GET pypi.org/search/?q=acme", "POST pypi.org/pypi", "GET files.pythonhosted.org/", "PUT files.pythonhosted.org/packages/a"},
	},
	{
		// The checksum database is asked through the proxy, and then itself.
		name: "go", scope: "packages.go.read", want: "const Greeting = words.Hello",
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
		again:   "GOPATH=$PWD/fourth go mod download",
		refused: []refusedCommand{{"GOPROXY=direct go get elsewhere.test/a", "method=GET host=elsewhere.test", "403 Forbidden"}},
		closed: []string{
			"GET proxy.golang.org/elsewhere.test/what-it-knows/@v/list", "GET proxy.golang.org/elsewhere.test/a/@latest", "GET proxy.golang.org/example.net.elsewhere.test/a/@v/list",
			"GET proxy.golang.org/sumdb/sum.golang.org/lookup/elsewhere.test/a@v1.0.0", "GET sum.golang.org/lookup/elsewhere.test/a@v1.0.0", "GET proxy.golang.org/cached-only/elsewhere.test/a/@v/list",
			"PUT proxy.golang.org/example.net/acme/words/@v/v1.0.3.zip", "POST sum.golang.org/lookup/a@v1.0.0", "GET sum.golang.org/elsewhere",
		},
	},
}

// refusedCommand is a command that fails because the gateway refuses a call. log is in the gateway's line about the call, and says in
// what the command prints.
type refusedCommand struct{ command, log, says string }

// packageWorld is a world with registries.
type packageWorld struct {
	*world
	at *registries.Registries
}

// newPackageWorld returns a world with the scopes of the example catalogue, whose hosts have the ports of the registries.
func newPackageWorld(t *testing.T) packageWorld {
	t.Helper()
	file, err := examples.Catalog.ReadFile("catalog/packages.yaml")
	if err != nil {
		t.Fatal(err)
	}
	at := registries.Start(t)
	_, text, _ := strings.Cut(string(file), "\nscopes:\n")
	for _, host := range registries.Hosts {
		text = strings.ReplaceAll(text, "["+host+"]", "['"+at.At(host)+"']")
	}
	text = strings.ReplaceAll(text, "/github.com/", "/example.net/") // the host of the test's modules
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
		"npm_config_registry="+w.at.URL(registries.NPM), "PIP_INDEX_URL="+w.at.URL(registries.PyPI)+"/simple/",
		"GOPROXY="+w.at.URL(registries.Proxy), "GOSUMDB="+w.at.SumKey, "SUMS="+w.at.URL(registries.SumDB),
	)
	return b
}

// install runs each package manager in a toolbox. All calls of a task share one permit.
func (w packageWorld) install(t *testing.T, box func(*testing.T) *toolbox) map[string]*toolbox {
	t.Helper()
	boxes := map[string]*toolbox{}
	for _, e := range ecosystems {
		boxes[e.name] = w.sandboxed(box(t))
	}
	t.Run("install", func(t *testing.T) {
		for _, e := range ecosystems {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				if got := boxes[e.name].in(t).run("exec 2>&1\n" + e.install); !strings.Contains(got, e.want) {
					t.Errorf("got %q, want %q in it", got, e.want)
				}
			})
		}
	})
	taken := w.at.Taken()
	for _, e := range ecosystems {
		for _, call := range e.calls {
			if !slices.ContainsFunc(taken, func(one string) bool { return strings.HasPrefix(one, "GET https://"+call) }) {
				t.Errorf("got the calls %q, want %s among them", taken, call)
			}
		}
		if n := w.issued(t, e.scope); n != 1 {
			t.Errorf("got %d records of %s, want 1", n, e.scope)
		}
	}
	return boxes
}

// Package managers install from open hosts, unchanged, and do nothing else there. What the sandbox has of its own stays in it. When the
// task ends, they install no more.
func TestPackageManagersWork(t *testing.T) {
	t.Parallel()
	w := newPackageWorld(t)
	boxes := w.install(t, w.toolbox)
	t.Run("refused", func(t *testing.T) {
		for _, e := range ecosystems {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				for _, tc := range e.refused {
					if got := boxes[e.name].in(t).run("exec 2>&1\n! " + tc.command); !strings.Contains(got, tc.says) {
						t.Errorf("%s: got %q, want %q in it", tc.command, got, tc.says)
					}
					w.wantLog(t, append(strings.Fields(tc.log), "refused=")...)
				}
				for _, closed := range e.closed {
					method, target, _ := strings.Cut(closed, " ")
					host, path, _ := strings.Cut(target, "/")
					answer := call(t, w.proxied(t), request(t, method, w.at.URL(host)+"/"+path, nil))
					if code, _ := answer.problem(); answer.status != http.StatusForbidden || code != "egress_no_rule" {
						t.Errorf("%s: got %d %s, want it refused", closed, answer.status, answer.text)
					}
				}
			})
		}
	})
	w.endTask(t)
	stop := w.stopwatch(t)
	for deadline := time.Now().Add(patience); call(t, w.proxied(t), request(t, "GET", w.at.URL(registries.NPM)+"/greeter", nil)).status == http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for a refusal after the end of the task", patience)
		}
	}
	stop("a refusal after the end of the task")
	w.at.Taken()
	t.Run("after the task", func(t *testing.T) {
		for _, e := range ecosystems {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				boxes[e.name].in(t).run("exec 2>&1\n! " + e.again)
			})
		}
	})
	if taken := w.at.Taken(); len(taken) > 0 {
		t.Errorf("after the end of the task, the registries got %q", taken)
	}
}
