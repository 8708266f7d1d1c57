// Package private creates folders and sockets that only the current user can open.
//
// It must never create one that another user can open, even for a moment.
package private

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Folder holds files while the process that made it lives. It is in memory if the system has a place for that.
type Folder struct {
	Path string
	lock *os.File // the open folder; the process that holds its lock uses it
}

// settleTime is how long a new folder may exist without a lock.
const settleTime = time.Minute

// NewFolder makes a folder, and removes the folders of processes that were killed.
func NewFolder(now time.Time) (*Folder, error) {
	prefix := "brevet-" + strconv.Itoa(os.Getuid()) + "-"
	var errs []error
	for _, base := range []string{"/dev/shm", os.TempDir()} {
		removeAbandoned(base, prefix, now.Add(-settleTime))
		path, err := os.MkdirTemp(base, prefix)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lock, err := lockFolder(path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), os.Remove(path))
		}
		return &Folder{Path: path, lock: lock}, nil
	}
	return nil, fmt.Errorf("creating a private folder: %w", errors.Join(errs...))
}

// lockFolder fails if another process holds the lock, which ends with that process.
func lockFolder(path string) (*os.File, error) {
	folder, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}

func removeAbandoned(base, prefix string, before time.Time) {
	entries, _ := os.ReadDir(base) // without a list, nothing is removed
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !strings.HasPrefix(entry.Name(), prefix) || info.ModTime().After(before) || !Ours(info) {
			continue
		}
		path := filepath.Join(base, entry.Name())
		if lock, err := lockFolder(path); err == nil {
			_ = os.RemoveAll(path)
			_ = lock.Close()
		}
	}
}

// Ours reports whether the current user owns a file.
func Ours(info os.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Getuid()
}

// Trusted reports whether only the current user and root can change a file or a folder. info must come from [os.Lstat]: a link
// is not trusted, because it may lead to anything.
func Trusted(info os.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(owner.Uid) == os.Getuid() || owner.Uid == 0) && info.Mode()&os.ModeSymlink == 0 && info.Mode().Perm()&0o022 == 0
}

// TrustedPath reports whether only the current user and root can make a path lead elsewhere. A folder above it that others can write
// to must be sticky, as /tmp is, or below one that others cannot enter. Otherwise they could put a folder of theirs in place of one.
func TrustedPath(path string) (bool, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return false, err
	}
	for end, c := range whole {
		if c != filepath.Separator {
			continue
		}
		info, err := os.Lstat(cmp.Or(whole[:end], "/"))
		if err != nil {
			return false, err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		link, mode := info.Mode()&os.ModeSymlink != 0, info.Mode()
		switch {
		case !ok || !Ours(info) && owner.Uid != 0, !link && mode.Perm()&0o022 != 0 && mode&os.ModeSticky == 0:
			return false, nil
		case !link && mode.Perm()&0o011 == 0:
			return true, nil
		}
	}
	return true, nil
}

// maxLinks is how many links may lead to a file.
const maxLinks = 40

// trustedThroughLinks is [TrustedPath] for a path and for what each link on the way leads to. Each step is checked, because others
// may be able to replace a link between two folders that they cannot replace.
func trustedThroughLinks(path string) (bool, error) {
	end, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	for range maxLinks {
		if trusted, err := TrustedPath(path); err != nil || !trusted {
			return false, err
		}
		next, err := followFirst(path)
		if err != nil {
			return false, err
		}
		if next == path {
			// They differ if a link goes up again through another link, whose steps are not known.
			return filepath.Dir(path) == end, nil
		}
		path = next
	}
	return false, nil
}

// followFirst replaces the first folder of an absolute path that is a link by what the link leads to.
func followFirst(path string) (string, error) {
	for end, c := range path {
		if c != filepath.Separator || end == 0 {
			continue
		}
		info, err := os.Lstat(path[:end])
		if err != nil {
			return "", err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			continue
		}
		to, err := os.Readlink(path[:end])
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path[:end]), to)
		}
		return filepath.Join(to, path[end:]), nil
	}
	return path, nil
}

// Resolve returns the path of a file. A name without a slash is in the folder. Any other path must have a parent folder to
// which nobody else can write, and nobody else may be able to put another folder in place of one above it.
func (f *Folder) Resolve(name string) (string, error) {
	switch {
	case name == "" || name == "." || name == ".." || strings.HasSuffix(name, "/"):
		return "", fmt.Errorf("%q is not a file name", name)
	case !strings.Contains(name, "/"):
		return filepath.Join(f.Path, name), nil
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(filepath.Dir(path))
	switch {
	case err != nil:
		return "", err
	case info.Mode().Perm()&0o022 != 0, !Ours(info):
		return "", fmt.Errorf("other users can write to %s: use a private folder, or a name without a slash", filepath.Dir(path))
	}
	if trusted, err := trustedThroughLinks(path); err != nil {
		return "", err
	} else if !trusted {
		return "", fmt.Errorf("other users can replace a folder above %s: use a private folder, or a name without a slash", filepath.Dir(path))
	}
	return path, nil
}

// Remove removes the folder with all its files.
func (f *Folder) Remove() {
	_ = os.RemoveAll(f.Path)
	_ = f.lock.Close()
}

// LongestSocketPath is the length in bytes that fits into the address of a Unix socket on every system.
const LongestSocketPath = 100

// Listen opens a Unix socket to which nobody else can connect. It replaces a socket that a killed process left behind, and
// returns an error if a running process serves the socket.
func Listen(path string) (net.Listener, error) {
	if len(path) > LongestSocketPath {
		return nil, fmt.Errorf("%s is too long for a socket: use at most %d bytes", path, LongestSocketPath)
	}
	conn, err := net.Dial("unix", path) //nolint:noctx // local, answers at once
	if err == nil {
		return nil, errors.Join(fmt.Errorf("another process serves %s: stop it, or choose another path", path), conn.Close())
	}
	if info, statErr := os.Lstat(path); statErr == nil && errors.Is(err, syscall.ECONNREFUSED) && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", path) //nolint:noctx // it does not wait for anything
}

// Access says who may connect to a socket. The zero value means the current user alone.
type Access struct {
	// Mode has bits of 0o666. Zero means 0o600.
	Mode os.FileMode
	// Owner and Group are the socket's, if Owned.
	Owned        bool
	Owner, Group int
}

// CheckFolderOf returns an error if another user can write to the folder of a file, or put another folder in its place.
func CheckFolderOf(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	safe, err := trustedThroughLinks(path)
	if err != nil {
		return err
	}
	if !safe || !Trusted(info) {
		return fmt.Errorf("other users can change %s: use a folder of your own", filepath.Dir(path))
	}
	return nil
}

// ListenFor is Listen for a socket that others may connect to. No other user may be able to write to its folder or to replace it: they
// could put a link in place of the socket, whose target would then be theirs. Whoever uses the socket may be able to write to the folder
// all the same, as root of a container is, so ListenFor follows no link.
func ListenFor(path string, access Access) (net.Listener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := CheckFolderOf(path); err != nil {
		return nil, err
	}
	l, err := Listen(path)
	if err != nil {
		return nil, err
	}
	if access.Owned {
		err = os.Lchown(path, access.Owner, access.Group)
	}
	if err == nil && access.Mode != 0 {
		err = changeMode(path, access.Mode)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
