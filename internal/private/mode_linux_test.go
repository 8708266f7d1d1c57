package private_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/private"
)

// T12: a sandbox that can write to the folder of its socket must not choose another file whose mode the gateway changes.
func TestModeOfAnotherFileIsNotChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, link := filepath.Join(dir, "secret"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(secret, nil, 0o600), os.Symlink(secret, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, secret} {
		if err := private.ChangeMode(path, 0o666); err == nil || !strings.Contains(err.Error(), "no longer a socket") {
			t.Errorf("%s: got %v, want it refused", path, err)
		}
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got the mode %v, %v, want it unchanged", info.Mode(), err)
	}
}

// T12: nobody else can write to the folder of a socket for others, or put another one in its place.
func TestSocketInAFolderOfOthersIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{"own": 0o755, "open": 0o777, "sticky": 0o777 | os.ModeSticky, "open/own": 0o755} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Dir(dir), dir} { // below a folder that others cannot enter, everything is safe
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"own": true, "open": false, "sticky": false, "open/own": false} {
		for _, access := range []private.Access{{}, {Mode: 0o666}} {
			path := filepath.Join(dir, name, "s")
			l, err := private.ListenFor(path, access)
			if (err == nil) != want {
				t.Errorf("%s: got %v, want allowed %t", name, err, want)
			}
			if err != nil {
				continue
			}
			mode := os.FileMode(0o600)
			if access.Mode != 0 {
				mode = access.Mode
			}
			if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode || info.Mode()&os.ModeSocket == 0 {
				t.Errorf("%s: got %v, %v, want a socket of mode %v", name, info.Mode(), err, mode)
			}
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				_ = conn.Close()
			}
			_ = l.Close()
		}
	}
}
