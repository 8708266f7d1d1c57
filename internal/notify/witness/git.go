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

// Git is the folder of a git work tree. Each checkpoint becomes a commit of the file checkpoint.txt, and is pushed if there
// is a remote.
type Git string

const (
	// gitTimeout bounds one copy with all its git commands.
	gitTimeout = time.Minute
	// gitFile is the name of the committed file.
	gitFile = "checkpoint.txt"
)

// NewGit returns an error if git is not in PATH.
func NewGit(folder string) (Git, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return "", errors.New("git is not in PATH")
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
