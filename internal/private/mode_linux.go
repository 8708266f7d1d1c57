package private

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// changeMode sets the mode of a socket. It fails if something else is at the path by now, such as a link.
func changeMode(path string, mode os.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the socket again: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("opening the socket again: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no longer a socket: who replaced it?", path)
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) // the path could be something else again
}
