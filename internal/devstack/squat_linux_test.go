package devstack_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPortSquatterAtStartGetsNoSecret may not run in parallel with other tests: it changes the environment. Other users
// can see the port of the last start. Here, one takes it after it was found free and before Vault binds it.
func TestPortSquatterAtStartGetsNoSecret(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	write(t, first.Vault, "sys/policies/acl/kept", map[string]any{"policy": `path "a" {}`})
	vault, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", servers(t, dir)[1]))
	if err != nil {
		t.Fatal(err)
	}
	taken := hostOf(t, first.Vault)
	stop(t, first)

	ready, goOn, script := pipe(t), pipe(t), filepath.Join(t.TempDir(), "vault")
	text := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = version ] || { echo >%s; read -r _ <%s; }\nexec %s \"$@\"\n", ready.Name(), goOn.Name(), vault)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BREVET_VAULT_BIN", script)
	thieves, failed := make(chan *squatter, 1), make(chan error, 1)
	go func() {
		starts := bufio.NewReader(ready)
		failed <- func() error {
			if _, err := starts.ReadString('\n'); err != nil {
				return err
			}
			thief, err := squat(taken)
			if err != nil {
				return err
			}
			thieves <- thief
			<-thief.met
			if _, err := goOn.WriteString("\n"); err != nil {
				return err
			}
			if _, err := starts.ReadString('\n'); err != nil {
				return fmt.Errorf("waiting for a second try: %w", err)
			}
			_, err = goOn.WriteString("\n")
			return err
		}()
	}()
	second := start(t, dir)
	(<-thieves).end(t)
	if err := errors.Join(ready.Close(), <-failed); err != nil { // closing ready ends the wait if there is no second attempt
		t.Error(err)
	}
	if got := hostOf(t, second.Vault); got == taken {
		t.Errorf("address: got %s, want another than the taken one", got)
	}
	if got := read(t, second.Vault, "sys/policies/acl/kept"); got["policy"] != `path "a" {}` {
		t.Errorf("at the new port: got %v, want the policy", got)
	}
	_, port, err := net.SplitHostPort(hostOf(t, second.Vault))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "vault.port")); err != nil || strings.TrimSpace(string(got)) != port {
		t.Errorf("vault.port: got %q, %v, want %s", got, err, port)
	}
}

// pipe creates a named pipe. Reads of it end when the returned file is closed.
func pipe(t *testing.T) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}
