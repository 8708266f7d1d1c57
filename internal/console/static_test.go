package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Vendored files are identical to the published ones, and their licences are included.
func TestVendoredFilesMatchUpstream(t *testing.T) {
	const folder = "static/vendor"
	sums, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() == "SHA256SUMS" || entry.Name() == "LICENSES.md" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); got != want[entry.Name()] {
			t.Errorf("%s: got the digest %s, want %q", entry.Name(), got, want[entry.Name()])
		}
		delete(want, entry.Name())
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}
