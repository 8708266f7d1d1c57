package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// setUpWithin bounds the preparation of the program's namespaces, which takes milliseconds on a machine with time to spare.
	setUpWithin = time.Minute
	// control is the descriptor of the first process for its answer to the caller.
	control = 3
	// maxReport is the greatest length of an answer, in bytes.
	maxReport = 4 << 10
)

// needed are the capabilities of the first process in its own user namespace, until it has set everything up: to mount, to
// start the loopback interface, to write its maps of users, to forbid user namespaces, and to give up all of these.
var needed = []uintptr{
	unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SYS_RESOURCE,
}

// Box is a program that this process runs with standard files and a session of its own, and confined, if Wrap made it.
type Box struct {
	*relay
	ports  int
	ours   *net.UnixConn
	master int // of the program's terminal, or -1
	done   chan struct{}
	gone   chan struct{}
}

// Separate changes cmd, which must not have started, so that the program gets no open file of this process and of its caller, and runs in a
// session of its own. The program is not confined: it confines another. init is the argument with which this executable calls Main.
func Separate(cmd *exec.Cmd, init string) (*Box, error) {
	cmd.Args = append([]string{"brevet", init, runWord, cmd.Path}, cmd.Args...)
	b, err := newBox(cmd)
	if err != nil || len(b.screens) == 0 {
		return b, err
	}
	master, slave, err := openTerminal()
	if err != nil {
		b.Close()
		return nil, err
	}
	b.master = master
	screen := os.NewFile(uintptr(slave), "terminal")
	b.theirs = append(b.theirs, screen)
	for _, i := range b.screens {
		switch i {
		case 0:
			cmd.Stdin = screen
		case 1:
			cmd.Stdout = screen
		default:
			cmd.Stderr = screen
		}
	}
	return b, nil
}

// newBox gives cmd standard files of its own, a session of its own, and a connection to this process.
func newBox(cmd *exec.Cmd) (*Box, error) {
	relay, err := separate(cmd)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		relay.close()
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	relay.theirs = append(relay.theirs, theirs)
	conn, err := net.FileConn(mine) // a copy
	if err := errors.Join(err, mine.Close()); err != nil {
		relay.close()
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	ours, ok := conn.(*net.UnixConn)
	if !ok {
		relay.close()
		return nil, errors.Join(errors.New("opening a socket: it is of another kind"), conn.Close())
	}
	cmd.Path, cmd.ExtraFiles = "/proc/self/exe", []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &Box{relay: relay, ours: ours, master: -1, done: make(chan struct{}), gone: make(chan struct{})}, nil
}

// Wrap changes cmd, which must not have started, so that it starts confined. The process that cmd starts is the first one of
// the confined program: it forwards signals to the program, and ends with its exit code. The system kills it, and with it
// everything that the program started, when the thread ends that starts cmd.
func Wrap(cmd *exec.Cmd, o Options) (*Box, error) {
	if _, known := architectures[runtime.GOARCH]; !known {
		return nil, cannot("brevet has no system call filter for %s: use amd64 or arm64", runtime.GOARCH)
	}
	path, line := cmd.Path, cmd.Args
	b, err := newBox(cmd)
	if err != nil {
		return nil, err
	}
	b.ports = len(o.Ports)
	text, err := json.Marshal(order{UID: os.Getuid(), GID: os.Getgid(), Ports: o.Ports, UnixSockets: o.UnixSockets, Folder: o.Folder, Hidden: o.Hidden, Screens: b.screens})
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("describing the confinement: %w", err)
	}
	cmd.Args = append([]string{"brevet", o.Init, setUpWord, string(text), path}, line...)
	// The first process writes its own maps of users. This process could not: the system gives the files of a process that hides
	// its memory to root, and those of its children too.
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC
	cmd.SysProcAttr.AmbientCaps = needed
	return b, nil
}

// Listeners returns a listener for each port, in their order, when the program is ready to start. The caller must have started
// the command. Connections to them come from the confined program and from nobody else.
func (b *Box) Listeners() ([]net.Listener, error) {
	b.started()                                         // so that the end of the first process ends the wait
	_ = b.ours.SetDeadline(time.Now().Add(setUpWithin)) //nolint:forbidigo // for a connection, not for a decision
	text, rights := make([]byte, maxReport), make([]byte, unix.CmsgSpace(4*(b.ports+1)))
	n, m, _, _, err := b.ours.ReadMsgUnix(text, rights)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("the confined program did not start: %w", errors.Join(errSilent, err))
	}
	fds, err := received(rights[:m])
	if err != nil {
		return nil, fmt.Errorf("receiving the confined program's listeners: %w", err)
	}
	if len(b.screens) > 0 && len(fds) > 0 { // the terminal is the last one
		b.master, fds = fds[len(fds)-1], fds[:len(fds)-1]
	}
	var all []net.Listener
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "listener")
		l, failed := net.FileListener(file) // a copy
		err = errors.Join(err, failed, file.Close())
		if failed == nil {
			all = append(all, l)
		}
	}
	var told report
	if failed := json.Unmarshal(text[:n], &told); failed != nil || told.Error != "" {
		err = errors.Join(err, failed, b.Explain(errors.New(told.Error)))
	}
	if err == nil && len(all) != b.ports {
		err = errSilent
	}
	if err != nil {
		for _, l := range all {
			_ = l.Close()
		}
		return nil, err
	}
	return all, nil
}

var errSilent = errors.New("its first process ended before it had set up the network")

// received returns the descriptors of a message.
func received(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		all = append(all, fds...)
	}
	return all, nil
}

// Begin lets the program start, and passes on what it writes and reads until Finish. The caller must have started the command.
func (b *Box) Begin() error {
	b.started()
	_ = b.ours.SetDeadline(time.Time{})
	t, err := b.attach(b.master, b.tell)
	if err != nil {
		return err
	}
	b.copy()
	if b.master >= 0 {
		go t.keys()
		b.background(func() error { return t.show() })
	}
	go func() {
		for message := make([]byte, 2); ; {
			if n, err := b.ours.Read(message); err != nil || n < len(message) {
				return
			}
			select {
			case t.stops <- unix.Signal(message[1]):
			case <-b.done:
				return
			}
		}
	}()
	go func() {
		defer close(b.gone)
		t.serve(b.done)
	}()
	return nil
}

// tell sends an order to the first process, which may have ended.
func (b *Box) tell(order byte, sig unix.Signal) { _, _ = b.ours.Write([]byte{order, byte(sig)}) }

// Signal sends a signal to the program.
func (b *Box) Signal(sig os.Signal) { b.order(toOne, sig) }

// Keyboard sends a signal to the program's group, for a key of the caller's terminal.
func (b *Box) Keyboard(sig os.Signal) { b.order(toGroup, sig) }

func (b *Box) order(to byte, sig os.Signal) {
	if number, ok := sig.(syscall.Signal); ok {
		b.tell(to, number)
	}
}

// Finish passes on what the program has left, and gives the caller's terminal back. The program must have ended. A signal ends the wait
// for somebody who does not read.
func (b *Box) Finish(signals <-chan os.Signal) error {
	err := b.finish(signals)
	close(b.done)
	<-b.gone
	_ = b.ours.Close()
	return err
}

// Close ends a program that did not begin.
func (b *Box) Close() {
	b.relay.close()
	_ = b.ours.Close()
}
