package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// orders are what this process tells the leader of the program's session, and stopped what the leader tells this process. Each is
// followed by the number of a signal, or 0.
const (
	toFront    = 'f' // run in the foreground of the program's terminal
	toBack     = 'b' // run in the background: the program stops when it reads from its terminal
	toOne      = 's' // send the signal to the program
	toGroup    = 'g' // send the signal to the program's group, as a terminal does
	hasStopped = 't'
)

// endOfInput is the key that ends the input: Ctrl-D.
const endOfInput = 4

// openTerminal makes a pseudo-terminal in the /dev/pts of this mount namespace, and returns the side of the keyboard and screen, and
// that of the program.
func openTerminal() (master, slave int, err error) {
	if master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, fmt.Errorf("making a terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, -1, fmt.Errorf("making a terminal: %w", errors.Join(err, unix.Close(master)))
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, -1, fmt.Errorf("making a terminal: %w", errors.Join(errno, unix.Close(master)))
	}
	return master, int(fd), nil
}

// terminal connects the program's terminal to the caller's. As long as the program only writes, the caller's terminal keeps its state
// and its input, which another program may read. Once the program reads, or from the start if it has nothing but the terminal, the
// caller's terminal passes each key on as it is, and the program's own terminal makes signals of some.
type terminal struct {
	*relay
	master           int
	keyboard, screen int // of the caller, or -1. The keyboard is never another file than standard input
	tell             func(order byte, sig unix.Signal)
	stops            chan unix.Signal // why the program has stopped
	held             atomic.Bool      // whether the keyboard is the program's
	changed          int              // an eventfd, readable when held has become true
	stopKey          atomic.Uint32    // the key by which the caller's terminal stops programs, or 0
	pressed          atomic.Bool      // whether a person has just pressed it, on the keyboard that is the program's
	told             bool             // whether this process got the signal to stop
	before           *unix.Termios    // the state of the caller's terminal before
	raw              unix.Termios     // and since
}

// attach connects the terminal at master, which may be -1 for a program without one.
func (r *relay) attach(master int, tell func(byte, unix.Signal)) (*terminal, error) {
	t := &terminal{relay: r, master: master, keyboard: -1, screen: -1, tell: tell, stops: make(chan unix.Signal)}
	if master < 0 {
		return t, nil
	}
	var err error
	if t.changed, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("preparing the program's terminal: %w", err)
	}
	for _, i := range r.screens {
		mode, err := unix.FcntlInt(uintptr(r.caller[i]), unix.F_GETFL, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", names[i], err)
		}
		// The keys of a terminal that is only written to are for others, such as a prompt of the caller.
		if i == 0 && mode&unix.O_ACCMODE != unix.O_WRONLY {
			t.keyboard = r.caller[i]
		}
		if mode&unix.O_ACCMODE != unix.O_RDONLY && (t.screen < 0 || i == 1) {
			t.screen = r.caller[i]
		}
	}
	if state, err := unix.IoctlGetTermios(r.caller[r.screens[0]], unix.TCGETS); err == nil {
		_ = unix.IoctlSetTermios(master, unix.TCSETS, state)
	}
	t.resize()
	return t, unix.SetNonblock(master, true)
}

// resize gives the program's terminal the size of the caller's, whose change the system signals to the program.
func (t *terminal) resize() {
	if t.master < 0 {
		return
	}
	if size, err := unix.IoctlGetWinsize(t.caller[t.screens[0]], unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, size)
	}
}

// serve passes on until the program ends.
func (t *terminal) serve(done <-chan struct{}) {
	runtime.LockOSThread() // a signal to this thread stops this process at once
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP)
	defer signal.Stop(signals)
	// A program that has only the terminal is one for people.
	if t.master >= 0 && len(t.screens) > 1 && t.screens[0] == 0 && t.screens[1] == 1 && t.front() && t.take() {
		t.tell(toFront, 0)
	} else {
		t.tell(toBack, 0)
	}
	const often = 100 * time.Millisecond
	var later <-chan time.Time // set while the program waits for the foreground, of whose change nobody tells
	for {
		select {
		case <-done:
			t.release()
			return
		case sig := <-signals:
			switch sig {
			case unix.SIGWINCH:
				t.resize()
			case unix.SIGTSTP:
				t.told = true
				t.tell(toGroup, unix.SIGTSTP) // it may stop, or not
			default:
				if t.held.Load() { // somebody had stopped this process
					t.resume()
				}
			}
		case <-later:
			if later = nil; !t.serveReader() {
				later = time.After(often)
			}
		case sig := <-t.stops:
			switch sig {
			case unix.SIGTTIN, unix.SIGTTOU:
				if !t.serveReader() {
					later = time.After(often)
				}
			case unix.SIGTSTP:
				t.suspend()
			default: // the program stopped itself, and goes on when another tells it to
			}
		}
	}
}

// serveReader gives the keyboard to a program that wants it, and reports whether the program goes on. In the background the program waits,
// and only the program: to stop this process's group, as a terminal does, would stop others, such as a timeout.
func (t *terminal) serveReader() bool {
	if t.keyboard >= 0 && !t.front() {
		return false
	}
	if t.keyboard < 0 || !t.take() {
		_, _ = unix.Write(t.master, []byte{endOfInput}) // no key will come
	}
	t.tell(toFront, 0)
	return true
}

// front reports whether the caller's terminal is for this process, as it is without job control.
func (t *terminal) front() bool {
	if t.keyboard < 0 {
		return false
	}
	group, err := unix.IoctlGetInt(t.keyboard, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// take makes the caller's terminal, in whose foreground this process is, pass each key on.
func (t *terminal) take() bool {
	state, err := unix.IoctlGetTermios(t.keyboard, unix.TCGETS)
	if err != nil {
		return false
	}
	raw := *state
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if t.set(&raw) != nil {
		return false
	}
	if t.before == nil || *state != t.raw { // unless it is this process's own
		t.before = state
	}
	t.stopKey.Store(0)
	if t.before.Lflag&unix.ISIG != 0 {
		t.stopKey.Store(uint32(t.before.Cc[unix.VSUSP]))
	}
	t.raw = raw
	t.held.Store(true)
	_, _ = unix.Write(t.changed, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return true
}

// release gives the caller's terminal back.
func (t *terminal) release() {
	if t.held.Swap(false) && t.front() {
		_ = t.set(t.before)
	}
}

// set changes the state of the caller's terminal. If this process has just gone to the background, the system would stop its group.
func (t *terminal) set(state *unix.Termios) error {
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before); err != nil {
		return err
	}
	err := unix.IoctlSetTermios(t.keyboard, unix.TCSETSW, state)
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// suspend stops with the program that has stopped, if somebody wants that, until somebody continues this process: with the whole group, as
// the terminal would, after a key; and alone after a signal. Otherwise the program goes on: its own wish must stop nobody.
func (t *terminal) suspend() {
	pressed := t.held.Load() && t.pressed.Swap(false) && t.front()
	told := t.told
	t.told = false
	switch {
	case pressed, told:
		t.release()
		stop(pressed)
		t.resume()
	case t.held.Load():
		t.tell(toFront, 0)
	default:
		t.tell(toBack, 0)
	}
}

// stop stops this thread's process, and the others of its group too if it is for all. The system does not stop a group that nobody would
// continue.
func stop(all bool) {
	// Go would keep its handler, with which the signal does nothing. The kernel's struct sigaction has four words, first the handler: 0 for the
	// default, 1 for none. This process ignores the signal for the others, so that it stops once.
	normal, none, handler := [4]uint64{0}, [4]uint64{1}, [4]uint64{}
	act := func(set, old *[4]uint64) {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0) //nolint:gosec // no other way
	}
	act(&none, &handler)
	if all {
		_ = unix.Kill(0, unix.SIGTSTP)
	}
	act(&normal, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
	act(&handler, nil)
}

// resume continues the program where this process now is.
func (t *terminal) resume() {
	t.resize()
	switch {
	case t.master < 0 || !t.front():
		t.held.Store(false)
		t.tell(toBack, 0)
	default:
		t.take()
		t.tell(toFront, 0)
	}
}

// show copies what the program writes to its terminal.
func (t *terminal) show() error {
	if t.screen >= 0 {
		_ = t.output(t.master, t.screen, "the terminal") // an error means that the caller's terminal is gone, as its signal says
	}
	for buf := make([]byte, chunk); t.read(t.master, buf) > 0; {
	}
	return nil
}

// press notes the key that stops programs. A program takes a moment to stop; what it does much later is its own wish.
func (t *terminal) press(text []byte) {
	const moment = 5 * time.Second
	if key := t.stopKey.Load(); key != 0 && bytes.IndexByte(text, byte(key)) >= 0 {
		t.pressed.Store(true)
		time.AfterFunc(moment, func() { t.pressed.Store(false) })
	}
}

// keys copies the caller's keys while they are for the program.
func (t *terminal) keys() {
	buf := make([]byte, page)
	for {
		events := []unix.PollFd{{Fd: int32(t.changed), Events: unix.POLLIN}}
		if t.held.Load() {
			events = append(events, unix.PollFd{Fd: int32(t.keyboard), Events: unix.POLLIN})
		}
		if t.wait(events...) {
			return
		}
		if events[0].Revents != 0 {
			_, _ = unix.Read(t.changed, make([]byte, 8))
			continue
		}
		if !t.held.Load() {
			continue
		}
		n, err := unix.Read(t.keyboard, buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		text := buf[:max(0, n)]
		if n <= 0 { // the caller's terminal is gone
			text = []byte{endOfInput}
		}
		t.press(text)
		for len(text) > 0 {
			m, err := unix.Write(t.master, text)
			if errors.Is(err, unix.EAGAIN) {
				if t.wait(unix.PollFd{Fd: int32(t.master), Events: unix.POLLOUT}) {
					return
				}
			} else if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			text = text[max(0, m):]
		}
		if n <= 0 {
			return
		}
	}
}
