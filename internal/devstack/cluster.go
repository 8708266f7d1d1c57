package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is the longest path that fits into a Unix socket address: 108 bytes on Linux, 104 on macOS, with a final NUL.
const maxSocketPath = 103

func (p *Postgres) data() string { return filepath.Join(p.dir, "postgres") }

// prepare sets up everything that outlives a run of the server: binaries, account, password, cluster, sockets.
func (p *Postgres) prepare(ctx context.Context) error {
	var err error
	if p.bin, err = postgresBin(); err != nil {
		return err
	}
	if p.account, err = unprivileged(p.data()); err != nil {
		return err
	}
	if err = p.account.reaches(p.data()); err != nil {
		return err
	}
	if _, err = os.Stat(p.data()); errors.Is(err, os.ErrNotExist) {
		p.progress("creating a PostgreSQL cluster")
		err = p.createCluster(ctx)
	}
	if err != nil {
		return err
	}
	password, err := os.ReadFile(p.passwordFile())
	if err != nil {
		return fmt.Errorf("reading the cluster's password (remove %s to start over): %w", p.data(), err)
	}
	p.password = strings.TrimSpace(string(password))
	p.sockets, err = p.socketFolder()
	return err
}

func (p *Postgres) passwordFile() string { return filepath.Join(p.dir, "postgres.password") }

// createCluster builds the cluster in a separate folder and renames it, so an interrupted cluster is discarded.
func (p *Postgres) createCluster(ctx context.Context) error {
	fresh := p.data() + ".new"
	if err := errors.Join(os.RemoveAll(fresh), p.account.folder(fresh)); err != nil {
		return fmt.Errorf("creating the data folder: %w", err)
	}
	if err := writePrivate(p.passwordFile(), []byte(rand.Text()+"\n")); err != nil {
		return fmt.Errorf("writing the password: %w", err)
	}
	if err := p.initdb(ctx, fresh); err != nil {
		return fmt.Errorf("running initdb: %w", err)
	}
	return os.Rename(fresh, p.data())
}

func (p *Postgres) initdb(ctx context.Context, dir string) error {
	// initdb runs under the server's account, which must be able to read the password during this call.
	if err := p.account.own(p.passwordFile()); err != nil {
		return err
	}
	defer func() { _ = os.Chown(p.passwordFile(), os.Geteuid(), os.Getegid()) }()
	data, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	password, err := os.Open(p.passwordFile())
	if err != nil {
		return err
	}
	defer func() { _ = password.Close() }()
	return command{
		path: filepath.Join(p.bin, "initdb"),
		args: []string{
			"-D", p.account.inherited(0, data), "--pwfile=" + p.account.inherited(1, password),
			"-U", superuser, "--auth=scram-sha-256", "-E", "UTF8", "--locale=C", "--no-instructions",
		},
		log: filepath.Join(p.dir, "postgres.log"), account: p.account,
		folders: []*os.File{data, password}, onParentDeath: syscall.SIGKILL,
	}.run(ctx)
}

// socketFolder returns a folder inside the state folder. If a socket's path would be too long there, it returns a short
// private folder instead and stores its name, so that the next start finds or removes it.
func (p *Postgres) socketFolder() (string, error) {
	inside := filepath.Join(p.dir, "run")
	if len(inside)+len("/.s.PGSQL.65535.lock") <= maxSocketPath {
		return inside, p.account.folder(inside)
	}
	note := filepath.Join(p.dir, "postgres.sockets")
	if text, err := os.ReadFile(note); err == nil && p.account.owns(string(text)) {
		return string(text), nil
	}
	short, err := os.MkdirTemp("/tmp", "brevet-")
	if err != nil {
		return "", fmt.Errorf("creating a folder for sockets: %w", err)
	}
	if err := errors.Join(p.account.folder(short), writePrivate(note, []byte(short))); err != nil {
		return "", fmt.Errorf("creating a folder for sockets: %w", err)
	}
	return short, nil
}

// owns reports whether the path is a private folder of the account. Another user may have put something else at a path
// that was stored earlier.
func (a *account) owns(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return false
	}
	owner := uint32(os.Geteuid())
	if a != nil {
		owner = a.uid
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == owner
}

// postgresBin finds the folder that holds both postgres and initdb: on PATH, or else the newest version that Debian
// installed.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && isServer(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(installed, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range installed {
		if isServer(dir) {
			return dir, nil
		}
	}
	if runtime.GOOS == "darwin" {
		return "", fmt.Errorf("%w: brew install postgresql", ErrNoPostgres)
	}
	return "", fmt.Errorf("%w: make deps, or apt install postgresql, or put postgres and initdb on PATH", ErrNoPostgres)
}

func isServer(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

func version(bin string) int {
	number, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return number
}
