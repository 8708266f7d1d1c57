package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// privateFolder holds files with credentials while the process that made it lives. It is in memory if the system has a
// place for that, and only its owner can open it.
type privateFolder struct {
	path string
	lock *os.File // the open folder; the process that holds its lock uses it
}

// settleTime is how long a new folder may exist without a lock.
const settleTime = time.Minute

// newPrivateFolder makes a private folder, and removes the folders of processes that were killed.
func newPrivateFolder() (*privateFolder, error) {
	prefix := "brevet-" + strconv.Itoa(os.Getuid()) + "-"
	var errs []error
	for _, base := range []string{"/dev/shm", os.TempDir()} {
		removeAbandoned(base, prefix)
		path, err := os.MkdirTemp(base, prefix)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lock, err := lockFolder(path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), os.Remove(path))
		}
		return &privateFolder{path: path, lock: lock}, nil
	}
	return nil, fmt.Errorf("creating a private folder: %w", errors.Join(errs...))
}

// lockFolder locks a folder. It fails if another process holds the lock, which ends with that process.
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

func removeAbandoned(base, prefix string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !strings.HasPrefix(entry.Name(), prefix) || time.Since(info.ModTime()) < settleTime {
			continue
		}
		if !ours(info) {
			continue
		}
		path := filepath.Join(base, entry.Name())
		if lock, err := lockFolder(path); err == nil {
			_ = os.RemoveAll(path)
			_ = lock.Close()
		}
	}
}

func ours(info os.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Getuid()
}

// resolve returns the path of a file. A name without a slash is in the folder. Any other path must have a parent folder to
// which nobody else can write.
func (f *privateFolder) resolve(name string) (string, error) {
	switch {
	case name == "" || name == "." || name == ".." || strings.HasSuffix(name, "/"):
		return "", fmt.Errorf("%q is not a file name", name)
	case !strings.Contains(name, "/"):
		return filepath.Join(f.path, name), nil
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(filepath.Dir(path))
	switch {
	case err != nil:
		return "", err
	case info.Mode().Perm()&0o022 != 0, !ours(info):
		return "", fmt.Errorf("other users can write to %s: use a private folder, or a name without a slash", filepath.Dir(path))
	}
	return path, nil
}

func (f *privateFolder) remove() {
	_ = os.RemoveAll(f.path)
	_ = f.lock.Close()
}
