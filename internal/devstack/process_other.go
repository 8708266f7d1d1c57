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

// sysProcAttr puts the child into a process group of its own, so that Ctrl-C in a terminal reaches Brevet alone,
// which then drains before it stops its servers. There is no parent-death signal here: a child that kill -9 of its
// parent left behind is ended by the next start in the same folder.
func sysProcAttr(c command) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: c.account.credential()}
}

// inherited is the path under which a child finds the nth folder that it was handed open: its own, here.
func (a *account) inherited(_ int, folder *os.File) string { return folder.Name() }

// reaches reports which folder above keeps the account out; the folder itself is the account's own.
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

// listensOn reports by an error that the port of 127.0.0.1 is not known to be the child's own. Here no file tells whose
// a socket is: what counts is the child's word.
func (p *process) listensOn(port int) error {
	if !p.claims(port) || !p.running() {
		return errNotOurs
	}
	return nil
}
