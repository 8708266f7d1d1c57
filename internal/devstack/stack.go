// Package devstack runs what Brevet needs around it for development, the demo and tests: a private PostgreSQL
// cluster, a real Vault core, and an issuer of SPIFFE identities. Everything lives in one state folder, a second start
// resumes it, and nothing is left running afterwards, not even when the process that started it is killed.
//
// It must never be used in production, never listen on anything but loopback and private Unix sockets, and never be
// imported by the packages that decide, mint or record.
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

// Config says where a stack lives.
type Config struct {
	// Dir is the state folder. It is created with mode 0700; one stack at a time may use it.
	Dir string
	// VaultAudit has Vault write every request and response to [Vault.AuditFile], with secrets as HMACs.
	VaultAudit bool
	// Progress receives lines for a person to read, from several goroutines; nil is silent.
	Progress func(line string)
}

// Stack is a running PostgreSQL and a running, unsealed Vault.
type Stack struct {
	Postgres *Postgres
	Vault    *Vault

	lock  *folderLock
	close sync.Once
	err   error
}

// Start brings up both servers at the same time, and either both run afterwards or neither. The context bounds the
// start only; what runs is ended by Close. The first start on a machine without `vault` or `bao` builds a Vault core,
// which takes minutes; later starts take about a second.
//
// Errors: [ErrInUse], [ErrNoPostgres], [ErrNoVault], [ErrUntrusted]; or what the server that did not start wrote last.
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
		Vault:    &Vault{dir: dir, audited: cfg.VaultAudit, progress: progress},
		lock:     lock,
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return stack.Postgres.open(groupCtx) })
	group.Go(func() error { return stack.Vault.open(groupCtx) })
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	return stack, nil
}

// Prepare sees that everything is here that Start needs, and builds the Vault core if it has to, so that a later Start
// takes no minutes. It starts nothing.
func Prepare(ctx context.Context, progress func(line string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	if _, err := postgresBin(); err != nil {
		return err
	}
	_, err := vaultBinary(ctx, progress)
	return err
}

// Close stops Vault, then PostgreSQL, and gives the folder free. Further calls answer as the first did.
func (s *Stack) Close() error {
	s.close.Do(func() {
		s.err = errors.Join(s.Vault.shut(), s.Postgres.shut(), s.lock.release())
	})
	return s.err
}

// openFolder creates the state folder and answers with its one true path, since child processes and the search for
// their leftovers compare paths.
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
	// Root could use anybody's folder, with keys in it that its owner has prepared.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("looking at the state folder: %w", err)
	}
	if err := ours(dir, info); err != nil {
		return "", fmt.Errorf("looking at the state folder: %w", err)
	}
	// Keys and passwords lie inside: a folder that existed before may have been open to others.
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder needs its x bit
		return "", fmt.Errorf("closing the state folder to others: %w", err)
	}
	return dir, nil
}
