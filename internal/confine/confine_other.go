//go:build !linux

package confine

import (
	"net"
	"os/exec"
	"runtime"
)

// Box is a confined program.
type Box struct{}

// Wrap fails, because only Linux has network namespaces.
func Wrap(*exec.Cmd, Options) (*Box, error) {
	return nil, cannot("%s has no network namespaces: run brevet on Linux", runtime.GOOS)
}

// Listeners returns nothing.
func (*Box) Listeners() ([]net.Listener, error) { return nil, ErrCannot }

// Explain returns err.
func (*Box) Explain(err error) error { return err }

// Close does nothing.
func (*Box) Close() {}

// Main fails.
func Main([]string) (int, error) { return 1, ErrCannot }
