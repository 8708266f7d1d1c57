package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// unreadable makes the system protect the memory, environment and open files of this process from other processes of the
// same user. It also prevents core dumps. Programs that this process starts are not affected.
func unreadable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// closed does what unreadable does, for a process that starts no programs. If the system passes core dumps to a program,
// the zero core limit tells that program to expect none.
func closed() error {
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}), unreadable()); err != nil {
		return fmt.Errorf("protecting the memory of this process: %w", err)
	}
	return nil
}
