package devstack

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// sysProcAttr puts the child into a process group of its own, so that Ctrl-C in a terminal reaches Brevet alone,
// which then drains before it stops its servers; and lets it die with us, even on kill -9.
func sysProcAttr(c command) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: c.onParentDeath, Credential: c.account.credential()}
}

// inherited is the path under which a child finds the nth folder that it was handed open. A process under another
// account reaches it this way although the folders above are closed to it.
func (a *account) inherited(n int, folder *os.File) string {
	if a == nil {
		return folder.Name()
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(3+n))
}

// reaches needs no proof here: see inherited.
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
