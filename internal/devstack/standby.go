package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Standby starts a second server that replicates this one, from a base backup. Its state is in the folder dir. The caller stops it
// with Stop. The standby has the same logins and databases, and it is read-only until Promote. Standby does not make the replication
// synchronous: that is a setting of the primary.
func (p *Postgres) Standby(ctx context.Context, dir string) (*Postgres, error) {
	dir, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	s := &Postgres{dir: dir, progress: p.progress, bin: p.bin, account: p.account, password: p.password}
	if err := p.copyTo(ctx, s.data()); err != nil {
		return nil, fmt.Errorf("copying the primary: %w", err)
	}
	if s.sockets, err = s.socketFolder(); err != nil {
		return nil, err
	}
	err = onFreePort(filepath.Join(dir, "postgres.port"), func(port int) error {
		s.port = port
		return s.follow(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("starting the standby: %w", err)
	}
	return s, nil
}

// copyTo makes a base backup that is configured as a standby of this server.
func (p *Postgres) copyTo(ctx context.Context, dir string) error {
	if err := p.account.folder(dir); err != nil {
		return err
	}
	data, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	return command{
		path: p.Program("pg_basebackup"),
		args: []string{
			"--pgdata=" + p.account.inherited(0, data), "--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf",
			"--host=127.0.0.1", "--port=" + strconv.Itoa(p.port), "--username=" + superuser, "--no-password",
		},
		// --write-recovery-conf stores the password for the standby's own connection.
		env: []string{"PGPASSWORD=" + p.password},
		log: filepath.Join(filepath.Dir(dir), "postgres.log"), account: p.account, folders: []*os.File{data}, onParentDeath: syscall.SIGKILL,
	}.run(ctx)
}

// follow runs the server as a standby, until it answers queries.
func (p *Postgres) follow(ctx context.Context) error {
	proc, err := p.spawn(ctx)
	if err != nil {
		return err
	}
	if err := proc.await(ctx, p.answers); err != nil {
		return err
	}
	p.proc = proc
	return nil
}

// Promote makes a standby a primary, and waits until it takes writes.
func (p *Postgres) Promote(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return fmt.Errorf("promoting: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var promoted bool
	if err := conn.QueryRow(ctx, `SELECT pg_promote()`).Scan(&promoted); err != nil {
		return fmt.Errorf("promoting: %w", err)
	}
	if !promoted {
		return errors.New("promoting: the standby is still one")
	}
	return nil
}

// Crash ends the server at once, as a power failure would: it finishes no transaction and writes no checkpoint.
func (p *Postgres) Crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc.stop(10*time.Second, syscall.SIGQUIT)
}
