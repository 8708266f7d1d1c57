package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// unreadable has the system keep the memory, the environment and the open files of this process from others of the same user. It
// leaves no core either. What is started from here is not concerned.
func unreadable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// closed is unreadable for a process that starts no others: where cores go to a program, that is told not to expect one.
func closed() error {
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}), unreadable()); err != nil {
		return fmt.Errorf("closing this process's memory to others: %w", err)
	}
	return nil
}
