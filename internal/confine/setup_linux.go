package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The stages of the first process. It executes itself between them, because Go has many threads, and only one of them gives up
// its capabilities and gets the filter.
const (
	setUpWord = "set-up"
	runWord   = "run"
)

// Main is the first process of a confined program. args are those that follow Options.Init. It returns the program's exit code.
func Main(args []string) (int, error) {
	const fewest = 3
	if len(args) < fewest {
		return 1, errors.New("brevet exec --egress --confine runs this command; it is of no use otherwise")
	}
	switch args[0] {
	case setUpWord:
		var o order
		if err := json.Unmarshal([]byte(args[1]), &o); err != nil {
			return 1, fmt.Errorf("reading the order: %w", err)
		}
		return 1, setUp(o, args[2:])
	case runWord:
		// Otherwise the program could read and change this process, which is its own user's.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return 1, fmt.Errorf("protecting the first process: %w", err)
		}
		return lead(args[1], args[2:])
	default:
		return 1, fmt.Errorf("no stage %s", args[0])
	}
}

// setUp prepares the namespaces, gives the listeners to the caller, gives up everything, and executes the next stage. It returns
// if that fails, with nil if it has told the caller why.
func setUp(o order, line []string) error {
	runtime.LockOSThread() // for good: what follows changes this thread, which then becomes the whole process
	unix.CloseOnExec(control)
	fds, err := prepare(o)
	var told report
	if err != nil {
		told.Error = err.Error()
	}
	text, failed := json.Marshal(told)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := errors.Join(failed, unix.Sendmsg(control, text, rights, nil, 0)); err != nil || told.Error != "" {
		return err
	}
	if _, err := unix.FcntlInt(control, unix.F_SETFD, 0); err != nil { // for the next stage
		return fmt.Errorf("keeping the connection to the caller: %w", err)
	}
	next := append([]string{"brevet", os.Args[1], runWord}, line...)
	return fmt.Errorf("executing the first process again: %w", syscall.Exec("/proc/self/exe", next, os.Environ())) //nolint:forbidigo,gosec // the program's environment
}

// prepare returns the listeners' descriptors, once this thread can do nothing that a confined program must not do.
func prepare(o order) ([]int, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("not the first process of a namespace")
	}
	if err := mapUser(o); err != nil {
		return nil, err
	}
	if err := hideMachine(o.Folder, o.Hidden); err != nil {
		return nil, err
	}
	if err := startLoopback(); err != nil {
		return nil, err
	}
	var fds []int
	for _, port := range o.Ports {
		fd, err := listenAt(port)
		if err != nil {
			return nil, err
		}
		fds = append(fds, fd)
	}
	if len(o.Screens) > 0 {
		master, err := newScreens(o.Screens)
		if err != nil {
			return nil, err
		}
		fds = append(fds, master)
	}
	if err := dropCapabilities(); err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("forbidding new privileges: %w", err)
	}
	// The kernel may start a program of the host for a crash, outside of all namespaces, and gives it the memory of the crashed one.
	// It does not start it for this limit (core(5)); nobody can raise it again.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return nil, fmt.Errorf("forbidding core dumps: %w", err)
	}
	if err := scope(); err != nil {
		return nil, err
	}
	// End with the caller's thread, which serves the listeners. It is a property of this thread, so what the caller set may be another's.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("binding the program to its caller: %w", err)
	}
	return fds, filterCalls(o.UnixSockets)
}

// newScreens makes a terminal of the program's own /dev/pts its standard files, and returns the other side.
func newScreens(files []int) (int, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return 0, err
	}
	for _, fd := range files {
		if err := unix.Dup3(slave, fd, 0); err != nil {
			return 0, fmt.Errorf("making a terminal: %w", err)
		}
	}
	return master, unix.Close(slave)
}

// mapUser makes the program's user and group look the same inside as outside. No other user exists inside.
func mapUser(o order) error {
	for _, file := range []struct{ name, text string }{
		{"setgroups", "deny"}, {"uid_map", fmt.Sprintf("%d %[1]d 1", o.UID)}, {"gid_map", fmt.Sprintf("%d %[1]d 1", o.GID)},
	} {
		if err := write("/proc/self/"+file.name, file.text); err != nil {
			return fmt.Errorf("mapping the user into its user namespace: %w", err)
		}
	}
	return nil
}

// write writes a file that exists.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// startLoopback starts the only interface of the network namespace.
func startLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("starting the loopback interface: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("starting the loopback interface: %w", err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("starting the loopback interface: %w", err)
	}
	return nil
}

// listenAt opens a listener in this network namespace. It makes no use of Go's own listeners, which run on other threads.
func listenAt(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("listening on port %d: %w", port, err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte(net.IPv4(127, 0, 0, 1).To4())}),
		unix.Listen(fd, unix.SOMAXCONN),
	)
	if err != nil {
		return 0, fmt.Errorf("listening on port %s: %w", strconv.Itoa(port), errors.Join(err, unix.Close(fd)))
	}
	return fd, nil
}

// dropCapabilities gives up all capabilities, and the ways in which root and programs of the file system get them.
func dropCapabilities() error {
	for capability := uintptr(0); ; capability++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel knows no more
			break
		}
		if err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	// From linux/securebits.h: root gets no capabilities, and nobody raises ambient ones; both locked.
	const noRoot, noRootLocked, noAmbient, noAmbientLocked = 1 << 0, 1 << 1, 1 << 6, 1 << 7
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot|noRootLocked|noAmbient|noAmbientLocked, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}
