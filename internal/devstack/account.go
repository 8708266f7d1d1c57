package devstack

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is an unprivileged user that a child runs as, since PostgreSQL refuses to run as root. A nil account is the
// current user.
type account struct {
	name     string
	uid, gid uint32
}

// unprivileged returns nil if the current user is not root. Otherwise it returns the owner of the existing data, or else
// the first of the users postgres and nobody that exists.
func unprivileged(data string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is a meaningful account
	}
	var found *user.User
	if info, err := os.Stat(data); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 {
			found, _ = user.LookupId(strconv.Itoa(int(stat.Uid)))
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found == nil {
			found, _ = user.Lookup(name)
		}
	}
	if found == nil {
		return nil, errors.New("PostgreSQL cannot run as root, and there is no user postgres or nobody to run it as")
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", found.Username, err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", found.Username, err)
	}
	return &account{name: found.Username, uid: uint32(uid), gid: uint32(gid)}, nil
}

// credential has no supplementary groups, so the child does not inherit root's groups.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own makes the account the owner of a path.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// folder creates a private folder that the account owns, or takes over an existing one.
func (a *account) folder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o700), a.own(path)) //nolint:gosec // a folder needs its x bit
}
