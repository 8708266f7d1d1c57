package hostile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command on a new terminal. It returns the exit code and every byte that the terminal received.
func onTerminal(t *testing.T, cmd *exec.Cmd) (code int, screen string) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("opening a terminal: %v", err)
	}
	defer func() { _ = control.Close() }()
	fd := int(control.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})); err != nil {
		t.Fatalf("preparing a terminal: %v", err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatalf("opening a terminal: %v", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = terminal.Close()
	if err != nil {
		t.Fatalf("starting %v: %v", cmd.Args, err)
	}
	shown, _ := io.ReadAll(control) // ends with EIO when no process has the terminal open any more
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), string(shown)
}
