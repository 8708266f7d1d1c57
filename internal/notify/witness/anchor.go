package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"golang.org/x/mod/sumdb/note"
)

// Anchor is a place that stores copies of checkpoints, in the operator's configuration.
type Anchor struct {
	// Name identifies the anchor in the log: up to 63 lower-case letters, digits, - and _.
	Name  string
	Place Place
	// Every is the shortest time between two copies, at least one second.
	Every time.Duration
}

// Place stores copies of checkpoints.
type Place interface {
	// Put stores the copy durably before it returns nil. A caller may put the same copy again.
	Put(ctx context.Context, signed string) error
}

// carrier returns a function that puts the latest checkpoint there, unless it already did.
func (a Anchor) carrier(log Log) func(context.Context) (bool, error) {
	var before int64
	return func(ctx context.Context) (bool, error) {
		size, signed, _, err := log.Growth(ctx, 0)
		if errors.Is(err, audit.ErrNotYet) || err == nil && size <= before {
			return false, nil
		}
		if err == nil {
			err = a.Place.Put(ctx, signed)
		}
		if err != nil {
			return false, err
		}
		before = size
		return true, nil
	}
}

// URL is a server that stores the checkpoints posted to it.
type URL struct{ client *safehttp.Client }

// NewURL checks a target.
func NewURL(t safehttp.Target) (URL, error) {
	client, err := safehttp.New(t)
	return URL{client}, err
}

// Put implements [Place].
func (u URL) Put(ctx context.Context, signed string) error {
	answer, err := u.client.Post(ctx, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, []byte(signed))
	if err == nil && !answer.OK() {
		err = fmt.Errorf("the receiver did not return a 2xx status: %d", answer.Status)
	}
	return err
}

// File is the path of a file. Put appends checkpoints to it, with an empty line between them.
type File string

// ErrNoCheckpoint means that the file is not empty but has no checkpoint of the log.
var ErrNoCheckpoint = errors.New("the file contains no checkpoint that a key of the log has signed")

// Put implements [Place].
func (f File) Put(_ context.Context, signed string) error {
	file, err := os.OpenFile(string(f), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a checkpoint is for everybody to read
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		if size > 0 {
			signed = "\n" + signed
		}
		_, err = file.WriteString(signed)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil || size > 0 {
		return err
	}
	folder, err := os.Open(filepath.Dir(string(f))) // the name of a new file must survive a crash
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Last returns the largest checkpoint near the end of the file, or the zero value if the file is missing or empty. It skips
// a checkpoint that a crash has truncated. It returns ErrNoCheckpoint if the file has text but no valid checkpoint. keys
// are the public keys of the log, in the format of c2sp.org/signed-note, under every name that the log has had.
func (f File) Last(keys ...string) (last audit.Checkpoint, err error) {
	named := map[string][]note.Verifier{}
	for _, key := range keys {
		v, err := note.NewVerifier(key)
		if err != nil {
			return last, fmt.Errorf("reading the log's keys: %w", err)
		}
		named[v.Name()] = append(named[v.Name()], v)
	}
	file, err := os.Open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return last, nil
	}
	if err != nil {
		return last, err
	}
	defer func() { _ = file.Close() }()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return last, err
	}
	const most = 64 << 10 // bytes at the end: enough for many checkpoints
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, size-most), most))
	if err != nil || len(text) == 0 {
		return last, err
	}
	for origin, known := range named {
		first := "\n" + origin + "\n"
		for _, rest := range strings.Split("\n"+string(text), first)[1:] {
			signed := first[1:] + strings.TrimRight(rest, "\n") + "\n"
			if c, err := audit.OpenCheckpoint([]byte(signed), origin, note.VerifierList(known...)); err == nil && c.N > last.N {
				last = c
			}
		}
	}
	if last.N == 0 {
		return last, ErrNoCheckpoint
	}
	return last, nil
}

// Git is the folder of a git work tree. Each checkpoint becomes a commit of the file checkpoint.txt, and is pushed if there
// is a remote.
type Git string

const gitFile = "checkpoint.txt"

// NewGit returns an error if git is not in PATH.
func NewGit(folder string) (Git, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return "", errors.New("git is not in PATH")
	}
	return Git(folder), nil
}

// Put implements [Place].
func (g Git) Put(ctx context.Context, signed string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := os.WriteFile(filepath.Join(string(g), gitFile), []byte(signed), 0o644) //nolint:gosec // a checkpoint is for everybody to read
	if err == nil {
		_, err = g.run(ctx, "add", "--", gitFile)
	}
	if err != nil {
		return err
	}
	if _, err := g.run(ctx, "diff", "--cached", "--quiet", "--", gitFile); err != nil { // the file differs from HEAD
		if _, err := g.run(ctx, "commit", "--quiet", "--message", "Keep a checkpoint", "--", gitFile); err != nil {
			return err
		}
	}
	return g.push(ctx)
}

// push pushes to the first remote. If another replica has pushed from its own work tree since, push fails and moves to that
// replica's commit, so that the next attempt continues from there.
func (g Git) push(ctx context.Context) error {
	remotes, err := g.run(ctx, "remote")
	remote, _, _ := strings.Cut(remotes, "\n")
	if err != nil || remote == "" {
		return err
	}
	branch, err := g.run(ctx, "symbolic-ref", "--short", "HEAD")
	if err != nil {
		return err
	}
	if _, err = g.run(ctx, "push", "--quiet", "--", remote, "HEAD"); err == nil {
		return nil
	}
	_, failed := g.run(ctx, "fetch", "--quiet", "--", remote, strings.TrimSpace(branch))
	if failed == nil {
		_, failed = g.run(ctx, "reset", "--quiet", "--soft", "FETCH_HEAD")
	}
	return errors.Join(err, failed)
}

// run runs git without prompts. Do not log the output of git: it quotes URLs.
func (g Git) run(ctx context.Context, command string, args ...string) (string, error) {
	args = append([]string{"-C", string(g), "-c", "user.name=brevet", "-c", "user.email=brevet@localhost", command}, args...)
	cmd := exec.CommandContext(ctx, "git", args...) //nolint:gosec // the folder is the operator's, the rest is from here
	cmd.Env = append(cmd.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "SSH_ASKPASS=false", "SSH_ASKPASS_REQUIRE=force")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", command, err)
	}
	return string(out), nil
}
