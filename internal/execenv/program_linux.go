package execenv

import "syscall"

// dieWithParent makes the system kill the program if brevet is killed, because nothing would end its credentials then.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
