package confine

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// lead is the leader of the program's session: it starts the program in a group of its own, and moves it to the foreground and the
// background of the session's terminal, if it has one, as a shell does.
func lead(path string, line []string) (int, error) {
	runtime.LockOSThread()                                                                     // the program ends with this thread
	if err := unix.CloseRange(control, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil { // whatever the caller's parent left open too
		return 1, fmt.Errorf("closing descriptors (Linux 5.11 or newer is required): %w", err)
	}
	screen := -1
	for fd := range control {
		if isTerminal(fd) {
			screen = fd
		}
	}
	if screen >= 0 {
		if err := unix.IoctlSetInt(screen, unix.TIOCSCTTY, 0); err != nil {
			return 1, fmt.Errorf("getting the terminal: %w", err)
		}
	}
	order, _, err := receive()
	if err != nil {
		return 1, fmt.Errorf("waiting for the order to start: %w", err)
	}
	orders := make(chan func(int))
	s := supervisor{
		path: path, line: line, orders: orders,
		attr:    &syscall.SysProcAttr{Setpgid: true, Foreground: screen >= 0 && order == toFront, Ctty: screen, Pdeathsig: syscall.SIGKILL},
		stopped: func(sig syscall.Signal) { _ = unix.Send(control, []byte{hasStopped, byte(sig)}, 0) },
	}
	return s.run(func(int) {
		go func() {
			for {
				order, sig, err := receive()
				if err != nil {
					return // this process ends with the caller
				}
				orders <- func(pid int) { obey(pid, screen, order, sig) }
			}
		}()
	})
}

// receive returns the next order.
func receive() (order byte, sig unix.Signal, err error) {
	var message [2]byte
	for {
		switch n, err := unix.Read(control, message[:]); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, 0, err
		case n < len(message):
			return 0, 0, errSilent
		default:
			return message[0], unix.Signal(message[1]), nil
		}
	}
}

func obey(pid, screen int, order byte, sig unix.Signal) {
	switch order {
	case toOne:
		_ = unix.Kill(pid, sig) // it may have ended just now
	case toGroup:
		_ = unix.Kill(-pid, sig)
	case toFront, toBack:
		group := pid
		if order == toBack {
			group = unix.Getpgrp()
		}
		if screen >= 0 {
			setForeground(screen, group)
		}
		_ = unix.Kill(-pid, unix.SIGCONT)
	}
}

// setForeground says whose the terminal is. The system would stop this process for that from the background.
func setForeground(screen, group int) {
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTOU - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before) == nil {
		_ = unix.IoctlSetPointerInt(screen, unix.TIOCSPGRP, group)
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	}
}
