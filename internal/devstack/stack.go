// Package devstack runs the servers that Brevet needs for development, the demo and tests: a private PostgreSQL cluster,
// a real Vault core, and an issuer of SPIFFE identities. All state lives in one folder, and a second start resumes it.
// No process keeps running afterwards, even if the process that started the stack is killed.
//
// It must never be used in production. It must never listen on anything but loopback and private Unix sockets. The
// packages that decide, mint or record must never import it.
package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Config configures a stack.
type Config struct {
	// Dir is the state folder. Start creates it with mode 0700. Only one stack may use it at a time.
	Dir string
	// VaultAudit makes Vault write every request and response to [Vault.AuditFile], with secrets as HMACs.
	VaultAudit bool
	// CloudEngines adds the engines aws and kubernetes to a Vault core that is built from source. The first build then takes half a
	// minute longer.
	CloudEngines bool
	// WithoutVault starts PostgreSQL alone. Stack.Vault is then nil.
	WithoutVault bool
	// Progress receives human-readable progress lines, from several goroutines. If nil, progress is not reported.
	Progress func(line string)
}

// Stack is a running PostgreSQL and a running, unsealed Vault, unless it was started without Vault.
type Stack struct {
	Postgres *Postgres
	Vault    *Vault

	lock  *folderLock
	close sync.Once
	err   error
}

// Start starts the servers in parallel. If it returns an error, no server runs. The context bounds the start only;
// Close stops the servers. The first start on a machine without `vault` or `bao` builds a Vault core, which takes
// minutes; later starts take about a second.
//
// Start returns [ErrInUse], [ErrNoPostgres], [ErrNoVault] or [ErrUntrusted]. If a server does not start, the error
// quotes the last lines of its log.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	dir, err := openFolder(cfg.Dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	progress := cfg.Progress
	if progress == nil {
		progress = func(string) {}
	}
	stack := &Stack{
		Postgres: &Postgres{dir: dir, progress: progress},
		lock:     lock,
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return stack.Postgres.open(groupCtx) })
	if !cfg.WithoutVault {
		stack.Vault = &Vault{dir: dir, audited: cfg.VaultAudit, progress: progress}
		if cfg.CloudEngines {
			stack.Vault.tags = cloudTag
		}
		group.Go(func() error { return stack.Vault.open(groupCtx) })
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	return stack, nil
}

// Prepare checks that everything that Start needs is installed, and builds the Vault core if necessary, so that a later
// Start does not take minutes. It starts no server.
func Prepare(ctx context.Context, progress func(line string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	if _, err := postgresBin(); err != nil {
		return err
	}
	_, err := vaultBinary(ctx, "", progress)
	return err
}

// Close stops Vault, then PostgreSQL, and releases the state folder. Further calls return the result of the first.
func (s *Stack) Close() error {
	s.close.Do(func() {
		if s.Vault != nil {
			s.err = s.Vault.shut()
		}
		s.err = errors.Join(s.err, s.Postgres.shut(), s.lock.release())
	})
	return s.err
}

// openFolder creates the state folder and returns its absolute path without symbolic links. Child processes and the
// search for their leftovers compare paths.
func openFolder(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("devstack: Config.Dir is empty")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the state folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the state folder: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", fmt.Errorf("resolving the state folder: %w", err)
	}
	// Root can use any user's folder, and the owner of that folder may have planted keys in it.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("looking at the state folder: %w", err)
	}
	if err := ours(dir, info); err != nil {
		return "", fmt.Errorf("looking at the state folder: %w", err)
	}
	if err := noLinks(dir); err != nil {
		return "", fmt.Errorf("looking into the state folder: %w", err)
	}
	// The folder holds keys and passwords. A folder that existed before may be accessible to other users.
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder needs its x bit
		return "", fmt.Errorf("closing the state folder to others: %w", err)
	}
	return dir, nil
}
