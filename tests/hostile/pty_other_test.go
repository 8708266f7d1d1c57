//go:build !linux

package hostile_test

import (
	"os/exec"
	"testing"
)

func onTerminal(t *testing.T, _ *exec.Cmd) (code int, screen string) {
	t.Helper()
	t.Fatal("terminals are only tried on Linux")
	return 0, ""
}
