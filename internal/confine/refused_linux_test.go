package confine_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt is one way in which a program may try to leave its network.
type attempt struct {
	name string
	// run returns nil if the program got out.
	run func() error
	// want is what the kernel answers: a pattern for the error's text.
	want string
	// open says that the same attempt works for a program that is not confined, on any machine: it proves the attempt.
	open bool
}

// The addresses of machines that documentation uses (RFC 5737, RFC 3849), and others that lead somewhere in practice.
const (
	elsewhere  = "192.0.2.1"
	elsewhere6 = "2001:db8::1"
	metadata   = "169.254.169.254"
	resolver   = "127.0.0.53" // of systemd-resolved
)

const (
	unreachable   = "network is unreachable"
	refused       = "connection refused"
	denied        = "permission denied"
	notPermitted  = "operation not permitted"
	noFamily      = "address family not supported"
	noSuchProcess = "no such process"
	noFile        = "no such file"
	noSocket      = "socket operation on non-socket"
	// unwritable is a read-only file system, or a file of root for another user, or one that this kernel does not have.
	unwritable = "read-only file system|permission denied|no such file"
)

// attempts are the ways out that each need an explanation of their own; everyAttempt has the others.
var attempts = []attempt{
	{"TCP_to_another_machine", dial("tcp", elsewhere+":443"), unreachable, false},
	{"TCP_over_IPv6", dial("tcp6", "["+elsewhere6+"]:443"), unreachable, false},
	{"MPTCP_to_another_machine", socketTo(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP), unreachable, false},
	{"UDP_to_another_machine", datagram("udp", elsewhere+":9"), unreachable, false},
	{"UDP_over_IPv6", datagram("udp6", "["+elsewhere6+"]:9"), unreachable, false},
	{"QUIC_port", datagram("udp", elsewhere+":443"), unreachable, false},
	{"broadcast", datagram("udp", "255.255.255.255:9"), unreachable, false},
	{"private_network", dial("tcp", "10.0.0.1:80"), unreachable, false},
	{"metadata_service", dial("tcp", metadata+":80"), unreachable, false},
	{"metadata_service_over_IPv6", dial("tcp6", "[fd00:ec2::254]:80"), unreachable, false},
	{"link-local_address", datagram("udp", "169.254.1.1:9"), unreachable, false},
	{"link-local_IPv6_address", datagram("udp6", "[fe80::1%lo]:9"), unreachable, false},
	{"multicast", datagram("udp", "239.1.2.3:9"), unreachable, false},
	{"multicast_over_IPv6", datagram("udp6", "[ff05::1]:9"), unreachable, false},

	{"DNS_over_UDP", datagram("udp", elsewhere+":53"), unreachable, false},
	{"DNS_over_TCP", dial("tcp", elsewhere+":53"), unreachable, false},
	{"DNS_over_TLS", dial("tcp", elsewhere+":853"), unreachable, false},
	{"DNS_over_HTTPS", dial("tcp", "1.1.1.1:443"), unreachable, false},
	{"DNS_of_systemd", dial("tcp", resolver+":53"), refused, false},
	{"DNS_by_a_socket_of_nscd", nameService("/run/nscd/socket"), denied, false},
	{"DNS_by_a_socket_of_systemd", nameService("/run/systemd/resolve/io.systemd.Resolve"), denied, false},
	{"multicast_DNS", datagram("udp", "224.0.0.251:5353"), unreachable, false},
	{"LLMNR", datagram("udp", "224.0.0.252:5355"), unreachable, false},
	{"DNS_of_the_C_library", getent, "getent: exit status 2", false},
	{"DNS_of_Go", func() error { _, err := net.LookupHost("example.com"); return err }, "lookup example.com", false},
	{"DNS_by_a_key_of_the_kernel", requestKey, notPermitted, false},

	{"ICMP_by_a_ping_socket", socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP), denied, false},
	{"ICMP_by_a_raw_socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), denied, false},
	{"ICMPv6", socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6), denied, false},
	{"raw_IP", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW), denied, false},
	{"raw_IPv6", socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW), denied, false},
	{"SCTP", socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP), denied, false},
	{"packets_of_an_interface", socket(unix.AF_PACKET, unix.SOCK_RAW, 0), noFamily, false},
	{"virtual_sockets_to_the_hypervisor", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0), noFamily, true},
	{"sockets_of_the_kernel's_ciphers", socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), noFamily, false},
	{"Bluetooth", socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 0), noFamily, false},
	{"other_netlink", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT), denied, true},
	{"io_uring", ioUring, "function not implemented", false},
	{"new_interface", func() error { return run("ip", "link", "add", "x", "type", "dummy") }, "exit status 2", false},
	{"new_route", func() error { return run("ip", "route", "add", "default", "dev", "lo") }, "exit status 2", false},
	{"tunnel_device", open("/dev/net/tun"), noFile, false},

	{"loopback_of_the_host", fromEnv(func(address string) error { return answer("tcp", address) }, "HOST_TCP"), refused, true},
	{"loopback_of_the_host_over_IPv6", fromEnv(func(address string) error { return answer("tcp", address) }, "HOST_TCP6"), refused, true},
	{"UDP_of_the_host's_loopback", fromEnv(echo, "HOST_UDP"), refused, true},
	{"abstract_socket", fromEnv(func(name string) error { return answer("unix", "@"+name) }, "ABSTRACT_SOCKET"), denied, true},
	{"path_socket", fromEnv(func(path string) error { return answer("unix", path) }, "PATH_SOCKET"), denied, true},
	{"path_socket_by_a_datagram_pair", fromEnv(byPair, "PATH_DATAGRAMS"), denied, true},
	{"inherited_file", inherited("HOST_FILE"), "no such descriptor", true},
	{"inherited_socket", inherited("HOST_CONN"), "no such descriptor", true},

	{"ptrace_of_the_gateway", gateway(func(pid int) error { return unix.PtraceAttach(pid) }), noSuchProcess, false},
	{"memory_of_the_gateway", gateway(func(pid int) error { return open(fmt.Sprintf("/proc/%d/mem", pid))() }), noFile, false},
	{"memory_of_the_gateway_by_a_call", gateway(readMemory), noSuchProcess, false},
	{"environment_of_the_gateway", gateway(func(pid int) error { return open(fmt.Sprintf("/proc/%d/environ", pid))() }), noFile, false},
	{"descriptors_of_the_gateway", gateway(func(pid int) error { return open(fmt.Sprintf("/proc/%d/fd", pid))() }), noFile, false},
	{"descriptor_by_pidfd", gateway(takeDescriptor), noSuchProcess, false},
	{"signal_to_the_gateway", gateway(func(pid int) error { return unix.Kill(pid, 0) }), noSuchProcess, true},
	{"root_of_the_gateway", gateway(func(pid int) error { return open(fmt.Sprintf("/proc/%d/root", pid))() }), noFile, false},
	{"processes_of_the_host", strangers, "no other process", true},
	{"ptrace_of_the_first_process", func() error { return unix.PtraceAttach(1) }, notPermitted, false},
	{"memory_of_the_first_process", open("/proc/1/mem"), denied, false},
	{"descriptors_of_the_first_process", open("/proc/1/fd/0"), denied, false},

	{"setns_into_the_gateway", gateway(enter), noSuchProcess, false},
	{"setns_of_the_first_process", func() error { return enterFile("/proc/1/ns/net") }, denied, false},
	{"setns_into_its_own_network", func() error { return enterFile("/proc/self/ns/net") }, notPermitted, false},
	{"setns_into_its_parent_user_namespace", parentNamespace, notPermitted, false},
	{"nsenter", gateway(func(pid int) error { return run("nsenter", "-t", strconv.Itoa(pid), "-n", "true") }), "exit status 1", false},
	{"unshare_of_users", func() error { return run("unshare", "-U", "true") }, "exit status 1", true},
	{"unshare_of_users_and_network", func() error { return run("unshare", "-Urn", "true") }, "exit status 1", true},
	{"unshare_of_the_network", func() error { return unix.Unshare(unix.CLONE_NEWNET) }, notPermitted, false},
	{"unshare_of_mounts", func() error { return unix.Unshare(unix.CLONE_NEWNS) }, notPermitted, false},
	{"mount", func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") }, notPermitted, false},
	{"unmount_of_proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }, notPermitted, false},
	{"chroot", func() error { return unix.Chroot("/") }, notPermitted, false},
	{"new_device", func() error { return unix.Mknod(filepath.Join(os.TempDir(), "brevet-disk"), unix.S_IFBLK|0o600, 0) }, notPermitted, false},

	{"kernel_parameters", create("/proc/sys/kernel/core_pattern"), unwritable, false},
	{"kernel_requests", create("/proc/sysrq-trigger"), unwritable, false},
	{"number_of_user_namespaces", create("/proc/sys/user/max_user_namespaces"), unwritable, false},
	{"files_of_drivers", create("/sys/kernel/uevent_helper"), unwritable, false},
	{"control_groups", func() error { return os.Mkdir("/sys/fs/cgroup/brevet-test", 0o700) }, unwritable, false},
	{"disks", func() error { return open("/dev/" + os.Getenv("DISK"))() }, noFile, false},
	{"typing_into_the_terminal", typing, notPermitted, false},
	{"shared_memory_of_System_V", fromEnv(segment, "SEGMENT"), noFile, true},
}

// try runs one attempt, and prints what came of it.
func try(name string) int {
	for _, a := range slices.Concat(everyAttempt(), byMount, byInput) {
		if a.name != name {
			continue
		}
		if err := a.run(); err != nil {
			fmt.Printf("refused: %s\n", lastOf(err))
			return 0
		}
		fmt.Println("reached")
		return 0
	}
	fmt.Println("no such attempt")
	return 1
}

// lastOf returns the kernel's answer, if there is one.
func lastOf(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}

func dial(network, address string) func() error {
	return func() error {
		conn, err := net.DialTimeout(network, address, 2*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
}

func datagram(network, address string) func() error {
	return func() error {
		conn, err := net.Dial(network, address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("out"))
		return err
	}
}

// answer connects and reads what the host says.
func answer(network, address string) error {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	text, err := io.ReadAll(conn)
	if string(text) != "of the host" {
		return errors.Join(fmt.Errorf("another answered: %q", text), err)
	}
	return nil
}

// echo sends a datagram, and waits for it to come back.
func echo(address string) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Write([]byte("out")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 9))
	return err
}

func fromEnv(run func(string) error, name string) func() error {
	return func() error { return run(os.Getenv(name)) }
}

func socket(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

func socketTo(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Connect(fd, &unix.SockaddrInet4{Port: 443, Addr: [4]byte(net.ParseIP(elsewhere).To4())})
	}
}

// nameService connects to a socket of a name service, which may not exist here: the socket itself must be refused.
func nameService(path string) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
}

func getent() error {
	if err := run("getent", "ahosts", "example.com"); err != nil {
		return fmt.Errorf("getent: %w", err)
	}
	return nil
}

func run(name string, args ...string) error {
	return exec.Command(name, args...).Run()
}

// requestKey makes the kernel look up a name, by a program of the host.
func requestKey() error {
	_, err := unix.RequestKey("dns_resolver", "example.com", "", unix.KEY_SPEC_PROCESS_KEYRING)
	return err
}

func ioUring() error {
	var params [120]byte
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func open(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			_, err = f.ReadDir(1)
			return err
		}
		_, err = f.Read(make([]byte, 1))
		return err
	}
}

// create opens a file for writing, and changes nothing.
func create(path string) func() error {
	return func() error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_ = f.Close()
		}
		return err
	}
}

// byPair sends to a socket of the host from a pair of datagram sockets.
func byPair(path string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	return unix.Sendto(pair[0], []byte("out"), 0, &unix.SockaddrUnix{Name: path})
}

// inherited looks for a descriptor that the caller's parent left open: a file of this path, or a socket.
func inherited(name string) func() error {
	return func() error {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		for _, fd := range all {
			target, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			if n, _ := strconv.Atoi(fd.Name()); n > 2 && strings.HasPrefix(target, os.Getenv(name)) {
				return nil
			}
		}
		return errors.New("no such descriptor")
	}
}

func gateway(run func(pid int) error) func() error {
	return func() error {
		pid, err := strconv.Atoi(os.Getenv("GATEWAY"))
		if err != nil {
			return err
		}
		return run(pid)
	}
}

func readMemory(pid int) error {
	var here [8]byte
	local := []unix.Iovec{{Base: &here[0], Len: 8}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&here[0])), Len: 8}}, 0)
	return err
}

func takeDescriptor(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.PidfdGetfd(fd, 0, 0)
	return err
}

// enter enters the network of the gateway by its process.
func enter(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

func enterFile(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Setns(fd, 0)
}

// parentNamespace asks for the user namespace above this one.
func parentNamespace() error {
	fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	const getParent = 0xb702 // NS_GET_PARENT of linux/nsfs.h
	above, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getParent, 0)
	if errno != 0 {
		return errno
	}
	return unix.Setns(int(above), unix.CLONE_NEWUSER)
}

// strangers looks for a process whose program is not one of this attempt.
func strangers() error {
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil || len(all) == 0 {
		return errors.Join(errors.New("/proc is empty"), err)
	}
	const few = 3
	if len(all) > few {
		return nil
	}
	return errors.New("no other process")
}

// typing puts a character into the input of the terminal.
func typing() error {
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	char := byte('x')
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, keyboard.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&char))); errno != 0 {
		return errno
	}
	return nil
}

func segment(id string) error {
	n, err := strconv.Atoi(id)
	if err != nil {
		return err
	}
	_, err = unix.SysvShmGet(n, 0, 0)
	return err
}

// surroundings are servers of the host and open files, which a program could use if it were not confined.
type surroundings struct {
	environ []string
	files   []*os.File
}

func newSurroundings(t *testing.T, name string) *surroundings {
	t.Helper()
	dir, abstract := folder(t), fmt.Sprintf("brevet-test-%d-%s", os.Getpid(), name)
	path, datagrams := filepath.Join(dir, "s"), filepath.Join(dir, "d")
	tcp, tcp6 := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp6", "[::1]:0")
	packets := filepath.Join(dir, "p")
	listen(t, "unix", path)
	listen(t, "unixpacket", packets)
	listen(t, "unix", "@"+abstract)
	udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bound, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "unixgram", datagrams)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for buf := make([]byte, 9); ; {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(buf[:n], from)
		}
	}()
	conn, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	socket, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := os.Create(filepath.Join(dir, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	key := 0x62000000 | int(crc32.ChecksumIEEE([]byte(abstract))&0xffffff)
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []uintptr{unix.SYS_MSGGET, unix.SYS_SEMGET} {
		remove := ofTheHost(t, call, key)
		t.Cleanup(remove)
	}
	_, screen := terminal(t)
	queue, shared := strings.TrimPrefix(abstract, "/"), filepath.Join("/dev/shm", abstract)
	text := append([]byte(queue), 0)
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&text[0])), unix.O_RDWR|unix.O_CREAT, 0o666, 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	if err := errors.Join(unix.Fchmod(int(fd), 0o666), unix.Close(int(fd)), os.Mkdir(shared, 0o755), os.WriteFile(filepath.Join(shared, "token"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{path, datagrams, packets} {
		if err := os.Chmod(file, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&text[0])), 0, 0)
		_ = os.RemoveAll(shared)
		_, _, _, _, _ = udp.Close(), bound.Close(), conn.Close(), socket.Close(), opened.Close()
	})
	return &surroundings{files: []*os.File{opened, socket}, environ: []string{
		"HOST_TCP=" + tcp.Addr().String(), "HOST_TCP6=" + tcp6.Addr().String(), "HOST_UDP=" + udp.LocalAddr().String(),
		"ABSTRACT_SOCKET=" + abstract, "PATH_SOCKET=" + path, "PATH_DATAGRAMS=" + datagrams, "PATH_PACKETS=" + packets, "HOST_FILE=" + opened.Name(), "HOST_CONN=socket:",
		"SEGMENT=" + strconv.Itoa(key), "DISK=" + disk(), "QUEUE=" + queue, "HOST_SHM=" + filepath.Join(shared, "token"), "HOST_FOLDER=" + shared,
		"HOST_TERMINAL=" + screen, "HOST_ADDRESS=" + listen(t, "tcp", net.JoinHostPort(ownAddress(t), "0")).Addr().String(),
	}}
}

// ofTheHost makes a queue or a semaphore of System V.
func ofTheHost(t *testing.T, call uintptr, key int) (remove func()) {
	t.Helper()
	const create = unix.IPC_CREAT | 0o666
	args, control := [2]uintptr{create, 0}, uintptr(unix.SYS_MSGCTL)
	if call == unix.SYS_SEMGET {
		args, control = [2]uintptr{1, create}, unix.SYS_SEMCTL
	}
	id, _, errno := unix.Syscall(call, uintptr(key), args[0], args[1])
	if errno != 0 {
		t.Fatal(errno)
	}
	if call == unix.SYS_SEMGET {
		return func() { _, _, _ = unix.Syscall(control, id, 0, unix.IPC_RMID) }
	}
	return func() { _, _, _ = unix.Syscall(control, id, unix.IPC_RMID, 0) }
}

// terminal returns a terminal of the host that every user may open.
func terminal(t *testing.T) (keyboard *os.File, path string) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	path = fmt.Sprintf("/dev/pts/%d", n)
	if err := errors.Join(err, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	return keyboard, path
}

// ownAddress returns an address of this machine that is not of its loopback interface, if it has one.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if at, ok := one.(*net.IPNet); ok && at.IP.To4() != nil && at.IP.IsGlobalUnicast() {
			return at.IP.String()
		}
	}
	return "127.0.0.1"
}

// disk returns the name of a disk of this machine, if it has one.
func disk() string {
	all, _ := os.ReadDir("/sys/block")
	for _, one := range all {
		if _, err := os.Stat("/dev/" + one.Name()); err == nil {
			return one.Name()
		}
	}
	return "none"
}

// T12: a confined program tries every way out of its network, and into the gateway, as root and as an ordinary user. Each attempt
// that a program can make on every machine is made by one that is not confined too, and works.
func TestConfinedProgramIsRefused(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		around := newSurroundings(t, u.name)
		for _, a := range everyAttempt() {
			a.check(t, u, func(line ...string) *exec.Cmd {
				cmd := u.command(t, line...)
				cmd.Env, cmd.ExtraFiles = append(cmd.Env, around.environ...), around.files
				return cmd
			})
		}
	})
}

// T12: a file system of the kernel may be mounted twice, and a folder may have devices.
func TestKernelIsHiddenAtOtherPathsToo(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		root, file, device := filepath.Join(dir, "root"), filepath.Join(dir, "file"), filepath.Join(dir, "device")
		if err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		prefix := []string{"unshare", "-Urm", "--propagation", "private", "sh", "-ec", `mount --rbind / "$OTHER_ROOT"; mount --bind /proc/version "$KERNEL_FILE"; exec "$@"`, "sh"}
		switch {
		case os.Getuid() != 0:
			device = filepath.Join(root, "dev/null") // only root makes others
		case errors.Join(unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(1, 3))), os.Chmod(device, 0o666)) != nil:
			t.Fatal("no device")
		default:
			prefix[1] = "-m"
		}
		if u.credential != nil {
			prefix = append(prefix, "setpriv", "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups")
		}
		for _, a := range byMount {
			a.check(t, u, func(line ...string) *exec.Cmd {
				cmd := user{name: u.name}.command(t, append(prefix[:len(prefix):len(prefix)], line...)...)
				cmd.Env = append(cmd.Env, "OTHER_ROOT="+root, "KERNEL_FILE="+file, "DEVICE="+device)
				return cmd
			})
		}
	})
}

// T12: the caller's standard input may be a Unix stream socket, which the program does not get.
func TestPeerOfStandardInputIsRefused(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		around := newSurroundings(t, u.name+"-input")
		for _, a := range byInput {
			a.check(t, u, func(line ...string) *exec.Cmd {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
				t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
				cmd := u.command(t, line...)
				cmd.Env, cmd.Stdin = append(cmd.Env, around.environ...), theirs
				return cmd
			})
		}
	})
}

// check makes an attempt confined, which must be refused, and unless it is only refused then, in the open.
func (a attempt) check(t *testing.T, u user, command func(line ...string) *exec.Cmd) {
	t.Helper()
	t.Run(a.name, func(t *testing.T) {
		out, err := command(self, "launch", "{}", self, "try", a.name).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || !regexp.MustCompile(`^refused: .*(`+a.want+`)`).MatchString(got) {
			t.Errorf("got %s, %v, want it refused: %s", got, err, a.want)
		}
		if !a.open {
			return
		}
		cmd := command(self, "try", a.name)
		cmd.Env = append(cmd.Env, fmt.Sprintf("GATEWAY=%d", stranger(t, u)))
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "reached" {
			t.Errorf("got %s, %v of a program that is not confined: this test sees nothing", out, err)
		}
	})
}

// stranger returns a process of the user, as which an unconfined program may do anything.
func stranger(t *testing.T, u user) int {
	t.Helper()
	cmd := u.command(t, "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}
