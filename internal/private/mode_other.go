//go:build !linux

package private

import (
	"os"

	"golang.org/x/sys/unix"
)

// changeMode sets the mode of a socket, and follows no link.
func changeMode(path string, mode os.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
}
