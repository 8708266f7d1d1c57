package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// TestDevEnvRefusesAForeignFolder checks `eval "$(brevet dev env)"` in a folder that somebody else has filled, such
// as a repository: it could name another server, to which a login would then go.
func TestDevEnvRefusesAForeignFolder(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketFolder(t)
	socket := filepath.Join(dir, "agent.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for _, name := range []string{"X; touch pwned #", "$(touch pwned)", "LD_PRELOAD", "PATH", "", "BREVET_SERVER"} {
		text, err := json.Marshal(map[string]local.Variables{"research": {{"SPIFFE_ENDPOINT_SOCKET", "unix://" + socket}, {name, "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "env.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range [][]string{{"dev", "env"}, {"dev", "login", "alice"}, {"dev"}} {
			if got := brevet(t, nil, append(command, "--state", dir)...); got.out != "" {
				t.Errorf("%q, %s: got %q, want nothing to evaluate", name, command, got.out)
			} else {
				got.want(t, 1, "did not make this folder: "+dir, "Use another folder")
			}
		}
	}
}

// TestDevWithoutAHome is for containers and services whose environment is empty.
func TestDevWithoutAHome(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"dev"}, {"dev", "env"}, {"dev", "login", "alice"}} {
		brevet(t, []string{"HOME=", "XDG_STATE_HOME="}, command...).want(t, 1, "there is no folder for the state of a stack: set HOME, or XDG_STATE_HOME")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	brevet(t, []string{"XDG_STATE_HOME=" + file}, "dev").want(t, 1, "creating the state folder (set --state to use another)")
	brevet(t, []string{"XDG_STATE_HOME=" + file}, "dev", "--state", t.TempDir()).want(t, 1, "set XDG_STATE_HOME to a folder that you can write to")
}
