//go:build !linux

package confine

import (
	"net"
	"os"
	"os/exec"
	"runtime"
)

// Box is a confined program.
type Box struct{}

// Wrap fails, because only Linux has network namespaces.
func Wrap(*exec.Cmd, Options) (*Box, error) {
	return nil, cannot("%s has no network namespaces: run brevet on Linux", runtime.GOOS)
}

// Separate fails, because the program's terminal and pipes need Linux.
func Separate(*exec.Cmd, string) (*Box, error) {
	return nil, cannot("%s keeps no program from the files of its caller: run brevet on Linux", runtime.GOOS)
}

// Begin fails.
func (*Box) Begin() error { return ErrCannot }

// Signal does nothing.
func (*Box) Signal(os.Signal) {}

// Keyboard does nothing.
func (*Box) Keyboard(os.Signal) {}

// Finish does nothing.
func (*Box) Finish(<-chan os.Signal) error { return nil }

// Listeners returns nothing.
func (*Box) Listeners() ([]net.Listener, error) { return nil, ErrCannot }

// Explain returns err.
func (*Box) Explain(err error) error { return err }

// Close does nothing.
func (*Box) Close() {}

// Main fails.
func Main([]string) (int, error) { return 1, ErrCannot }
