package registries

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// npmPaths are the metadata of a package, where the slash of a scoped name is escaped, and its tarballs.
var npmPaths = regexp.MustCompile(`^/(@[a-z0-9-]+%2f)?[a-z0-9._-]+$|^/(@[a-z0-9-]+/)?[a-z0-9._-]+/-/[a-z0-9._-]+\.tgz$`)

// npmPackage is a version of a package of npm.
type npmPackage struct {
	name, version string
	needs         map[string]string
	index         string // its index.js
}

// greeter needs padding, and both need a package whose name has a scope.
var npmPackages = []npmPackage{
	{"greeter", "1.0.0", map[string]string{"padding": "~2.1.0", "@acme/words": "^1.0.0"}, `module.exports = name => require("padding")(require("@acme/words").hello + ", " + name)`},
	{"padding", "2.1.3", map[string]string{"@acme/words": "^1.0.0"}, `module.exports = text => require("@acme/words").edge + text + require("@acme/words").edge`},
	{"padding", "3.0.0", nil, `throw new Error("a version that nothing asks for")`},
	{"@acme/words", "1.2.0", nil, `module.exports = {hello: "hello", edge: "*"}`},
}

// NPMGreeting is what the package greeter returns for the name world.
const NPMGreeting = "*hello, world*"

const npmProject = `{"name": "project", "version": "1.0.0", "private": true, "dependencies": {"greeter": "^1.0.0"}}` + "\n"

// tarball returns the path of the package's tarball below the registry.
func (p npmPackage) tarball() string {
	return "/" + p.name + "/-/" + p.name[strings.LastIndex(p.name, "/")+1:] + "-" + p.version + ".tgz"
}

// manifest is the package.json.
func (p npmPackage) manifest() map[string]any {
	m := map[string]any{"name": p.name, "version": p.version, "main": "index.js"}
	if len(p.needs) > 0 {
		m["dependencies"] = p.needs
	}
	return m
}

func (p npmPackage) pack(t testing.TB) []byte {
	t.Helper()
	return tarred(t, map[string]string{"package/package.json": jsonOf(t, p.manifest()), "package/index.js": p.index})
}

func integrity(data []byte) string {
	sum := sha512.Sum512(data)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// npm answers as the registry of npm. In metadata, the addresses of tarballs are those of the host that was asked.
func npm(t testing.TB) http.HandlerFunc {
	t.Helper()
	files, versions := map[string][]byte{}, map[string]map[string]any{}
	for _, p := range npmPackages {
		data := p.pack(t)
		sum := sha1.Sum(data)
		manifest := p.manifest()
		manifest["dist"] = map[string]any{"tarball": "https://HOST" + p.tarball(), "integrity": integrity(data), "shasum": hex.EncodeToString(sum[:])}
		files[p.tarball()] = data
		at := "/" + strings.ReplaceAll(p.name, "/", "%2f")
		if versions[at] == nil {
			versions[at] = map[string]any{}
		}
		versions[at][p.version] = manifest
	}
	documents := map[string]string{}
	for at, all := range versions {
		latest := slices.Max(slices.Collect(maps.Keys(all)))
		name := strings.ReplaceAll(at[1:], "%2f", "/")
		documents[at] = jsonOf(t, map[string]any{"name": name, "modified": "2026-01-01T00:00:00.000Z", "dist-tags": map[string]string{"latest": latest}, "versions": all})
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if data, ok := files[sent(r)]; ok {
			send(w, r, "application/octet-stream", data)
		} else if text, ok := documents[sent(r)]; ok {
			kind := "application/json"
			if short := "application/vnd.npm.install-v1+json"; strings.Contains(r.Header.Get("Accept"), short) {
				kind = short
			}
			send(w, r, kind, []byte(strings.ReplaceAll(text, "https://HOST/", "https://"+r.Host+"/")))
		} else {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"Not found"}`))
		}
	}
}

// WriteProject writes a project that needs greeter to dir, with its package-lock.json as npm writes it.
func WriteProject(t testing.TB, dir string) {
	t.Helper()
	packages := map[string]any{"": map[string]any{"name": "project", "version": "1.0.0", "dependencies": map[string]string{"greeter": "^1.0.0"}}}
	for _, p := range npmPackages {
		if p.version == "3.0.0" {
			continue
		}
		entry := map[string]any{"version": p.version, "resolved": "https://" + NPM + p.tarball(), "integrity": integrity(p.pack(t))}
		if len(p.needs) > 0 {
			entry["dependencies"] = p.needs
		}
		packages["node_modules/"+p.name] = entry
	}
	lock := jsonOf(t, map[string]any{"name": "project", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": packages})
	for name, text := range map[string]string{"package.json": npmProject, "package-lock.json": lock} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { // another user may install it
			t.Fatal(err)
		}
	}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tarred returns a tarball with files.
func tarred(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, ModTime: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Size: int64(len(files[name]))})
		if err == nil {
			_, err = archive.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
