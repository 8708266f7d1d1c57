package private_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/private"
)

// TestResolveRefusesFoldersThatOthersCanReplace checks every folder above a file, with and without links.
func TestResolveRefusesFoldersThatOthersCanReplace(t *testing.T) {
	folder, err := private.NewFolder(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(folder.Remove)
	dir := t.TempDir()
	for _, path := range []string{filepath.Dir(dir), dir} { // below a folder that others cannot enter, everything is safe
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	folderAt := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	folderAt("mine", 0o755)
	folderAt("mine/inner", 0o700)
	folderAt("open", 0o777)
	folderAt("open/inner", 0o700)
	folderAt("sticky", 0o777|os.ModeSticky)
	folderAt("sticky/inner", 0o700)
	for _, name := range []string{"mine/to", "open/to"} {
		if err := os.Symlink(filepath.Join(dir, "mine/inner"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "open/inner"), filepath.Join(dir, "mine/out")); err != nil {
		t.Fatal(err)
	}
	// A link that others can replace hides between two that they cannot.
	if err := errors.Join(os.Symlink(filepath.Join(dir, "open/to"), filepath.Join(dir, "mine/hop")), os.Symlink("../open/to", filepath.Join(dir, "mine/relative")),
		os.Symlink("to", filepath.Join(dir, "mine/again")), os.Symlink("loop", filepath.Join(dir, "mine/loop"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"mine/hop/token": "can replace a folder above", "mine/relative/token": "can replace a folder above", "mine/again/token": "", "mine/loop/token": "too many",
		"mine/inner/token": "", "sticky/inner/token": "", "mine/to/token": "",
		"open/inner/token": "can replace a folder above", "open/to/token": "can replace a folder above", "mine/out/token": "can replace a folder above",
		"open/token": "can write to", "sticky/token": "can write to", "none/token": "no such file", "mine/inner/": "not a file name",
	} {
		whole := dir + "/" + path
		got, err := folder.Resolve(whole)
		if want == "" && (err != nil || got != whole) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	if got, err := folder.Resolve("token"); err != nil || got != filepath.Join(folder.Path, "token") {
		t.Errorf("got %q, %v", got, err)
	}
}
