//go:build !linux

package devstack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// sysProcAttr puts the child into its own process group, so that Ctrl-C in a terminal reaches only Brevet, which drains
// before it stops its servers. There is no parent-death signal on this system: if kill -9 of the parent leaves a child
// behind, the next start in the same folder ends it.
func sysProcAttr(c command) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: c.account.credential()}
}

// inherited returns the path under which a child finds a folder that was passed to it open. Here it is the folder's own path.
func (a *account) inherited(_ int, folder *os.File) string { return folder.Name() }

// reaches returns an error that names the folder above that the account cannot enter. The account owns the folder itself.
func (a *account) reaches(folder string) error {
	if a == nil {
		return nil
	}
	for dir := filepath.Dir(folder); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("PostgreSQL cannot run as root, and as %s it cannot enter %s: run as an ordinary user", a.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// belongsTo reports whether a living process was started with the folder on its command line.
func belongsTo(pid int, folder string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	line, err := exec.CommandContext(ctx, "ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.Contains(line, []byte(folder))
}

// listensOn returns an error unless the child is known to listen on the port of 127.0.0.1. This system has no file that
// shows who owns a socket, so listensOn trusts the child's log.
func (p *process) listensOn(port int) error {
	if !p.claims(port) || !p.running() {
		return errNotOurs
	}
	return nil
}

// ownUser returns true: this system has no file that shows who owns a socket.
func ownUser(_, _ string) bool { return true }
