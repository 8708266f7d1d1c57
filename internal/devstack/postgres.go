package devstack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "postgres"
	database  = "brevet"
)

// Postgres is a private cluster. It listens on a Unix socket in a folder of mode 0700 and on a port of 127.0.0.1. Both
// require a generated password (SCRAM): under root, the server runs as a user that other programs may share, so neither
// the socket's owner nor the port proves who connects. The server syncs data to disk as in production.
type Postgres struct {
	dir      string
	progress func(string)

	bin      string
	account  *account
	password string
	port     int
	sockets  string

	mu     sync.Mutex
	proc   *process
	closed bool
}

// AdminURL is the superuser's connection string for the database "brevet", over the Unix socket. It holds a password.
func (p *Postgres) AdminURL() string {
	query := url.Values{"host": {p.sockets}, "port": {strconv.Itoa(p.port)}}
	return p.url("", query)
}

// TCPURL is like AdminURL, but over 127.0.0.1. It is for programs that cannot use a socket and for proxies that inject
// faults. The port stays the same in later starts unless another program has taken it.
func (p *Postgres) TCPURL() string {
	return p.url(p.Addr(), url.Values{"sslmode": {"disable"}})
}

// Addr is the server's host:port.
func (p *Postgres) Addr() string { return loopback(p.port) }

// Program returns the path of a program of the server's release, such as pg_dump.
func (p *Postgres) Program(name string) string { return filepath.Join(p.bin, name) }

func (p *Postgres) url(host string, query url.Values) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, p.password), Host: host,
		Path: "/" + database, RawQuery: query.Encode(),
	}
	return u.String()
}

// Start runs the server again after Stop, at the same address and with the same data. If the server is running, Start
// does nothing. After the stack is closed, it returns ErrClosed.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if p.proc.serves(ctx, p.answers) {
		return nil
	}
	if err := p.launch(ctx); err != nil {
		return fmt.Errorf("starting PostgreSQL: %w", err)
	}
	return nil
}

// Stop performs a fast shutdown: the server ends its sessions and keeps committed data.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc.stop(10*time.Second, syscall.SIGINT, syscall.SIGQUIT)
	return nil
}

func (p *Postgres) shut() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Stop()
	if p.sockets != "" && !strings.HasPrefix(p.sockets, p.dir) {
		err = errors.Join(err, os.RemoveAll(p.sockets))
	}
	return err
}

// open finds the binaries, creates the cluster if there is none, chooses a port and starts the server.
func (p *Postgres) open(ctx context.Context) error {
	if err := p.prepare(ctx); err != nil {
		return fmt.Errorf("preparing PostgreSQL: %w", err)
	}
	return onFreePort(filepath.Join(p.dir, "postgres.port"), func(port int) error {
		p.port = port
		return p.Start(ctx)
	})
}

// launch runs the server until it accepts connections to the database. After a server dies, its last processes may hold
// the shared memory for a moment, so launch retries that failure for ten seconds. It retries no other failure.
func (p *Postgres) launch(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		proc, err := p.spawn(ctx)
		if err != nil {
			return err
		}
		err = proc.await(ctx, p.answers)
		if err == nil {
			p.proc = proc
			return p.ensureDatabase(ctx)
		}
		if !strings.Contains(proc.said(), "pre-existing shared memory block") || time.Now().After(deadline) {
			return err
		}
	}
}

func (p *Postgres) spawn(ctx context.Context) (*process, error) {
	if err := p.clearLeftovers(ctx); err != nil {
		return nil, err
	}
	data, err := os.Open(p.data())
	if err != nil {
		return nil, err
	}
	defer func() { _ = data.Close() }()
	sockets, err := os.Open(p.sockets)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sockets.Close() }()
	args := []string{"-D", p.account.inherited(0, data)}
	for _, setting := range []string{
		"listen_addresses=" + loopbackAddress, "port=" + strconv.Itoa(p.port),
		"unix_socket_directories=" + quoteFolder(p.account.inherited(1, sockets)), "unix_socket_permissions=0700",
		"fsync=on", "synchronous_commit=on", "full_page_writes=on",
		"max_connections=1000", "timezone=UTC", "log_timezone=UTC", "logging_collector=off",
		// The files of the cluster must not make the server run anything.
		"shared_preload_libraries=", "session_preload_libraries=", "local_preload_libraries=", "archive_mode=off",
	} {
		args = append(args, "-c", setting)
	}
	return command{
		path: filepath.Join(p.bin, "postgres"), args: args, log: filepath.Join(p.dir, "postgres.log"),
		account: p.account, folders: []*os.File{data, sockets},
		// SIGQUIT is an immediate shutdown: the server also ends its child processes and frees its shared memory.
		onParentDeath: syscall.SIGQUIT,
	}.start()
}

// quoteFolder quotes a folder's name, because PostgreSQL splits an unquoted list of folders at commas.
func quoteFolder(path string) string { return `"` + strings.ReplaceAll(path, `"`, `""`) + `"` }

// clearLeftovers removes what a killed server leaves behind: the server itself if it still runs, its sockets, and its
// pid file. The number in the pid file may belong to another process by now.
func (p *Postgres) clearLeftovers(ctx context.Context) error {
	pidFile := filepath.Join(p.data(), "postmaster.pid")
	if text, err := os.ReadFile(pidFile); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			if err := endOrphan(ctx, pid, p.data(), syscall.SIGINT, syscall.SIGQUIT); err != nil {
				return err
			}
		}
	}
	stale, _ := filepath.Glob(filepath.Join(p.sockets, ".s.PGSQL.*"))
	for _, path := range append(stale, pidFile) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("clearing leftovers: %w", err)
		}
	}
	return nil
}

func (p *Postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(p.AdminURL())
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	cfg.Database = superuser // every cluster has this database
	return pgx.ConnectConfig(ctx, cfg)
}

// answers connects over the Unix socket, in a folder that other users cannot enter. The server creates that socket after
// it has bound its port, so a successful connection proves that it serves both.
func (p *Postgres) answers(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	var addresses string
	err = conn.QueryRow(ctx, `SHOW listen_addresses`).Scan(&addresses)
	if err == nil && addresses != loopbackAddress {
		err = fmt.Errorf("PostgreSQL listens on %q instead of %s", addresses, loopbackAddress)
	}
	return errors.Join(err, conn.Close(ctx))
}

func (p *Postgres) ensureDatabase(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return fmt.Errorf("creating the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	row := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, database)
	if err := row.Scan(&exists); err != nil {
		return fmt.Errorf("looking for the database: %w", err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return fmt.Errorf("creating the database: %w", err)
	}
	return nil
}
