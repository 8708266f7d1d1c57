// Package confine runs a program in a network of its own, which has a loopback interface and nothing else. The ports of the
// program's loopback interface that the caller asks for lead to the caller; they are the only way out.
//
// It must never start a program with less confinement than it promises: if the kernel lacks something, it refuses and says what.
// It must never leave the program a descriptor, a capability or a kind of socket by which it could leave its network. It must never
// give the program a file that its caller has open.
//
// It does not confine files, except for those that the caller hides. A program that may write to a file that another program runs, can leave that way.
package confine

import (
	"errors"
	"fmt"
)

// ErrCannot means that this machine cannot confine programs. The message says what is missing and what to do.
var ErrCannot = errors.New("this machine cannot confine programs")

// Options say what a confined program gets.
type Options struct {
	// Init is the argument with which the caller's own executable calls Main. Main gets the arguments that follow it.
	Init string
	// Ports are the TCP ports of the program's loopback interface that lead to the caller.
	Ports []int
	// UnixSockets lets the program open Unix sockets. It then reaches every socket of another program whose file it may open.
	UnixSockets bool
	// Folder is the one folder of /dev/shm that the program sees, or empty.
	Folder string
	// Hidden are files and folders that the program finds empty, such as those with keys. What does not exist at the start is not hidden,
	// nor what somebody else removes and creates again.
	Hidden []string
}

// order is what the caller tells the first process of the confined program.
type order struct {
	UID         int      `json:"uid"`
	GID         int      `json:"gid"`
	Ports       []int    `json:"ports"`
	UnixSockets bool     `json:"unix_sockets"`
	Folder      string   `json:"folder,omitempty"`
	Hidden      []string `json:"hidden,omitempty"`
	Screens     []int    `json:"screens,omitempty"` // the standard files that are a terminal of the program's own
}

// report is what the first process answers, with the listeners as descriptors.
type report struct {
	Error string `json:"error,omitempty"`
}

func cannot(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCannot, fmt.Errorf(format, args...))
}
