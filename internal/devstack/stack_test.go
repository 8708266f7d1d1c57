package devstack_test

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/jackc/pgx/v5"
)

func query(t *testing.T, connection, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), connection)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(found, ",")
}

func TestCloseLeavesNothingAndStartResumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	query(t, first.Postgres.AdminURL(), `CREATE TABLE kept (word text)`)
	query(t, first.Postgres.AdminURL(), `INSERT INTO kept VALUES ('still here')`)
	write(t, first.Vault, "sys/mounts/transit", map[string]any{"type": "transit"})
	write(t, first.Vault, "transit/keys/kept", map[string]any{"type": "ecdsa-p256"})
	made := signature(t, first.Vault, "kept", "message")
	pids := servers(t, dir)

	stop(t, first)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d runs after Close", pid)
		}
	}
	if err := first.Close(); err != nil {
		t.Errorf("second Close: got %v, want nil", err)
	}
	for name, again := range map[string]func(context.Context) error{
		"Postgres": first.Postgres.Start, "Vault": first.Vault.Start,
	} {
		if err := again(t.Context()); !errors.Is(err, devstack.ErrClosed) {
			t.Errorf("%s.Start after Close: got %v, want ErrClosed", name, err)
		}
	}

	second := start(t, dir)
	if got := query(t, second.Postgres.AdminURL(), `SELECT word FROM kept`); got != "still here" {
		t.Errorf("row after the restart: got %q, want %q", got, "still here")
	}
	answer := write(t, second.Vault, "transit/verify/kept", map[string]any{
		"input": base64Of("message"), "signature": made, "marshaling_algorithm": "jws",
	})
	if answer["valid"] != true {
		t.Errorf("signature of the key from before the restart: got %v, want valid", answer)
	}
	if first.Vault.Addr() != second.Vault.Addr() || first.Postgres.TCPURL() != second.Postgres.TCPURL() {
		t.Error("addresses changed although nobody took the ports")
	}
}

func TestServersThatWereKilledStartAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stack := start(t, dir)
	query(t, stack.Postgres.AdminURL(), `CREATE TABLE kept AS SELECT 'committed' AS word`)
	write(t, stack.Vault, "sys/policies/acl/kept", map[string]any{"policy": `path "a" {}`})
	for _, pid := range servers(t, dir) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Second, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
	}
	// The pid file now names a process that is not one of our servers: this one.
	pidFile := filepath.Join(dir, "postgres", "postmaster.pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stack.Postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stack.Vault.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, stack.Postgres.AdminURL(), `SELECT word FROM kept`); got != "committed" {
		t.Errorf("row after kill -9: got %q, want committed", got)
	}
	if got := read(t, stack.Vault, "sys/policies/acl/kept"); got["policy"] != `path "a" {}` {
		t.Errorf("Vault after kill -9: got %v, want the policy", got)
	}
}

func TestOneStackPerFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, dir)
	_, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
	if !errors.Is(err, devstack.ErrInUse) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second stack in one folder: got %v, want ErrInUse that names process %d", err, os.Getpid())
	}
}

func TestSecretsAreReadableByTheOwnerOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
	checked := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// PostgreSQL, Vault and OpenBao set the modes inside these folders. The folders themselves are closed.
		servers := []string{filepath.Join(dir, "postgres"), filepath.Join(dir, "vault", "data"), filepath.Join(dir, "vault", "raft")}
		if slices.Contains(servers, filepath.Dir(path)) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		checked++
		if info.Mode().Perm()&0o077 != 0 && entry.Type() != fs.ModeSocket {
			t.Errorf("%s: got mode %v, want nothing for others", path, info.Mode())
		}
		return nil
	})
	if err != nil || checked < 10 {
		t.Errorf("checked %d paths: %v", checked, err)
	}
}

func TestStackStartsInAFolderWithALongQuotedName(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's a, \"state\" folder $HOME", strings.Repeat("long", 30))
	stack := start(t, dir)
	if got := query(t, stack.Postgres.AdminURL(), `SELECT current_database()::text`); got != "brevet" {
		t.Errorf("database: got %q, want brevet", got)
	}
	admin, err := url.Parse(stack.Postgres.AdminURL())
	if err != nil {
		t.Fatal(err)
	}
	sockets := admin.Query().Get("host")
	info, err := os.Stat(sockets)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("socket folder %s: got %v, %v, want mode 0700", sockets, info, err)
	}
	stop(t, stack)
	if _, err := os.Stat(sockets); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket folder %s after Close: got %v, want none", sockets, err)
	}
}

func TestPostgresIsDurableAndRequiresItsPassword(t *testing.T) {
	t.Parallel()
	pg := shared(t).Postgres
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": "127.0.0.1",
		"password_encryption": "scram-sha-256",
	} {
		if got := query(t, pg.AdminURL(), `SELECT current_setting('`+setting+`')`); got != want {
			t.Errorf("%s: got %q, want %q", setting, got, want)
		}
	}
	for name, connection := range map[string]string{"socket": pg.AdminURL(), "TCP": pg.TCPURL()} {
		u, err := url.Parse(connection)
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range []*url.Userinfo{url.User("postgres"), url.UserPassword("postgres", "wrong")} {
			u.User = user
			conn, err := pgx.Connect(t.Context(), u.String())
			if err == nil {
				_ = conn.Close(t.Context())
				t.Errorf("%s as %q: connected, want a refusal", name, user)
			}
		}
	}
}

func TestStopAndStartAgain(t *testing.T) {
	t.Parallel()
	stack := start(t, t.TempDir())
	query(t, stack.Postgres.TCPURL(), `CREATE TABLE kept AS SELECT 'kept' AS word`)
	if err := errors.Join(stack.Postgres.Stop(), stack.Postgres.Stop(), stack.Vault.Stop()); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(t.Context(), stack.Postgres.TCPURL()); err == nil {
		_ = conn.Close(t.Context())
		t.Error("PostgreSQL answers after Stop")
	}
	if _, err := client(t, stack.Vault).Sys().SealStatusWithContext(t.Context()); err == nil {
		t.Error("Vault answers after Stop")
	}
	for range 2 { // the second time there is nothing to do
		if err := stack.Postgres.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := stack.Vault.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := query(t, stack.Postgres.TCPURL(), `SELECT word FROM kept`); got != "kept" {
		t.Errorf("row after Stop and Start: got %q, want kept", got)
	}

	if err := stack.Vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	status, err := client(t, stack.Vault).Sys().SealStatusWithContext(t.Context())
	if err != nil || !status.Sealed {
		t.Errorf("after Seal: got %+v, %v, want sealed", status, err)
	}
	for range 2 {
		if err := stack.Vault.Unseal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read(t, stack.Vault, "sys/mounts")
}

// TestFailedStartIsExplained may not run in parallel with other tests: it changes the environment.
func TestFailedStartIsExplained(t *testing.T) {
	script := filepath.Join(t.TempDir(), "vault")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho the dog ate my storage\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, bin, want string }{
		{"no such program", "/nonexistent/vault", "BREVET_VAULT_BIN"},
		{"ends at once", script, "the dog ate my storage"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("BREVET_VAULT_BIN", test.bin)
			dir := t.TempDir()
			_, err := devstack.Start(t.Context(), devstack.Config{Dir: dir})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Start: got %v, want an error about %q", err, test.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "postgres", "postmaster.pid")); err == nil {
				t.Error("PostgreSQL runs after a failed start")
			}
			t.Setenv("BREVET_VAULT_BIN", "")
			start(t, dir) // the folder allows another try
		})
	}
	t.Run("prepared", func(t *testing.T) {
		t.Setenv("BREVET_VAULT_BIN", "/nonexistent/vault")
		if err := devstack.Prepare(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "BREVET_VAULT_BIN") {
			t.Errorf("Prepare: got %v, want an error about BREVET_VAULT_BIN", err)
		}
		t.Setenv("BREVET_VAULT_BIN", "")
		if err := devstack.Prepare(t.Context(), nil); err != nil {
			t.Errorf("Prepare: got %v, want nil", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := devstack.Start(ctx, devstack.Config{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
			t.Errorf("Start: got %v, want context.Canceled", err)
		}
	})
}
