package devstack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cloudTag is the build tag of our own core that adds the engines of [Config.CloudEngines].
const cloudTag = "clouds"

// vaultBinary returns the path of a program that understands `server -config=FILE`: the one that BREVET_VAULT_BIN names,
// a vault or bao on PATH, or our own small core, built from source once per version of its source. tags are the build tags of the
// latter.
func vaultBinary(ctx context.Context, tags string, progress func(string)) (string, error) {
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
	source, err := vaultSource(sourceRoots())
	if err != nil {
		return "", err
	}
	return builtVault(ctx, source, tags, progress)
}

// isOpenBao reports whether the program is OpenBao. Vault and OpenBao take different configurations.
func isOpenBao(ctx context.Context, bin string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "version")
	cmd.Dir, cmd.Env = "/", childEnv(os.Environ())
	said, err := cmd.CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("asking %s for its version: %w: %s", bin, err, bytes.TrimSpace(said))
	}
	return bytes.HasPrefix(said, []byte("OpenBao")), nil
}

// builtVault returns the program that was built from the source, now or earlier. It runs a cached program without
// inspecting it, so a cache that others can write to is as dangerous as a source that they can write to.
func builtVault(ctx context.Context, source, tags string, progress func(string)) (string, error) {
	key, err := sourceKey(source)
	if err != nil {
		return "", fmt.Errorf("reading the Vault core's source: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for a cache folder: %w", err)
	}
	cache = filepath.Join(cache, "brevet")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("creating the cache folder: %w", err)
	}
	if cache, err = trusted(cache); err != nil {
		return "", fmt.Errorf("looking at the cache folder: %w; close it, or set BREVET_VAULT_BIN", err)
	}
	name := "vaultd-" + key
	if tags != "" {
		name += "-" + tags
	}
	build := vaultBuild{source: source, tags: tags, target: filepath.Join(cache, name), progress: progress}
	if err := build.ensure(ctx); err != nil {
		return "", err
	}
	target, err := trusted(build.target)
	if err != nil {
		return "", fmt.Errorf("looking at the Vault core in the cache: %w; remove it", err)
	}
	return target, nil
}

// sourceRoots returns the checkouts that this program may come from. The working directory is not one of them: other users
// may have written what lies in it or above it, and building and running that would give them our rights.
func sourceRoots() []string {
	var roots []string
	if program, err := os.Executable(); err == nil {
		if program, err = filepath.EvalSymlinks(program); err == nil {
			roots = append(roots, filepath.Dir(filepath.Dir(program))) // bin/brevet
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) { // relative after -trimpath
		return append(roots, filepath.Dir(filepath.Dir(filepath.Dir(file))))
	}
	if root, ok := testedRoot(); ok {
		roots = append(roots, root)
	}
	return roots
}

// testedRoot finds the checkout for tests under -trimpath. The go command runs a test in its package's folder, so code
// from that folder is running already.
func testedRoot() (string, bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	tested, isTest := strings.CutSuffix(info.Path, ".test")
	folder, isOurs := strings.CutPrefix(tested, "github.com/brevet-dev/brevet")
	dir, err := os.Getwd()
	if !isTest || !isOurs || err != nil {
		return "", false
	}
	return strings.CutSuffix(dir, filepath.FromSlash(folder))
}

// vaultSource finds the nested module in one of the checkouts. It may find none, because a released module never contains
// a nested one. The roots may be stale, for example after a clone in /tmp was removed, and other users may have filled
// them since.
func vaultSource(roots []string) (string, error) {
	var refused []error
	for _, root := range roots {
		source := filepath.Join(root, "internal", "devstack", "vaultd")
		if _, err := os.Lstat(source); err != nil {
			continue
		}
		source, err := trustedTree(source)
		if err != nil {
			refused = append(refused, err)
		} else if isVaultSource(source) {
			return source, nil
		}
	}
	const advice = "install vault or bao, or set BREVET_VAULT_BIN to one"
	if len(refused) > 0 {
		return "", fmt.Errorf("%w: the source of the Vault core is here, but is not built: %w; mend that, or %s",
			ErrNoVault, errors.Join(refused...), advice)
	}
	return "", fmt.Errorf("%w: %s, or run bin/brevet of a checkout, which builds one (make build)", ErrNoVault, advice)
}

func isVaultSource(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module github.com/brevet-dev/brevet/internal/devstack/vaultd\n")
}

// sourceKey hashes everything that goes into a build: the files of the module and its stubs, and the compiler.
func sourceKey(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	module := os.DirFS(source)
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".go", ".mod", ".sum"}, path.Ext(name)) || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(module, name)
		fmt.Fprintln(sum, name, len(text))
		sum.Write(text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

type vaultBuild struct {
	source, tags, target string
	progress             func(string)
}

// ensure builds the program unless it exists. If several processes find none, one builds and the others wait.
func (b vaultBuild) ensure(ctx context.Context) error {
	if b.exists() {
		return nil
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

// build compiles to a temporary name and renames, so the target is always complete. cgo is off, so no C compiler is needed.
func (b vaultBuild) build(ctx context.Context) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("%w: install vault or bao, or the go command to build one: %w", ErrNoVault, err)
	}
	b.progress("building a Vault core from source; this takes a minute or two, once")
	log := b.target + ".log"
	if err := os.RemoveAll(log); err != nil {
		return fmt.Errorf("clearing the last build's log: %w", err)
	}
	proc, err := command{
		path: "go", args: []string{
			"-C", b.source, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-tags", b.tags, "-o", b.target + ".new", ".",
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
	if err := os.Chmod(b.target+".new", 0o700); err != nil { //nolint:gosec // a program needs its x bit
		return fmt.Errorf("closing the Vault core to others: %w", err)
	}
	return errors.Join(os.Rename(b.target+".new", b.target), os.Remove(log))
}

// follow reports the progress of the build until it ends. The go command names each package that it compiles, but not
// packages that it takes from its build cache.
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
			b.progress(fmt.Sprintf("building a Vault core: %s, %d packages compiled so far, of about 1070 on a new machine",
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
