package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// outliveReaders makes writes to a closed pipe fail. Otherwise SIGPIPE would end this process and leave its credentials
// alive.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// runProgram runs a program to its end, forwards signals to it, and returns its exit code as an error.
func runProgram(con *console, program *exec.Cmd, signals <-chan os.Signal) error {
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The parent-death signal depends on the thread that started the program, not on the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		program.SysProcAttr = diesWithParent()
		err := program.Start()
		started <- err
		if err == nil {
			ended <- program.Wait()
		}
	}()
	if err := <-started; err != nil {
		fmt.Fprintf(con.err, "brevet: starting %s: %v\n", quote(program.Path), err)
		return exitError{err: err, code: exitNotExecutable}
	}
	for {
		select {
		case sig := <-signals:
			if !fromKeyboard(sig) {
				_ = program.Process.Signal(sig) // it may have ended just now
			}
		case err := <-ended:
			return endOf(program.ProcessState, err)
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

// endOf returns the program's exit code. If a signal ended the program, the code is the one that a shell returns.
func endOf(state *os.ProcessState, err error) error {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("waiting for the program: %w", err)
	}
	code := state.ExitCode()
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = exitSignal + int(status.Signal())
	}
	if code == 0 {
		return nil
	}
	return exitError{err: fmt.Errorf("the program exited with %d", code), code: code}
}
