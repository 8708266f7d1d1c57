package witness_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
)

func lastIn(t *testing.T, p *place, file witness.File) int64 {
	t.Helper()
	c, err := file.Last(p.keys...)
	if err != nil {
		t.Fatalf("Last: %v", err)
	}
	return c.N
}

func TestCheckpointsAreAppendedToAFile(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := witness.File(filepath.Join(t.TempDir(), "checkpoints"))
	if got := lastIn(t, p, file); got != 0 {
		t.Errorf("got a checkpoint of %d in no file, want none", got)
	}
	p.grow(t, 3)
	first, _ := p.checkpoint(t, 0)
	rare := witness.File(filepath.Join(t.TempDir(), "rare"))
	c := p.carry(t, witness.Config{Anchors: []witness.Anchor{
		{Name: "often", Place: file}, {Name: "rare", Place: rare, Every: time.Hour},
	}})
	eventually(t, "first copy", func() bool { return lastIn(t, p, file) == 3 && lastIn(t, p, rare) == 3 })
	p.grow(t, 2)
	second, _ := p.checkpoint(t, 0)
	eventually(t, "second copy", func() bool { return lastIn(t, p, file) == 5 })
	c.stop()
	text, err := os.ReadFile(string(file))
	if err != nil || string(text) != first+"\n"+second {
		t.Errorf("got %q, %v, want both checkpoints with an empty line between", text, err)
	}
	if info, err := os.Stat(string(file)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("got %v, %v, want it to be for everybody to read", info.Mode(), err)
	}
	if got := lastIn(t, p, rare); got != 3 {
		t.Errorf("got a second copy, of %d, within the hour", got)
	}
}

// The last complete checkpoint that the log has signed counts.
func TestDamagedAnchorFileKeepsItsLastCheckpoint(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.grow(t, 3)
	three, _ := p.checkpoint(t, 0)
	p.grow(t, 2)
	five, _ := p.checkpoint(t, 0)
	padding := strings.Repeat(three+"\n", 1000) // more than Last reads
	for name, tc := range map[string]struct {
		text string
		want int64
	}{
		"whole":           {three + "\n" + five, 5},
		"cut off":         {three + "\n" + five[:len(five)-9], 3},
		"cut off, mended": {three + "\n" + five[:30] + "\n" + five, 5},
		"long":            {padding + five, 5},
		"out of order":    {five + "\n" + three, 5},
		"another size":    {three + "\n" + strings.Replace(five, "\n5\n", "\n6\n", 1), 3},
		"of another log":  {strings.ReplaceAll(five, origin, "elsewhere.test/ledger"), 0},
		"cut off at once": {five[:40], 0},
	} {
		file := witness.File(filepath.Join(t.TempDir(), "checkpoints"))
		if err := os.WriteFile(string(file), []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := file.Last(p.keys...)
		if got.N != tc.want || (tc.want == 0) != errors.Is(err, witness.ErrNoCheckpoint) {
			t.Errorf("%s: got the checkpoint %d, %v, want %d", name, got.N, err, tc.want)
		}
	}
}

func TestCheckpointsArePosted(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	got := make(chan string, 10)
	calls := 0
	wall := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" || r.URL.Path != "/wall" {
			t.Errorf("got %v for %s, %v", r.Header, r.URL, err)
		}
		got <- string(body)
	}))
	t.Cleanup(wall.Close)
	target := p.witness(t, "one.example/w").Target()
	target.URL = secret.New(wall.URL + "/wall")
	target.Roots.AddCert(wall.Certificate())
	place, err := witness.NewURL(target)
	if err != nil {
		t.Fatal(err)
	}
	p.grow(t, 3)
	c := p.carry(t, witness.Config{Anchors: []witness.Anchor{{Name: "wall", Place: place}}})
	select {
	case posted := <-got:
		if want, _ := p.checkpoint(t, 0); posted != want {
			t.Error("got something else than the checkpoint")
		}
	case <-time.After(patience):
		t.Fatalf("waited %s for a checkpoint to be posted", patience)
	}
	eventually(t, "end of the failures", func() bool { return strings.Contains(c.log.String(), "checkpoints are accepted again") })
	if _, err := witness.NewURL(safehttp.Target{URL: secret.New("http://wall.example")}); err == nil {
		t.Error("got no error for http")
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestCheckpointsAreCommitted(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	remote, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	git(t, remote, "init", "--bare", "--initial-branch", "main")
	for _, clone := range []string{one, two} {
		git(t, clone, "init", "--initial-branch", "main")
		git(t, clone, "remote", "add", "origin", remote)
	}
	p.grow(t, 3)
	c := p.carry(t, witness.Config{Anchors: []witness.Anchor{{Name: "git", Place: witness.Git(one)}}})
	pushed := func(want string) func() bool {
		return func() bool {
			out, err := exec.CommandContext(t.Context(), "git", "-C", remote, "show", "main:checkpoint.txt").Output()
			return err == nil && string(out) == want
		}
	}
	three, _ := p.checkpoint(t, 0)
	eventually(t, "first commit at the remote", pushed(three))
	p.grow(t, 2)
	five, _ := p.checkpoint(t, 0)
	eventually(t, "second commit at the remote", pushed(five))
	c.stop()

	// The same checkpoint again makes no commit. Another replica with its own work tree continues from the remote.
	if err := witness.Git(one).Put(t.Context(), five); err != nil {
		t.Errorf("the same again: %v", err)
	}
	p.grow(t, 1)
	six, _ := p.checkpoint(t, 0)
	if err := witness.Git(two).Put(t.Context(), six); err == nil {
		t.Error("got no error from a push that was refused")
	}
	if err := witness.Git(two).Put(t.Context(), six); err != nil || !pushed(six)() {
		t.Errorf("the second attempt: %v", err)
	}
	if n := strings.TrimSpace(git(t, remote, "rev-list", "--count", "main")); n != "3" {
		t.Errorf("got %s commits, want 3", n)
	}
}

func TestGitNeverPrompts(t *testing.T) {
	t.Parallel()
	alone := t.TempDir()
	git(t, alone, "init", "--initial-branch", "main")
	if err := witness.Git(alone).Put(t.Context(), "x\n"); err != nil {
		t.Errorf("without a remote: %v", err)
	}
	if got := git(t, alone, "show", "HEAD:checkpoint.txt"); got != "x\n" {
		t.Errorf("got %q, want what was put there", got)
	}
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(locked.Close)
	git(t, alone, "remote", "add", "origin", strings.Replace(locked.URL, "http://", "http://CANARY@", 1))
	if err := witness.Git(alone).Put(t.Context(), "y\n"); err == nil || strings.Contains(err.Error(), "CANARY") {
		t.Errorf("got %v where a password is wanted, want an error that quotes no URL", err)
	}
	if err := witness.Git(t.TempDir()).Put(t.Context(), "z\n"); err == nil {
		t.Error("got no error where there is no work tree")
	}
}

func TestGitHasToBeThere(t *testing.T) {
	if got, err := witness.NewGit("x"); err != nil || got != "x" {
		t.Errorf("got %q, %v, want the folder", got, err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := witness.NewGit("x"); err == nil {
		t.Error("got no error without git")
	}
}
