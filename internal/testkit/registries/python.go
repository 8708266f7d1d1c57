package registries

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	simplePaths = regexp.MustCompile(`^/simple/[a-z0-9]+(-[a-z0-9]+)*/$`)
	filePaths   = regexp.MustCompile(`^/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[A-Za-z0-9._-]+$`)
)

// pythonFile is a file of PyPI.
type pythonFile struct {
	name     string
	data     []byte
	metadata string // of a wheel
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// path is where PyPI has a file: below its digest, which is not the one that its index shows.
func (f pythonFile) path() string {
	sum := hexSum([]byte(f.name))
	return "/packages/" + sum[:2] + "/" + sum[2:4] + "/" + sum[4:] + "/" + f.name
}

// pythonIndex has the files of each project.
type pythonIndex map[string]pythonFile

// PythonGreeting is what acme_greeter.greet() returns.
const PythonGreeting = "hello, world"

// backend builds a wheel of acme_words. The project needs it as its build system, so pip gets it while it installs.
const backend = `import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "acme_words-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        wheel.write("acme_words.py")
        info = "acme_words-1.2.0.dist-info/"
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: acme-words\nVersion: 1.2.0\n")
        wheel.writestr(info + "RECORD", "acme_words.py,,\n" + info + "WHEEL,,\n" + info + "METADATA,,\n" + info + "RECORD,,\n")
    return name
`

// pythonFiles returns a wheel, a source distribution that the wheel needs, and a wheel with its build system.
func pythonFiles(t testing.TB) pythonIndex {
	t.Helper()
	return pythonIndex{
		"acme-greeter": wheel(t, "acme_greeter", "2.0.1", "import acme_words\n\ndef greet():\n    return acme_words.HELLO + \", world\"\n", "Requires-Dist: acme-words>=1.1"),
		"acme-words": {"acme_words-1.2.0.tar.gz", tarred(t, map[string]string{
			"acme_words-1.2.0/acme_words.py":  "HELLO = \"hello\"\n",
			"acme_words-1.2.0/PKG-INFO":       "Metadata-Version: 2.1\nName: acme-words\nVersion: 1.2.0\n",
			"acme_words-1.2.0/pyproject.toml": "[build-system]\nrequires = [\"acme-build\"]\nbuild-backend = \"acme_build\"\n",
		}), ""},
		"acme-build": wheel(t, "acme_build", "0.9", backend),
	}
}

// wheel returns the wheel of one module, with more lines of metadata.
func wheel(t testing.TB, name, version, code string, more ...string) pythonFile {
	t.Helper()
	metadata := strings.Join(append([]string{
		"Metadata-Version: 2.1", "Name: " + strings.ReplaceAll(name, "_", "-"), "Version: " + version,
	}, more...), "\n") + "\n"
	info := name + "-" + version + ".dist-info/"
	return pythonFile{name + "-" + version + "-py3-none-any.whl", zipped(t, map[string]string{
		name + ".py": code, info + "METADATA": metadata, info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD": name + ".py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
	}), metadata}
}

// simple answers as the index of PyPI: as JSON (PEP 691) to a client that accepts it, and as HTML (PEP 503) to others.
func (i pythonIndex) simple(files string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		project := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/simple/"), "/")
		f, ok := i[project]
		if !ok {
			http.Error(w, "404 Not Found", http.StatusNotFound)
			return
		}
		const kind = "application/vnd.pypi.simple.v1+json"
		if strings.Contains(r.Header.Get("Accept"), kind) {
			metadata := "false"
			if f.metadata != "" {
				metadata = `{"sha256":"` + hexSum([]byte(f.metadata)) + `"}`
			}
			send(w, r, kind, fmt.Appendf(nil,
				`{"meta":{"api-version":"1.1"},"name":"%s","versions":[],"files":[{"filename":"%s","url":"%s%s","hashes":{"sha256":"%s"},"core-metadata":%s,"size":%d,"yanked":false}]}`,
				project, f.name, files, f.path(), hexSum(f.data), metadata, len(f.data)))
			return
		}
		send(w, r, "text/html", fmt.Appendf(nil, `<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"></head><body><a href="%s%s#sha256=%s">%s</a></body></html>`,
			files, f.path(), hexSum(f.data), f.name))
	}
}

// files answers as the host of PyPI's files.
func (i pythonIndex) files(w http.ResponseWriter, r *http.Request) {
	for _, f := range i {
		switch r.URL.Path {
		case f.path():
			send(w, r, "application/octet-stream", f.data)
			return
		case f.path() + ".metadata":
			if f.metadata != "" {
				send(w, r, "application/octet-stream", []byte(f.metadata))
				return
			}
		}
	}
	http.NotFound(w, r)
}

// Requirements returns a requirements.txt with the digests of acme-greeter and of what it needs.
func Requirements(t testing.TB) string {
	t.Helper()
	files := pythonFiles(t)
	return fmt.Sprintf("acme-greeter==2.0.1 --hash=sha256:%s\nacme-words==1.2.0 --hash=sha256:%s\n", hexSum(files["acme-greeter"].data), hexSum(files["acme-words"].data))
}

// zipped returns a zip archive with files.
func zipped(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := archive.Create(name)
		if err == nil {
			_, err = f.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
