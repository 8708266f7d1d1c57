package egress_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/registries"
)

const draft = `  - name: packages.npm.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://example.com}
    egress: [{hosts: [registry.npmjs.org], methods: [GET, HEAD], paths: ['/*', '/*/-/*', '/*/*/-/*'], send: {as: header, name: x-draft}}]
  - name: packages.python.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://example.com}
    egress:
      - {hosts: [pypi.org], methods: [GET, HEAD], paths: ['/simple/**'], send: {as: header, name: x-draft}}
      - {hosts: [files.pythonhosted.org], methods: [GET, HEAD], paths: ['/packages/**'], send: {as: header, name: x-draft}}
  - name: packages.go.install
    title: Install
    authority: read
    resource: packages:npm
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://example.com}
    egress: [{hosts: [proxy.golang.org, sum.golang.org], methods: [GET, HEAD], paths: ['/**'], send: {as: header, name: x-draft}}]
`

// ecosystems are package managers, each with a scope of the example catalogue.
var ecosystems = []struct{ name, scope, script, want string }{
	{"npm", "packages.npm.install", `
		export npm_config_registry="$NPM/"
		echo '{"dependencies": {"greeter": "^1.0.0"}}' >package.json
		npm install --package-lock-only
		npm cache clean --force
		npm ci
		node -p 'require("greeter")("world")'`, registries.NPMGreeting},
	{"pip", "packages.python.install", `
		export PIP_INDEX_URL="$PYPI/simple/"
		echo "$REQUIREMENTS" >requirements.txt
		python3 -m pip install --require-hashes -r requirements.txt --target lib
		PYTHONPATH=lib python3 -c 'import acme_greeter; print(acme_greeter.greet())'`, registries.PythonGreeting},
	{"go", "packages.go.install", `
		go mod init project
		printf 'package project\n\nimport _ "` + registries.GoModule + `"\n' >project.go
		GOPATH=$PWD/first go get ` + registries.GoModule + `@latest
		go mod download
		go mod verify
		cat "$GOPATH/pkg/mod/` + registries.GoModule + `@v1.1.0/greeter.go"`, "const Greeting = words.Hello"},
}

func newPackagesWorld(t *testing.T) (*world, *registries.Registries) {
	t.Helper()
	r := registries.Start(t)
	text := draft
	for _, host := range []string{registries.NPM, registries.PyPI, registries.Files, registries.Proxy, registries.SumDB} {
		text = strings.ReplaceAll(text, host, "'"+r.At(host)+"'")
	}
	w := newWorld(t, text)
	w.trusted = r.Authority
	w.open(t)
	return w, r
}

func TestPackageManagersWork(t *testing.T) {
	w, r := newPackagesWorld(t)
	for _, e := range ecosystems {
		t.Run(e.name, func(t *testing.T) {
			b := w.toolbox(t)
			b.packages(r)
			got := b.run("exec 2>&1\n" + e.script)
			t.Logf("%s\n%s", got, strings.Join(r.Taken(), "\n"))
			if !strings.Contains(got, e.want) {
				t.Errorf("got %q, want %q in it", got, e.want)
			}
			if n := w.issued(t, e.scope); n != 1 {
				t.Errorf("got %d records, want one", n)
			}
		})
	}
}

func (b *toolbox) packages(r *registries.Registries) {
	b.t.Helper()
	for name, text := range map[string]string{
		".npmrc": "//" + r.At(registries.NPM) + "/:_authToken=of-the-sandbox\n",
		".netrc": "default login sandbox password of-the-sandbox\n",
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	b.environ = append(b.environ,
		"npm_config_audit=true", "npm_config_fund=true", "npm_config_update_notifier=true", "PIP_DISABLE_PIP_VERSION_CHECK=0", "GOFLAGS=-modcacherw", "GONOSUMDB=",
		"NPM="+r.URL(registries.NPM), "PYPI="+r.URL(registries.PyPI), "REQUIREMENTS="+registries.Requirements(b.t),
		"GOPROXY="+r.URL(registries.Proxy)+",direct", "GOSUMDB="+r.SumKey+" "+r.URL(registries.SumDB),
	)
}
