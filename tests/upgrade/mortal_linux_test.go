package upgrade_test

import "syscall"

// mortal has a replica end with the tests, even when they are killed.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
