package devstack_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// plant makes a checkout whose Vault core would create a mark file when it runs, and returns the path of that file.
func plant(t *testing.T, checkout string) string {
	t.Helper()
	source, mark := filepath.Join(checkout, "internal", "devstack", "vaultd"), filepath.Join(t.TempDir(), "mark")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module github.com/brevet-dev/brevet/internal/devstack/vaultd\n\ngo 1.26\n",
		"go.sum":  "",
		"main.go": "package main\n\nimport \"os\"\n\nfunc main() { _ = os.WriteFile(`" + mark + "`, nil, 0o600) }\n",
	} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return mark
}

// A user who may write to a folder above brevet's working directory must not be able to run code as us. In this test the
// planted source belongs to us, which makes the attack easier. It must not be read even then.
func TestCodeAroundTheWorkingDirectoryIsNotRun(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	mark, victim := plant(t, shared), filepath.Join(shared, "victim")
	if err := os.Mkdir(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), program)
	child.Dir = victim
	child.Env = append(os.Environ(), childDir+"="+filepath.Join(victim, "state"))
	out, err := child.Output() // without input the child ends as soon as it is ready
	if err != nil || string(out) != "ready\n" {
		t.Errorf("start in %s: got %q, %v, want ready", victim, out, err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Error("the planted program ran")
	}
}

// change modifies a checkout as another user might. It returns the path that the refusal must name.
type change func(t *testing.T, checkout string) (culprit string)

func chmod(path string, mode os.FileMode) change {
	return func(t *testing.T, checkout string) string {
		t.Helper()
		path := filepath.Join(checkout, path)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// chown needs root.
func chown(path string, uid, gid int) change {
	return func(t *testing.T, checkout string) string {
		t.Helper()
		path := filepath.Join(checkout, path)
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func both(first, second change) change {
	return func(t *testing.T, checkout string) string {
		t.Helper()
		first(t, checkout)
		return second(t, checkout)
	}
}

func linked(t *testing.T, checkout string) string {
	t.Helper()
	path, elsewhere := filepath.Join(checkout, "internal", "devstack", "vaultd", "main.go"), filepath.Join(t.TempDir(), "main.go")
	if err := errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSourceThatOthersMayChangeIsRefused(t *testing.T) {
	t.Parallel()
	type row struct {
		name string
		do   change
	}
	rows := []row{
		{"checkout is world-writable", chmod("", 0o777)},
		{"folder between is world-writable", chmod("internal/devstack", 0o757)},
		{"source is world-writable", chmod("internal/devstack/vaultd", 0o777)},
		{"source is sticky", chmod("internal/devstack/vaultd", 0o777|os.ModeSticky)},
		{"file is world-writable", chmod("internal/devstack/vaultd/main.go", 0o646)},
		{"file is a link", linked},
	}
	if os.Geteuid() == 0 { // only root can give files away
		const stranger = 54321
		rows = append(rows,
			row{"checkout is another's", chown("", stranger, -1)},
			row{"folder between is another's", chown("internal/devstack", stranger, -1)},
			row{"source is another's", chown("internal/devstack/vaultd", stranger, -1)},
			row{"file is another's", chown("internal/devstack/vaultd/go.mod", stranger, -1)},
			row{"checkout is a group's", both(chown("", -1, stranger), chmod("", 0o775))},
			row{"file is a group's", both(chown("internal/devstack/vaultd/main.go", -1, stranger), chmod("internal/devstack/vaultd/main.go", 0o664))},
			row{"sticky folder is another's", both(chmod("internal/devstack", 0o777|os.ModeSticky), chown("internal/devstack", stranger, -1))},
		)
	}
	for _, test := range rows {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			checkout := t.TempDir()
			plant(t, checkout)
			if _, err := devstack.VaultSource([]string{checkout}); err != nil {
				t.Fatalf("before the change: got %v, want nil", err)
			}
			culprit := test.do(t, checkout)
			_, err := devstack.VaultSource([]string{checkout})
			if !errors.Is(err, devstack.ErrUntrusted) || !errors.Is(err, devstack.ErrNoVault) {
				t.Fatalf("got %v, want ErrUntrusted and ErrNoVault", err)
			}
			for _, want := range []string{culprit + " ", "BREVET_VAULT_BIN"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to name %q", err, want)
				}
			}
		})
	}
}

func TestSourceIsFound(t *testing.T) {
	t.Parallel()
	sticky := t.TempDir()
	if err := os.Chmod(sticky, 0o777|os.ModeSticky); err != nil { // like /tmp
		t.Fatal(err)
	}
	checkout, open, link := filepath.Join(sticky, "clone"), t.TempDir(), filepath.Join(t.TempDir(), "link")
	plant(t, checkout)
	plant(t, open)
	if err := errors.Join(os.Chmod(open, 0o777), os.Symlink(checkout, link)); err != nil {
		t.Fatal(err)
	}
	want, err := filepath.EvalSymlinks(filepath.Join(checkout, "internal", "devstack", "vaultd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		roots []string
	}{
		{"in a sticky folder", []string{checkout}},
		{"behind a link", []string{link}},
		{"after one that is not there", []string{t.TempDir(), checkout}},
		{"after one that is refused", []string{open, checkout}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, err := devstack.VaultSource(test.roots); got != want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
	if _, err := devstack.VaultSource([]string{t.TempDir()}); !errors.Is(err, devstack.ErrNoVault) {
		t.Errorf("no source anywhere: got %v, want ErrNoVault", err)
	}
}

// TestCacheThatOthersMayChangeIsRefused may not run in parallel with other tests: it changes the environment. Any user can
// compute the name of the program that runs from the cache.
func TestCacheThatOthersMayChangeIsRefused(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "Library", "Caches")) // macOS has the cache there, below HOME
	t.Setenv("HOME", home)
	cache := filepath.Join(home, "Library", "Caches", "brevet")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cache, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	checkout := t.TempDir()
	plant(t, checkout)
	source := filepath.Join(checkout, "internal", "devstack", "vaultd")
	if got, err := devstack.BuiltVault(t.Context(), source, "", func(string) {}); !errors.Is(err, devstack.ErrUntrusted) {
		t.Errorf("got %q, %v, want ErrUntrusted", got, err)
	}
	if made, err := os.ReadDir(cache); err != nil || len(made) != 0 {
		t.Errorf("in the cache: got %v, %v, want nothing", made, err)
	}
}

func TestStateFolderOfAnotherIsRefused(t *testing.T) {
	t.Parallel()
	dir, want := "/", fs.ErrPermission // an ordinary user cannot close it to others
	if os.Geteuid() == 0 {
		dir, want = t.TempDir(), devstack.ErrUntrusted
		chown("", 54321, -1)(t, dir)
	}
	_, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
	if !errors.Is(err, want) {
		t.Errorf("start in %s: got %v, want %v", dir, err, want)
	}
	if dir == "/" {
		return
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) != 0 {
		t.Errorf("in %s: got %v, %v, want nothing", dir, made, err)
	}
}

func TestPrivateGroup(t *testing.T) {
	t.Parallel()
	const users = "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\n"
	for _, test := range []struct {
		name, groups, users string
		want                bool
	}{
		{"alone", "alice:x:1000:\n", users, true},
		{"lists its owner", "users:x:100:bob\nalice:x:1000:alice\n", users, true},
		{"has another member", "alice:x:1000:bob\n", users, false},
		{"has another member too", "alice:x:1000:alice,bob\n", users, false},
		{"is another's first group", "alice:x:1000:\n", users + "eve:x:1002:1000::/:/bin/sh\n", false},
		{"bears another name", "staff:x:1000:\n", users, false},
		{"is listed twice", "alice:x:1000:\nalice:x:1000:bob\n", users, false},
		{"is not listed", "users:x:100:\n", users, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := devstack.PrivateGroup("alice", "1000", test.groups, test.users); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
