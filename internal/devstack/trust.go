package devstack

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// trusted resolves the path of a file or folder and returns it if only root and the current user can change or replace
// it. The folders above must belong to root or the current user and be closed to others too. They may be sticky, as /tmp
// is, because others cannot replace our files there. The path itself may not be sticky, because others could add to it.
func trusted(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	if err := closed(path); err != nil {
		return "", err
	}
	return path, trustedAbove(path)
}

// trustedAbove checks the folders above a path that has no links.
func trustedAbove(path string) error {
	for at := path; at != filepath.Dir(at); {
		at = filepath.Dir(at)
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSticky != 0 {
			err = ours(at, info)
		} else {
			err = closed(at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trustedTree is like trusted, and also requires that everything inside the folder is closed to others and not a link.
func trustedTree(dir string) (string, error) {
	dir, err := trusted(dir)
	if err != nil {
		return "", err
	}
	return dir, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%w: %s is a symbolic link", ErrUntrusted, path)
		}
		return closed(path)
	})
}

func closed(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if err := ours(path, info); err != nil {
		return err
	}
	open := info.Mode().Perm() & 0o022
	if open == 0o020 && isPrivateGroup(info) {
		return nil
	}
	if open != 0 {
		return fmt.Errorf("%w: %s has mode %v, so that other users may write to it (chmod go-w)",
			ErrUntrusted, path, info.Mode())
	}
	return nil
}

func ours(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w: the owner of %s is not known", ErrUntrusted, path)
	}
	if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d, who is neither root nor the one that runs this (user %d)",
			ErrUntrusted, path, stat.Uid, os.Geteuid())
	}
	return nil
}

// isPrivateGroup reports whether the file's owner is the only member of the file's group. Where each user has such a
// group, as on Ubuntu, the umask is often 002 and everything is group-writable.
func isPrivateGroup(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	owner, err := user.LookupId(strconv.Itoa(int(stat.Uid)))
	if err != nil {
		return false
	}
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		return false
	}
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return false
	}
	return privateGroup(owner.Username, strconv.Itoa(int(stat.Gid)), string(groups), string(users))
}

// privateGroup takes the contents of /etc/group and /etc/passwd. It returns false for a group that is missing there or
// does not have its owner's name, because such a group may have members that only a directory service knows.
func privateGroup(owner, gid, groups, users string) bool {
	found := false
	for line := range strings.Lines(groups) {
		field := strings.Split(strings.TrimSpace(line), ":") // name, password, gid, members
		if len(field) != 4 || field[2] != gid {
			continue
		}
		if field[0] != owner || field[3] != "" && field[3] != owner {
			return false
		}
		found = true
	}
	for line := range strings.Lines(users) {
		field := strings.Split(line, ":") // name, password, uid, gid, ...
		if len(field) > 3 && field[3] == gid && field[0] != owner {
			return false
		}
	}
	return found
}
