package confine

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// architectures are the calling conventions that the filter knows. Only little-endian ones: the filter reads the low half of
// an argument, which is all that the kernel reads of an int.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// The offsets of what the filter reads in struct seccomp_data.
const (
	atNumber       = 0
	atArchitecture = 4
	atArguments    = 16
)

func argument(n uint32) uint32 { return atArguments + 8*n }

const (
	// newest is the last system call that this filter was written for. A newer one could open sockets. amd64 has system calls of
	// another calling convention, x32, whose numbers are greater, too.
	newest = unix.SYS_RSEQ_SLICE_YIELD
	// kindMask are the bits of a socket's type; the others are flags.
	kindMask = 0xf
	allow    = unix.SECCOMP_RET_ALLOW
)

func deny(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// step is a part of the filter: it returns what answers has for the value that it loads, or otherwise.
type step struct {
	load, mask uint32
	answers    []answer
	otherwise  []unix.SockFilter
}

// answer is what follows if the loaded value is equal to value.
type answer struct {
	value uint32
	then  []unix.SockFilter
}

func result(action uint32) []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: action}}
}

// code returns the step as a program.
func (s step) code() []unix.SockFilter {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: s.load}}
	if s.mask != 0 {
		program = append(program, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: s.mask})
	}
	for _, a := range s.answers { // each ends with a return, so whatever follows is for other values
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: a.value, Jf: uint8(len(a.then))})
		program = append(program, a.then...)
	}
	return append(program, s.otherwise...)
}

// filter returns the filter of system calls. A network namespace separates most sockets. The filter forbids the others, and what
// makes the filter useless:
//
//   - Unix sockets with a path belong to the file system. A socket pair is harmless, but a datagram socket of a pair can still
//     send to any path.
//   - AF_VSOCK leads to the hypervisor, and further families have a network of their own.
//   - Raw sockets, and protocols but TCP and UDP.
//   - io_uring opens sockets without a call that a filter sees.
//   - Key requests: the kernel starts a program of the host that looks up names in DNS.
//   - BPF opens what the host's programs have put into a file system, even where that is read-only.
//   - Performance events and the kernel's log tell about the whole machine, if the host allows them to all users.
//   - Files by handles, which need no path.
//   - userfaultfd stops the kernel in the middle of a call, for which attacks on the kernel use it.
//   - TIOCSTI and TIOCLINUX type into the terminal, for the shell that runs when the program has ended. TIOCSETD loads drivers.
//   - System calls of other calling conventions, whose arguments the filter cannot read, and those that it does not know.
func filter(unixSockets bool) []unix.SockFilter {
	local, datagrams := deny(unix.EACCES), deny(unix.EACCES)
	if unixSockets {
		local, datagrams = allow, allow
	}
	protocol := step{load: argument(2), answers: []answer{
		{0, result(allow)}, {unix.IPPROTO_TCP, result(allow)}, {unix.IPPROTO_UDP, result(allow)}, {unix.IPPROTO_MPTCP, result(allow)},
	}, otherwise: result(deny(unix.EACCES))}.code()
	internet := step{load: argument(1), mask: kindMask, answers: []answer{
		{unix.SOCK_STREAM, protocol}, {unix.SOCK_DGRAM, protocol},
	}, otherwise: result(deny(unix.EACCES))}.code()
	routes := step{load: argument(2), answers: []answer{{unix.NETLINK_ROUTE, result(allow)}}, otherwise: result(deny(unix.EACCES))}.code()
	socket := step{load: argument(0), answers: []answer{
		{unix.AF_INET, internet}, {unix.AF_INET6, internet}, {unix.AF_NETLINK, routes}, {unix.AF_UNIX, result(local)},
	}, otherwise: result(deny(unix.EAFNOSUPPORT))}.code()
	kinds := step{load: argument(1), mask: kindMask, answers: []answer{
		{unix.SOCK_STREAM, result(allow)}, {unix.SOCK_SEQPACKET, result(allow)},
	}, otherwise: result(datagrams)}.code()
	pair := step{load: argument(0), answers: []answer{{unix.AF_UNIX, kinds}}, otherwise: result(deny(unix.EAFNOSUPPORT))}.code()
	terminal := step{load: argument(1), answers: []answer{
		{unix.TIOCSTI, result(deny(unix.EPERM))}, {unix.TIOCLINUX, result(deny(unix.EPERM))}, {unix.TIOCSETD, result(deny(unix.EPERM))},
	}, otherwise: result(allow)}.code()
	calls := step{load: atNumber, answers: []answer{
		{unix.SYS_SOCKET, socket},
		{unix.SYS_SOCKETPAIR, pair},
		{unix.SYS_IOCTL, terminal},
		{unix.SYS_IO_URING_SETUP, result(deny(unix.ENOSYS))}, // programs then use other calls
		{unix.SYS_IO_URING_ENTER, result(deny(unix.ENOSYS))},
		{unix.SYS_IO_URING_REGISTER, result(deny(unix.ENOSYS))},
		{unix.SYS_ADD_KEY, result(deny(unix.EPERM))},
		{unix.SYS_REQUEST_KEY, result(deny(unix.EPERM))},
		{unix.SYS_KEYCTL, result(deny(unix.EPERM))},
		{unix.SYS_BPF, result(deny(unix.EPERM))},
		{unix.SYS_PERF_EVENT_OPEN, result(deny(unix.EPERM))},
		{unix.SYS_SYSLOG, result(deny(unix.EPERM))},
		{unix.SYS_OPEN_BY_HANDLE_AT, result(deny(unix.EPERM))},
		{unix.SYS_USERFAULTFD, result(deny(unix.EPERM))},
	}, otherwise: append([]unix.SockFilter{{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: newest, Jf: 1}},
		append(result(deny(unix.ENOSYS)), result(allow)...)...)}.code()
	return step{load: atArchitecture, answers: []answer{{architectures[runtime.GOARCH], calls}}, otherwise: result(deny(unix.ENOSYS))}.code()
}

// filterCalls filters the system calls of this thread, and of what it executes, for good.
func filterCalls(unixSockets bool) error {
	program := filter(unixSockets)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))) //nolint:gosec // no other way
	if errno != 0 {
		return fmt.Errorf("filtering system calls (the kernel needs CONFIG_SECCOMP_FILTER): %w", errno)
	}
	return nil
}

// The first version of Landlock with scopes, and the length of its rule set then.
const (
	scopesSince  = 6
	rulesetBytes = 24
)

// scope keeps this thread, and what it executes, from abstract Unix sockets and from signals of others by Landlock. The
// namespaces do so already: this is a second wall, where the kernel has it.
func scope() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno == unix.ENOSYS, errno == unix.EOPNOTSUPP, errno == 0 && version < scopesSince:
		return nil // the kernel has no such scopes
	case errno != 0:
		return fmt.Errorf("asking for the version of Landlock: %w", errno)
	}
	rules := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), rulesetBytes, 0) //nolint:gosec // no other way
	if errno != 0 {
		return fmt.Errorf("making Landlock rules: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("applying Landlock rules: %w", errno)
	}
	return unix.Close(int(fd))
}
