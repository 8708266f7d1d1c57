package confine

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitSignal is what a shell adds to the number of the signal that ended a program, and notExecutable what it returns for a
// program that cannot be started.
const (
	exitSignal    = 128
	notExecutable = 126
)

// Supervise starts a program, forwards signals to it, and returns its exit code, as a shell would. It also waits for processes
// that have lost their parent, because this process may be the first one of a container.
//
// line is the program's name for itself, with its arguments.
func Supervise(path string, line []string) (int, error) {
	s := supervisor{path: path, line: line}
	return s.run(func(int) {
		// The terminal sends its signals to the program's group of processes. Leave the group, so that the program gets each once. It
		// fails for the leader of a session, which is then the group's shell.
		_ = unix.Setpgid(0, 0)
	})
}

// supervisor runs one program.
type supervisor struct {
	path    string
	line    []string
	attr    *syscall.SysProcAttr
	orders  <-chan func(pid int) // what to do with the program
	stopped func(syscall.Signal) // if the program's stops matter
}

// run runs the program. started is called when it runs.
func (s *supervisor) run(started func(pid int)) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	program, err := os.StartProcess(s.path, s.line, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: s.attr})
	if err != nil {
		return notExecutable, fmt.Errorf("starting %s: %w", s.path, err)
	}
	started(program.Pid)
	options := 0
	if s.stopped != nil {
		options = unix.WUNTRACED
	}
	ended, failed := make(chan unix.WaitStatus, 1), make(chan error, 1)
	go func() {
		for {
			var status unix.WaitStatus
			switch pid, err := unix.Wait4(-1, &status, options, nil); {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				failed <- err
				return
			case pid == program.Pid && status.Stopped():
				s.stopped(status.StopSignal())
			case pid == program.Pid && (status.Exited() || status.Signaled()):
				ended <- status
				return
			}
		}
	}()
	for {
		select {
		case sig := <-signals:
			if number, ok := sig.(syscall.Signal); ok {
				_ = unix.Kill(program.Pid, number) // it may have ended just now
			}
		case order := <-s.orders:
			order(program.Pid)
		case status := <-ended:
			if status.Signaled() {
				return exitSignal + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		case err := <-failed:
			return 1, fmt.Errorf("waiting for the program: %w", err)
		}
	}
}
