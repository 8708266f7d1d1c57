package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// diesWithParent has the system kill the program when brevet is killed: nobody would end its credentials then.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// unreadable has the system keep the memory, the environment and the open files of this process from others of the same user. It
// leaves no core either. What is started from here is not concerned.
func unreadable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
