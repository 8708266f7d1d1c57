package main

import "syscall"

// diesWithParent has the system kill the program when brevet is killed: nobody would end its credentials then.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
