package devstack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr puts the child into its own process group, so that Ctrl-C in a terminal reaches only Brevet, which drains
// before it stops its servers. It also makes the child die with this process, even on kill -9.
func sysProcAttr(c command) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: c.onParentDeath, Credential: c.account.credential()}
}

// inherited returns the path under which a child finds the nth folder that was passed to it open. A process under
// another account can reach the folder this way although it may not enter the folders above.
func (a *account) inherited(n int, folder *os.File) string {
	if a == nil {
		return folder.Name()
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(3+n))
}

// reaches always succeeds on Linux, because of inherited.
func (a *account) reaches(string) error { return nil }

// belongsTo reports whether a living process works in the folder or was started with it on its command line.
func belongsTo(pid int, folder string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); err == nil && cwd == folder {
		return true
	}
	line, err := os.ReadFile(filepath.Join(proc, "cmdline")) // empty for a zombie
	return err == nil && bytes.Contains(line, []byte(folder))
}

// listensOn returns an error unless the child listens on the port of 127.0.0.1. The kernel lists an inode for each
// listening socket, and the open files of each process.
func (p *process) listensOn(port int) error {
	if !p.running() {
		return errNotOurs
	}
	inode, uid, err := listener(port)
	if err != nil {
		return err
	}
	has, err := hasOpen(p.cmd.Process.Pid, "socket:["+inode+"]")
	if errors.Is(err, fs.ErrPermission) {
		// A program with file capabilities, such as a vault that may lock its memory, hides its open files. In that case
		// listensOn trusts the program's log, provided that the current user owns the socket.
		has, err = uid == strconv.Itoa(os.Geteuid()) && p.claims(port), nil
	}
	if err == nil && !has {
		err = errNotOurs
	}
	return err
}

// listener finds the inode and the owner of the one socket that listens on the port of 127.0.0.1.
func listener(port int) (inode, uid string, _ error) {
	const table = "/proc/net/tcp"
	text, err := os.ReadFile(table)
	if err != nil {
		return "", "", err
	}
	local := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32([]byte{127, 0, 0, 1}), port)
	for line := range strings.Lines(string(text)) {
		// Number, local and remote address, state, queues, timer, retransmits, uid, timeout, inode ...
		field := strings.Fields(line)
		if len(field) < 10 || field[1] != local || field[3] != "0A" { // TCP_LISTEN
			continue
		}
		if inode != "" {
			return "", "", errNotOurs // several sockets may share a port
		}
		uid, inode = field[7], field[9]
	}
	if inode == "" {
		return "", "", errNotOurs
	}
	return inode, uid, nil
}

func hasOpen(pid int, name string) (bool, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	open, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, fd := range open {
		if target, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && target == name {
			return true, nil
		}
	}
	return false, nil
}
