package registries

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
)

var (
	// A capital letter of a module's path or version is an exclamation mark and the letter in lower case.
	proxyPaths = regexp.MustCompile(`^/[a-z0-9!._/-]+/(@latest|@v/list|@v/v[a-z0-9!.+-]+\.(info|mod|zip))$|^` + sumsBelow + `/(supported|` + sumCalls + `)$`)
	sumPaths   = regexp.MustCompile(`^/(` + sumCalls + `)$`)
)

const (
	sumCalls  = `latest|lookup/[a-z0-9!._/-]+@v[a-z0-9!.+-]+|tile/[0-9x/]+(\.p/[0-9]+)?`
	sumsBelow = "/sumdb/" + SumDB
)

// goModule is a version of a module. Its files have no go.mod if it is older than modules.
type goModule struct {
	path, version string
	files         map[string]string
}

// GoModule needs another module, and that one a module with capital letters in its path that is older than modules.
const GoModule = "example.net/acme/greeter"

var goModules = []goModule{
	{GoModule, "v1.1.0", map[string]string{
		"go.mod":     "module example.net/acme/greeter\n\ngo 1.21\n\nrequire (\n\texample.net/acme/words v1.0.2\n\texample.net/Acme/Old v2.0.0+incompatible // indirect\n)\n",
		"greeter.go": "package greeter\n\nimport \"example.net/acme/words\"\n\nconst Greeting = words.Hello\n",
	}},
	{"example.net/acme/words", "v1.0.2", map[string]string{
		"go.mod":   "module example.net/acme/words\n\ngo 1.21\n\nrequire example.net/Acme/Old v2.0.0+incompatible\n",
		"words.go": "package words\n\nimport old \"example.net/Acme/Old\"\n\nconst Hello = old.Hello\n",
	}},
	{"example.net/Acme/Old", "v2.0.0+incompatible", map[string]string{"old.go": "package old\n\nconst Hello = \"hello\"\n"}},
}

// goMod returns the go.mod that a proxy serves.
func (m goModule) goMod() string {
	if text, ok := m.files["go.mod"]; ok {
		return text
	}
	return "module " + m.path + "\n"
}

// below returns the files with their names in the module's zip.
func (m goModule) below() map[string]string {
	out := map[string]string{}
	for name, text := range m.files {
		out[m.path+"@"+m.version+"/"+name] = text
	}
	return out
}

// proxy answers as a module proxy that serves the checksum database too, as proxy.golang.org does.
func proxy(t testing.TB, sums http.Handler) http.HandlerFunc {
	t.Helper()
	type file struct {
		kind string
		data []byte
	}
	const text = "text/plain; charset=UTF-8"
	files := map[string]file{}
	for _, m := range goModules {
		path, err := module.EscapePath(m.path)
		if err != nil {
			t.Fatal(err)
		}
		version, err := module.EscapeVersion(m.version)
		if err != nil {
			t.Fatal(err)
		}
		info := fmt.Appendf(nil, `{"Version":"%s","Time":"2026-01-01T00:00:00Z"}`, m.version)
		files["/"+path+"/@latest"] = file{"application/json", info}
		files["/"+path+"/@v/list"] = file{text, []byte(m.version + "\n")}
		at := "/" + path + "/@v/" + version
		files[at+".info"] = file{"application/json", info}
		files[at+".mod"] = file{text, []byte(m.goMod())}
		files[at+".zip"] = file{"application/zip", zipped(t, m.below())}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if f, ok := files[sent(r)]; ok {
			send(w, r, f.kind, f.data)
		} else if r.URL.Path == sumsBelow+"/supported" {
			w.WriteHeader(http.StatusOK)
		} else if strings.HasPrefix(r.URL.Path, sumsBelow) {
			http.StripPrefix(sumsBelow, sums).ServeHTTP(w, r)
		} else {
			http.Error(w, "not found", http.StatusNotFound)
		}
	}
}

// goSum returns the lines of go.sum for a module.
func goSum(path, version string) ([]byte, error) {
	for _, m := range goModules {
		if m.path != path || m.version != version {
			continue
		}
		sum := func(files map[string]string) (string, error) {
			return dirhash.Hash1(slices.Collect(maps.Keys(files)), func(name string) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader(files[name])), nil
			})
		}
		whole, err := sum(m.below())
		if err != nil {
			return nil, err
		}
		mod, err := sum(map[string]string{"go.mod": m.goMod()})
		if err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, "%s %s %s\n%s %s/go.mod %s\n", path, version, whole, path, version, mod), nil
	}
	return nil, fs.ErrNotExist
}
