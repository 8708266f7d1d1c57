package execenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownIdentity are prefixes of variables that lead to the identity of the sandbox.
var ownIdentity = []string{
	"SPIFFE_ENDPOINT_SOCKET=", "BREVET_SERVER=", "BREVET_SERVER_ID=", "BREVET_AUDIENCE=", "BREVET_SVID=", "BREVET_AS_WORKLOAD=",
	"SVID_DIR=", "BREVET_DEV_STATE=", // folders with keys, of `brevet dev env`
}

// WithoutIdentity removes the variables that lead to the identity of the sandbox. A program that uses a gateway does not get
// them. The sandbox itself must ensure that the program cannot find the identity in another way.
func WithoutIdentity(environ []string) []string {
	return slices.DeleteFunc(environ, func(pair string) bool {
		return slices.ContainsFunc(ownIdentity, func(name string) bool { return strings.HasPrefix(pair, name) })
	})
}

// exitSignal is the number that a shell adds to the signal that ended a program.
const exitSignal = 128

// Program is a running program.
type Program struct {
	// Between passes on to the program, if it does not have the files and the terminal of this process.
	Between Between

	cmd   *exec.Cmd
	ended chan error
}

// Between is between a program and this process.
type Between interface {
	// Signal sends a signal to the program.
	Signal(sig os.Signal)
	// Keyboard sends a signal to all processes that the program's terminal would send it to.
	Keyboard(sig os.Signal)
	// Finish copies what the ended program has written, unless a signal comes first.
	Finish(signals <-chan os.Signal) error
}

// Start starts a program, which the system kills if this process is killed.
func Start(cmd *exec.Cmd) (*Program, error) {
	p := &Program{cmd: cmd, ended: make(chan error, 1)}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal depends on the thread that started the program, not on the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		dieWithParent(cmd.SysProcAttr)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.ended <- cmd.Wait()
		}
	}()
	return p, <-started
}

// Wait forwards signals until the program ends, and returns the exit code that a shell would return.
func (p *Program) Wait(signals <-chan os.Signal) (code int, err error) {
	for {
		select {
		case sig := <-signals:
			switch keyboard := fromKeyboard(sig); {
			case p.Between != nil && keyboard:
				p.Between.Keyboard(sig)
			case p.Between != nil:
				p.Between.Signal(sig)
			case !keyboard:
				_ = p.cmd.Process.Signal(sig) // it may have ended just now
			}
		case err := <-p.ended:
			var unwritten error
			if p.Between != nil {
				unwritten = p.Between.Finish(signals)
			}
			if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
				return 0, fmt.Errorf("waiting for the program: %w", err)
			}
			if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
				return exitSignal + int(status.Signal()), nil
			}
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				return code, nil
			}
			return 0, unwritten
		}
	}
}

// fromKeyboard reports whether a signal is one that the terminal sends to all processes in the foreground. The program has
// then received it already, and a second one would mean something else to many programs.
func fromKeyboard(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer func() { _ = terminal.Close() }()
	front, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}
