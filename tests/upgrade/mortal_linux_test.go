package upgrade_test

import "syscall"

// mortal makes a replica end with the tests, even if they are killed.
func mortal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
