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

// Box is a confined program.
type Box struct {
	ports  int
	ours   *net.UnixConn
	theirs *os.File
}

// Wrap changes cmd, which must not have started, so that it starts confined. The process that cmd starts is the first one of
// the confined program: it forwards signals to the program, and ends with its exit code. The system kills it, and with it
// everything that the program started, when the thread ends that starts cmd.
func Wrap(cmd *exec.Cmd, o Options) (*Box, error) {
	if _, known := architectures[runtime.GOARCH]; !known {
		return nil, cannot("brevet has no system call filter for %s: use amd64 or arm64", runtime.GOARCH)
	}
	text, err := json.Marshal(order{UID: os.Getuid(), GID: os.Getgid(), Ports: o.Ports, UnixSockets: o.UnixSockets, Folder: o.Folder, Hidden: o.Hidden})
	if err != nil {
		return nil, fmt.Errorf("describing the confinement: %w", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	conn, err := net.FileConn(mine) // a copy
	if err := errors.Join(err, mine.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a socket: %w", err), theirs.Close())
	}
	ours, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("opening a socket: it is of another kind"), conn.Close(), theirs.Close())
	}
	cmd.Args = append([]string{"brevet", o.Init, setUpWord, string(text), cmd.Path}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	cmd.ExtraFiles = []*os.File{theirs}
	// The first process writes its own maps of users. This process could not: the system gives the files of a process that hides
	// its memory to root, and those of its children too.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		AmbientCaps: needed,
	}
	return &Box{ports: len(o.Ports), ours: ours, theirs: theirs}, nil
}

// Listeners returns a listener for each port, in their order, when the program is about to start. The caller must have started
// the command. Connections to them come from the confined program and from nobody else.
func (b *Box) Listeners() ([]net.Listener, error) {
	_ = b.theirs.Close()                                // so that the end of the first process ends the wait
	_ = b.ours.SetDeadline(time.Now().Add(setUpWithin)) //nolint:forbidigo // for a connection, not for a decision
	text, rights := make([]byte, maxReport), make([]byte, unix.CmsgSpace(4*max(1, b.ports)))
	n, m, _, _, err := b.ours.ReadMsgUnix(text, rights)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("the confined program did not start: %w", errors.Join(errSilent, err))
	}
	fds, err := received(rights[:m])
	if err != nil {
		return nil, fmt.Errorf("receiving the confined program's listeners: %w", err)
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

// Close ends the connection to the first process.
func (b *Box) Close() { _, _ = b.ours.Close(), b.theirs.Close() }
