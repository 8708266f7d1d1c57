package execenv

import "syscall"

// diesWithParent makes the system kill the program if brevet is killed, because nothing would end its credentials then.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
