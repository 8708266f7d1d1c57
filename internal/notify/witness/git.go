package witness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Git is the folder of a git work tree. Each checkpoint is a commit of the file checkpoint.txt in it, which is pushed when
// there is a remote.
type Git string

const (
	// gitTimeout bounds one copy, with all that git does for it.
	gitTimeout = time.Minute
	// gitFile is what is committed.
	gitFile = "checkpoint.txt"
)

// NewGit looks whether there is a git to run.
func NewGit(folder string) (Git, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return "", errors.New("there is no git in PATH")
	}
	return Git(folder), nil
}

// Put implements [Place].
func (g Git) Put(ctx context.Context, signed string) error {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	err := os.WriteFile(filepath.Join(string(g), gitFile), []byte(signed), 0o644) //nolint:gosec // a checkpoint is for everybody to read
	if err == nil {
		_, err = g.run(ctx, "add", "--", gitFile)
	}
	if err != nil {
		return err
	}
	if _, err := g.run(ctx, "diff", "--cached", "--quiet", "--", gitFile); err != nil { // there is a difference
		if _, err := g.run(ctx, "commit", "--quiet", "--message", "Keep a checkpoint", "--", gitFile); err != nil {
			return err
		}
	}
	return g.push(ctx)
}

// push pushes to the first remote. When another replica has pushed there since, from a work tree of its own, the next
// attempt goes on from that.
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

// run runs git without anybody to answer questions. What git says is not for the log: it quotes URLs.
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
