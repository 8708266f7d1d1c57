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
// as a repository.
func TestDevEnvRefusesAForeignFolder(t *testing.T) {
	t.Parallel()
	dir := testkit.SocketFolder(t)
	socket := filepath.Join(dir, "agent.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for _, name := range []string{"X; touch pwned #", "$(touch pwned)", "LD_PRELOAD", "PATH", ""} {
		text, err := json.Marshal(map[string]local.Variables{"research": {{"SPIFFE_ENDPOINT_SOCKET", "unix://" + socket}, {name, "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "env.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := brevet(t, nil, "dev", "env", "--state", dir); got.out != "" {
			t.Errorf("%q: got %q, want nothing to evaluate", name, got.out)
		} else {
			got.want(t, 1, "was not written by brevet dev")
		}
	}
}
