package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// vaultBinary answers with a program that understands `server -config=FILE`: the one that BREVET_VAULT_BIN names, a
// vault or bao on PATH, or our own small core, built from source once per version of its source.
func vaultBinary(ctx context.Context, progress func(string)) (string, error) {
	if bin := os.Getenv("BREVET_VAULT_BIN"); bin != "" {
		path, err := exec.LookPath(bin)
		if err != nil {
			return "", fmt.Errorf("BREVET_VAULT_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	for _, name := range []string{"vault", "bao"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	source, err := vaultSource(ctx)
	if err != nil {
		return "", err
	}
	key, err := sourceKey(source)
	if err != nil {
		return "", fmt.Errorf("reading the Vault core's source: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for a cache folder: %w", err)
	}
	build := vaultBuild{source: source, target: filepath.Join(cache, "brevet", "vaultd-"+key), progress: progress}
	return build.target, build.ensure(ctx)
}

// vaultSource finds the nested module in the checkout around the working directory, in the one that this program was
// compiled from, or where the go command knows it. A nested module is never part of a released one, so that there
// may be none.
func vaultSource(ctx context.Context) (string, error) {
	var roots []string
	if dir, err := os.Getwd(); err == nil {
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			roots = append(roots, dir)
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) { // relative after -trimpath
		roots = append(roots, filepath.Dir(filepath.Dir(file)))
	}
	for _, root := range roots {
		if source := filepath.Join(root, "devstack", "vaultd"); isVaultSource(source) {
			return source, nil
		}
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/brevet-dev/brevet")
	if root, err := list.Output(); err == nil {
		if source := filepath.Join(strings.TrimSpace(string(root)), "devstack", "vaultd"); isVaultSource(source) {
			return source, nil
		}
	}
	return "", fmt.Errorf("%w: install vault or bao, set BREVET_VAULT_BIN to one, or run inside a checkout of Brevet",
		ErrNoVault)
}

func isVaultSource(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module github.com/brevet-dev/brevet/devstack/vaultd\n")
}

// sourceKey names a build by everything that goes into it: the module's files and the compiler.
func sourceKey(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	files = append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum"))
	slices.Sort(files)
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, filepath.Base(file), len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

type vaultBuild struct {
	source, target string
	progress       func(string)
}

// ensure builds unless that has been done. Of several processes that find nothing, one builds and the others wait.
func (b vaultBuild) ensure(ctx context.Context) error {
	if b.exists() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(b.target), 0o700); err != nil {
		return fmt.Errorf("creating the cache folder: %w", err)
	}
	lock, err := os.OpenFile(b.target+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the build's lock: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if !tryLock(lock) {
		b.progress("waiting for another process that builds the Vault core")
		if err := poll(ctx, func() bool { return tryLock(lock) }); err != nil {
			return fmt.Errorf("waiting for another build of the Vault core: %w", err)
		}
	}
	if b.exists() {
		return nil
	}
	return b.build(ctx)
}

func tryLock(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func (b vaultBuild) exists() bool {
	info, err := os.Stat(b.target)
	return err == nil && info.Mode().IsRegular()
}

// build compiles beside the target and renames, so that a target is always whole. cgo stays off: no C compiler is
// needed.
func (b vaultBuild) build(ctx context.Context) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("%w: install vault or bao, or the go command to build one: %w", ErrNoVault, err)
	}
	b.progress("building a Vault core from source; this takes minutes, once")
	log := b.target + ".log"
	if err := os.RemoveAll(log); err != nil {
		return fmt.Errorf("clearing the last build's log: %w", err)
	}
	proc, err := command{
		path: "go", args: []string{
			"-C", b.source, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", b.target + ".new", ".",
		},
		env: []string{"CGO_ENABLED=0", "GOWORK=off"}, log: log, onParentDeath: syscall.SIGKILL,
	}.start()
	if err != nil {
		return err
	}
	if err := b.follow(ctx, proc); err != nil {
		return err
	}
	if proc.err != nil {
		return fmt.Errorf("building the Vault core: %w; its last lines, from %s:\n%s", proc.err, log, proc.said())
	}
	return errors.Join(os.Rename(b.target+".new", b.target), os.Remove(log))
}

// follow reports how far the build is until it ends. The go command names each package as it compiles it; those that
// it still has from an earlier build it does not name.
func (b vaultBuild) follow(ctx context.Context, proc *process) error {
	begin := time.Now()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-proc.done:
			return nil
		case <-ctx.Done():
			proc.stop(2*time.Second, syscall.SIGINT)
			return fmt.Errorf("building the Vault core: %w", ctx.Err())
		case <-tick.C:
			b.progress(fmt.Sprintf("building a Vault core: %s, %d packages compiled so far, of about 1,700 on a new machine",
				time.Since(begin).Round(time.Second), countLines(proc.log)))
		}
	}
}

func countLines(path string) int {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	text, _ := io.ReadAll(io.LimitReader(file, 1<<20))
	return strings.Count(string(text), "\n")
}
