package secret_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/brevet-dev/brevet/internal/secret"
)

// T12: who can write to the folder of a public file, such as the root of a container, must not choose another file that then becomes
// public.
func TestPublicFileFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	private, path := filepath.Join(dir, "private"), filepath.Join(dir, "public")
	if err := os.WriteFile(private, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Symlink(private, path+"-link")
				_ = os.Rename(path+"-link", path)
			}
		}
	}()
	const often = 1000
	for range often {
		if err := secret.WritePublicFile(path, "public"); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got the mode %v of another file, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(private); err != nil || string(text) != "secret" {
		t.Errorf("got %q in another file, %v", text, err)
	}
	if err := secret.WritePublicFile(path, "public"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("got %v, %v, want a file that every user may read", info, err)
	}
}
