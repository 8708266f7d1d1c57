package confine_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// everyAttempt is everything that a confined program may not do.
func everyAttempt() []attempt {
	return slices.Concat(attempts, byAddress, bySocket, byCall, byFile, callsOfTheProcessor)
}

// byAddress are addresses that lead somewhere in practice.
var byAddress = []attempt{
	{"IPv4_in_IPv6", mapped(elsewhere, 443), unreachable, false},
	{"metadata_service_as_IPv4_in_IPv6", mapped(metadata, 80), unreachable, false},
	{"IPv4_by_NAT64", dial("tcp6", "[64:ff9b::c000:201]:443"), unreachable, false},
	{"IPv4_by_6to4", dial("tcp6", "[2002:c000:201::1]:443"), unreachable, false},
	{"metadata_service_of_containers_at_AWS", dial("tcp", "169.254.170.2:80"), unreachable, false},
	{"identity_of_pods_at_AWS", dial("tcp", "169.254.170.23:80"), unreachable, false},
	{"metadata_service_of_Alibaba", dial("tcp", "100.100.100.200:80"), unreachable, false},
	{"wire_server_of_Azure", dial("tcp", "168.63.129.16:80"), unreachable, false},
	{"gateway_of_Docker", dial("tcp", "172.17.0.1:2375"), unreachable, false},
	{"host_of_podman", dial("tcp", "169.254.1.2:80"), unreachable, false},
	{"host_of_a_user_network", dial("tcp", "10.0.2.2:22"), unreachable, false},
	{"API_of_Kubernetes", dial("tcp", "10.96.0.1:443"), unreachable, false},
	{"kubelet", dial("tcp", "127.0.0.1:10255"), refused, false},
	{"unspecified_address", dial("tcp", "0.0.0.0:22"), refused, false},
	{"unspecified_IPv6_address", dial("tcp6", "[::]:22"), refused, false},
	{"address_of_the_host", fromEnv(func(address string) error { return answer("tcp", address) }, "HOST_ADDRESS"), unreachable + "|" + refused, true},
	{"all_nodes_of_a_link", datagram("udp6", "[ff02::1%lo]:9"), unreachable, false},
	{"DHCP", datagram("udp", "255.255.255.255:67"), unreachable, false},
	{"NTP", datagram("udp", elsewhere+":123"), unreachable, false},
	{"syslog_over_UDP", datagram("udp", elsewhere+":514"), unreachable, false},
	{"DNS_over_QUIC", datagram("udp", elsewhere+":853"), unreachable, false},
	{"data_in_the_first_packet", fastOpen, unreachable, false},
	{"interfaces_of_the_host", interfaces, "no other interface", false},
	{"socket_of_an_interface", option(unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0\x00"), "no such device", false},
	{"socket_with_a_foreign_address", option(unix.SOL_IP, unix.IP_TRANSPARENT, "\x01\x00\x00\x00"), notPermitted, false},
	{"socket_with_a_mark", option(unix.SOL_SOCKET, unix.SO_MARK, "\x01\x00\x00\x00"), notPermitted, false},
}

// bySocket are kinds of sockets.
var bySocket = []attempt{
	{"packets_by_an_old_call", socket(unix.AF_INET, unix.SOCK_PACKET, 0x0300), denied, false},
	{"UDP-Lite", socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE), denied, false},
	{"DCCP", socket(unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP), denied, false},
	{"L2TP", socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP), denied, false},
	{"SMC_as_TCP", socket(unix.AF_INET, unix.SOCK_STREAM, 256), denied, false},
	{"SMC", socket(unix.AF_SMC, unix.SOCK_STREAM, 0), noFamily, false},
	{"XDP", socket(unix.AF_XDP, unix.SOCK_RAW, 0), noFamily, false},
	{"keys_of_IPsec", socket(unix.AF_KEY, unix.SOCK_RAW, 2), noFamily, false},
	{"TIPC", socket(unix.AF_TIPC, unix.SOCK_SEQPACKET, 0), noFamily, false},
	{"RDS", socket(unix.AF_RDS, unix.SOCK_SEQPACKET, 0), noFamily, false},
	{"RxRPC", socket(unix.AF_RXRPC, unix.SOCK_DGRAM, unix.AF_INET), noFamily, false},
	{"CAN", socket(unix.AF_CAN, unix.SOCK_RAW, 1), noFamily, false},
	{"PPP", socket(unix.AF_PPPOX, unix.SOCK_STREAM, 0), noFamily, false},
	{"Qualcomm's_router", socket(unix.AF_QIPCRTR, unix.SOCK_DGRAM, 0), noFamily, false},
	{"MCTP", socket(unix.AF_MCTP, unix.SOCK_DGRAM, 0), noFamily, false},
	{"NFC", socket(unix.AF_NFC, unix.SOCK_SEQPACKET, 0), noFamily, false},
	{"LLC", socket(unix.AF_LLC, unix.SOCK_STREAM, 0), noFamily, false},
	{"X.25", socket(unix.AF_X25, unix.SOCK_SEQPACKET, 0), noFamily, false},
	{"netlink_for_sockets", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG), denied, false},
	{"netlink_for_filters", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER), denied, false},
	{"netlink_for_IPsec", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM), denied, false},
	{"netlink_for_the_audit", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT), denied, false},
	{"netlink_for_processes", socket(unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_CONNECTOR), denied, false},
	{"generic_netlink", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC), denied, true},
	{"Unix_datagrams", socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0), denied, true},
	{"Unix_packets", socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0), denied, true},
	{"raw_Unix_socket", socket(unix.AF_UNIX, unix.SOCK_RAW, 0), denied, true},
	{"pair_of_raw_Unix_sockets", pair(unix.AF_UNIX, unix.SOCK_RAW), denied, true},
	{"pair_of_TIPC_sockets", pair(unix.AF_TIPC, unix.SOCK_STREAM), noFamily, false},
	{"Docker", nameService("/run/docker.sock"), denied, false},
	{"containerd", nameService("/run/containerd/containerd.sock"), denied, false},
	{"D-Bus_of_the_system", nameService("/run/dbus/system_bus_socket"), denied, false},
	{"D-Bus_of_the_user", nameService("/run/user/1000/bus"), denied, false},
	{"X11", nameService("/tmp/.X11-unix/X0"), denied, false},
	{"systemd", nameService("/run/systemd/private"), denied, false},
	{"PostgreSQL_of_the_host", nameService("/run/postgresql/.s.PGSQL.5432"), denied, false},
	{"agent_of_SSH", nameService("/tmp/ssh-agent.sock"), denied, false},
	{"path_socket_by_a_connected_pair", fromEnv(again(unix.SOCK_STREAM), "PATH_SOCKET"), "already connected", false},
	{"path_socket_by_a_pair_whose_peer_is_gone", fromEnv(alone, "PATH_SOCKET"), "already connected", false},
	{"path_socket_by_a_pair_of_packets", fromEnv(again(unix.SOCK_SEQPACKET), "PATH_PACKETS"), "already connected", false},
	{"listening_by_a_pair", listening, "invalid argument", false},
}

// byCall are system calls.
var byCall = []attempt{
	{"io_uring_of_another", func() error { return errnoOf(unix.SYS_IO_URING_ENTER, ^uintptr(0)) }, "function not implemented", false},
	{"io_uring_that_needs_no_descriptor", func() error { return errnoOf(unix.SYS_IO_URING_REGISTER, ^uintptr(0)) }, "function not implemented", false},
	{"BPF_map", bpf(0, unsafe.Pointer(&[9]uint32{2, 4, 4, 1})), notPermitted, false},
	{"BPF_of_the_host", bpfFile, notPermitted, false},
	{"BPF_program", bpf(5, unsafe.Pointer(&[16]uint32{1})), notPermitted, false},
	{"performance_of_the_processor", performance(-1, 0), notPermitted, false},
	{"performance_of_a_process", performance(0, -1), notPermitted, false},
	{"faults_that_the_program_handles", func() error { return errnoOf(unix.SYS_USERFAULTFD, 1) }, notPermitted, false},
	{"log_of_the_kernel", func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 99)); return err }, notPermitted, false},
	{"file_by_a_handle", byHandle, notPermitted, false},
	{"system_call_of_a_newer_kernel", func() error { return errnoOf(999) }, "function not implemented", false},
	{"key_of_the_user", func() error { return errnoOf(unix.SYS_KEYCTL, 0, ^uintptr(3), 1) }, notPermitted, false},
	{"keys_of_the_session", func() error { return errnoOf(unix.SYS_KEYCTL, 1, 0) }, notPermitted, true},
	{"new_key", func() error { _, err := unix.AddKey("user", "brevet", []byte("x"), -3); return err }, notPermitted, false},
	{"key_of_the_host", func() error { _, err := unix.RequestKey("user", "brevet", "x", 0); return err }, notPermitted, false},
	{"POSIX_queue_of_the_host", fromEnv(queue, "QUEUE"), noFile, true},
	{"queue_of_System_V", fromEnv(ofSystemV(unix.SYS_MSGGET), "SEGMENT"), noFile, true},
	{"semaphore_of_System_V", fromEnv(ofSystemV(unix.SYS_SEMGET), "SEGMENT"), noFile, true},
	{"process_of_the_host_by_pidfd", gateway(func(pid int) error { _, err := unix.PidfdOpen(pid, 0); return err }), noSuchProcess, true},
	{"seizing_the_gateway", gateway(func(pid int) error { return errnoOf(unix.SYS_PTRACE, 0x4206, uintptr(pid)) }), noSuchProcess, false},
	{"writing_the_gateway's_memory", gateway(writeMemory), noSuchProcess, false},
	{"limits_of_the_gateway", gateway(func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, new(unix.Rlimit)) }), noSuchProcess, true},
	{"priority_of_the_gateway", gateway(func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 19) }), noSuchProcess, true},
	{"processors_of_the_gateway", gateway(func(pid int) error { return unix.SchedGetaffinity(pid, new(unix.CPUSet)) }), noSuchProcess, true},
	{"signal_to_the_gateway's_thread", gateway(func(pid int) error { return unix.Tgkill(pid, pid, 0) }), noSuchProcess, true},
	{"signal_to_the_gateway's_group", gateway(func(pid int) error { return unix.Kill(-pid, 0) }), noSuchProcess, false},
	{"memory_of_the_gateway_elsewhere", gateway(func(pid int) error { return errnoOf(unix.SYS_MOVE_PAGES, uintptr(pid)) }), noSuchProcess, true},
	{"writing_the_first_process's_memory", func() error { return writeMemory(1) }, notPermitted, false},
	{"descriptor_of_the_first_process", func() error { return takeDescriptor(1) }, notPermitted, false},
	{"comparison_with_the_first_process", func() error { return errnoOf(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 2) }, notPermitted, false},
	{"namespaces_of_the_first_process_by_pidfd", func() error { return enter(1) }, notPermitted, false},
	{"users_by_the_newest_call", newUsers, "no space left on device", true},
	{"unshare_of_names", func() error { return unix.Unshare(unix.CLONE_NEWUTS) }, notPermitted, false},
	{"unshare_of_IPC", func() error { return unix.Unshare(unix.CLONE_NEWIPC) }, notPermitted, false},
	{"unshare_of_processes", func() error { return unix.Unshare(unix.CLONE_NEWPID) }, notPermitted, false},
	{"unshare_of_control_groups", func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) }, notPermitted, false},
	{"bind_mount_over_the_authority", func() error { return unix.Mount("/etc/hosts", "/etc/passwd", "", unix.MS_BIND, "") }, notPermitted, false},
	{"copy_of_a_mount", func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err }, notPermitted, false},
	{"new_file_system", func() error { _, err := unix.Fsopen("tmpfs", 0); return err }, notPermitted, false},
	{"devices_again", func() error {
		return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NODEV})
	}, notPermitted, false},
	{"writing_to_the_kernel_again", func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, notPermitted, false},
	{"unmount_of_the_devices", func() error { return unix.Unmount("/dev", unix.MNT_DETACH) }, notPermitted, false},
	{"new_root", func() error { return unix.PivotRoot("/", "/") }, notPermitted, false},
	{"new_tunnel_device", func() error {
		return unix.Mknod(filepath.Join(os.TempDir(), "brevet-tun"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200)))
	}, notPermitted, false},
	{"capabilities", capabilities, notPermitted, false},
	{"capability_for_programs", func() error {
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0)
	}, notPermitted, false},
	{"capabilities_of_root", func() error { return unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0) }, notPermitted, false},
	{"new_privileges", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }, "invalid argument", false},
	{"no_filter", func() error { return unix.Prctl(unix.PR_SET_SECCOMP, 0, 0, 0, 0) }, "invalid argument", false},
	{"another_user", func() error { return syscall.Setresuid(1, 1, 1) }, "invalid argument", false},
	{"another_group", func() error { return syscall.Setresgid(1, 1, 1) }, "invalid argument", false},
	{"more_groups", func() error { return syscall.Setgroups([]int{1}) }, notPermitted, false},
	{"core_dumps", func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 4096, Max: 4096}) }, notPermitted, false},
	{"priority_of_the_kernel", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) }, denied, false},
	{"time_of_the_machine", now, notPermitted, false},
	{"name_of_the_machine", hostname, notPermitted, false},
	{"restart_of_the_machine", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) }, notPermitted, false},
	{"module", func() error { return unix.InitModule(make([]byte, 9), "") }, notPermitted + "|function not implemented", false},
	{"another_kernel", func() error { return errnoOf(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) }, notPermitted + "|function not implemented", false},
	{"accounts_of_processes", func() error { return unix.Acct("/tmp/brevet") }, notPermitted + "|function not implemented", false},
	{"swap", func() error { return errnoOf(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(&[]byte("/none\x00")[0]))) }, notPermitted, false},
	{"files_that_others_open", func() error { _, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT, 0); return err }, notPermitted, false},
	{"console_commands", terminalCall(unix.TIOCLINUX), notPermitted, false},
	{"driver_for_the_terminal", terminalCall(unix.TIOCSETD), notPermitted, true},
	{"terminal_of_the_console", terminalCall(unix.TIOCCONS), notPermitted + "|invalid argument", false},
}

// byFile are files by which a program reaches other programs or the kernel.
var byFile = []attempt{
	{"shared_memory_of_the_host", fromEnv(openNow, "HOST_SHM"), noFile, true},
	{"folder_of_another_sandbox", fromEnv(openNow, "HOST_FOLDER"), noFile, true},
	{"terminal_of_the_host", fromEnv(openTerminal, "HOST_TERMINAL"), noFile, true},
	{"POSIX_queues", open("/dev/mqueue"), noFile, false},
	{"console", create("/dev/console"), noFile, false},
	{"virtual_console", create("/dev/tty1"), noFile, false},
	{"memory_of_the_machine", open("/dev/mem"), noFile, false},
	{"messages_of_the_kernel", create("/dev/kmsg"), noFile, false},
	{"virtual_machines", create("/dev/kvm"), noFile, false},
	{"device_for_virtual_sockets", create("/dev/vsock"), noFile, false},
	{"backend_of_virtual_sockets", create("/dev/vhost-vsock"), noFile, false},
	{"file_systems_of_users", create("/dev/fuse"), noFile, false},
	{"loop_devices", create("/dev/loop-control"), noFile, false},
	{"device_mapper", create("/dev/mapper/control"), noFile, false},
	{"virtual_keyboard", create("/dev/uinput"), noFile, false},
	{"memory_of_the_kernel", open("/proc/kcore"), denied + "|" + noFile, false},
	{"messages_of_the_kernel_in_proc", open("/proc/kmsg"), denied, false},
	{"keys_in_proc", open("/proc/keys"), denied + "|" + noFile, false},
	{"users_of_keys", open("/proc/key-users"), denied + "|" + noFile, false},
	{"timers_of_the_host", open("/proc/timer_list"), denied + "|" + noFile, false},
	{"pages_of_the_machine", open("/proc/kpageflags"), denied + "|" + noFile, false},
	{"memory_types", create("/proc/mtrr"), unwritable, false},
	{"pressure_of_the_machine", create("/proc/pressure/cpu"), unwritable, false},
	{"interrupts", create("/proc/irq/default_smp_affinity"), unwritable, false},
	{"path_of_modprobe", create("/proc/sys/kernel/modprobe"), unwritable, false},
	{"binary_formats", create("/proc/sys/fs/binfmt_misc/register"), unwritable, false},
	{"forwarding_of_packets", create("/proc/sys/net/ipv4/ip_forward"), unwritable, false},
	{"next_process", create("/proc/sys/kernel/ns_last_pid"), unwritable, false},
	{"map_of_users", func() error { return os.WriteFile("/proc/self/uid_map", []byte("0 0 1"), 0) }, notPermitted, false},
	{"rescue_from_the_lack_of_memory", func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }, denied, false},
	{"arguments_of_the_gateway", gateway(func(pid int) error { return open(fmt.Sprintf("/proc/%d/cmdline", pid))() }), noFile, true},
	{"executable_of_the_first_process", func() error { return create("/proc/1/exe")() }, denied, false},
	{"root_of_the_first_process", open("/proc/1/root/"), denied, false},
	{"folder_of_the_first_process", open("/proc/1/cwd/"), denied, false},
	{"memory_map_of_the_first_process", open("/proc/1/maps"), denied, false},
	{"users_of_the_first_process", func() error { return os.WriteFile("/proc/1/uid_map", []byte("0 0 1"), 0) }, denied + "|" + notPermitted, false},
	{"sleep_of_the_machine", create("/sys/power/state"), unwritable, false},
	{"memory_management", create("/sys/kernel/mm/transparent_hugepage/enabled"), unwritable, false},
	{"reset_of_a_device", create("/sys/bus/pci/rescan"), unwritable, false},
	{"group_of_processes", create("/sys/fs/cgroup/cgroup.procs"), unwritable, false},
	{"freezing_of_processes", func() error { return os.Mkdir("/sys/fs/cgroup/freezer/brevet-test", 0o700) }, unwritable, false},
	{"helper_for_empty_groups", create("/sys/fs/cgroup/memory/release_agent"), unwritable, false},
	{"BPF_file_system", func() error { return os.Mkdir("/sys/fs/bpf/brevet-test", 0o700) }, unwritable + "|" + notPermitted, false},
	{"tracing", create("/sys/kernel/tracing/tracing_on"), unwritable, false},
	{"debugging_of_drivers", create("/sys/kernel/debug/sched/verbose"), unwritable, false},
	{"variables_of_the_firmware", create("/sys/firmware/efi/efivars/brevet"), unwritable, false},
}

// byMount are files of the kernel at another path than usual: in a copy of the root folder, as containers have one.
var byMount = []attempt{
	{"process_of_the_host_at_another_path", inRoot("proc/1/cmdline", openNow), noFile, true},
	{"device_at_another_path", inRoot("dev/null", createNow), noFile + "|" + denied, true},
	{"disks_at_another_path", inRoot("dev/"+disk(), openNow), noFile, false},
	{"virtual_sockets_at_another_path", inRoot("dev/vsock", createNow), noFile, false},
	{"terminals_at_another_path", inRoot("dev/ptmx", createNow), noFile + "|" + denied, true},
	{"drivers_at_another_path", inRoot("sys/kernel/mm/transparent_hugepage/enabled", createNow), noFile, false},
	{"control_groups_at_another_path", inRoot("sys/fs/cgroup/cgroup.procs", createNow), noFile, false},
	{"kernel_parameters_at_another_path", inRoot("proc/sys/kernel/core_pattern", createNow), noFile, false},
	{"requests_to_the_kernel_at_another_path", inRoot("proc/sysrq-trigger", createNow), noFile, false},
	{"device_of_a_folder", fromEnv(createNow, "DEVICE"), denied + "|" + noFile, true},
	{"one_file_of_the_kernel", fromEnv(openNow, "KERNEL_FILE"), denied, true},
}

// byInput are ways to reach the peer of the caller's standard input, which is a Unix stream socket.
var byInput = []attempt{
	{"descriptor_of_the_peer", peer(func(pidfd int) error { _, err := unix.PidfdGetfd(pidfd, 0, 0); return err }), "no peer", false},
	{"signal_to_the_peer", peer(func(pidfd int) error { return unix.PidfdSendSignal(pidfd, 0, nil, 0) }), "no peer", false},
	{"namespaces_of_the_peer", peer(func(pidfd int) error { return unix.Setns(pidfd, unix.CLONE_NEWNET) }), "no peer", false},
	{"network_of_the_peer", func() error { return errnoOf(unix.SYS_IOCTL, 0, 0x894c) }, "inappropriate ioctl", false}, // SIOCGSKNS
	{"another_socket_by_standard_input", fromEnv(func(path string) error { return unix.Connect(0, &unix.SockaddrUnix{Name: path}) }, "PATH_SOCKET"), noSocket, false},
	{"datagram_by_standard_input", fromEnv(func(path string) error {
		return unix.Sendto(0, []byte("out"), 0, &unix.SockaddrUnix{Name: path})
	}, "PATH_DATAGRAMS"), noSocket, false},
	{"end_of_the_connection", func() error {
		return errnoOf(unix.SYS_CONNECT, 0, uintptr(unsafe.Pointer(&[16]byte{})), 16)
	}, noSocket, false},
	{"server_at_standard_input", func() error { return unix.Listen(0, 1) }, noSocket, false},
}

// errnoOf makes a system call, and returns what the kernel answers.
func errnoOf(number uintptr, args ...uintptr) error {
	var all [6]uintptr
	copy(all[:], args)
	if _, _, errno := unix.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5]); errno != 0 {
		return errno
	}
	return nil
}

// fastOpen sends data with the packet that opens a connection.
func fastOpen() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, []byte("out"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: 443, Addr: [4]byte(net.ParseIP(elsewhere).To4())})
}

// mapped connects to an address of IPv4 by a socket of IPv6.
func mapped(address string, port int) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Connect(fd, &unix.SockaddrInet6{Port: port, Addr: [16]byte(net.ParseIP(address).To16())})
	}
}

func interfaces() error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.Flags&net.FlagUp != 0 && one.Flags&net.FlagLoopback == 0 {
			return nil
		}
	}
	return errors.New("no other interface")
}

func option(level, name int, value string) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.SetsockoptString(fd, level, name, value)
	}
}

func pair(family, kind int) func() error {
	return func() error {
		_, err := unix.Socketpair(family, kind|unix.SOCK_CLOEXEC, 0)
		return err
	}
}

// again connects a socket of a pair to a socket of the host.
func again(kind int) func(string) error {
	return func(path string) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fds[0], &unix.SockaddrUnix{Name: path})
	}
}

func alone(path string) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Close(fds[1]), unix.Connect(fds[0], &unix.SockaddrUnix{Name: path}))
}

// listening lets a program of the host connect to a socket of a pair.
func listening() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("brevet-%d-%d", os.Getuid(), os.Getpid()))
	defer func() { _ = os.Remove(path) }()
	_ = unix.Bind(fds[0], &unix.SockaddrUnix{Name: path})
	return unix.Listen(fds[0], 1)
}

func bpf(command uintptr, attr unsafe.Pointer) func() error {
	return func() error { return errnoOf(unix.SYS_BPF, command, uintptr(attr), 36) }
}

// bpfFile opens a map or a program that the host has put into a file system.
func bpfFile() error {
	path := []byte("/sys/fs/bpf/brevet\x00")
	attr := [2]uint64{uint64(uintptr(unsafe.Pointer(&path[0])))}
	return errnoOf(unix.SYS_BPF, 7, uintptr(unsafe.Pointer(&attr)), 16)
}

func performance(pid, cpu int) func() error {
	return func() error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
		_, err := unix.PerfEventOpen(&attr, pid, cpu, -1, 0)
		return err
	}
}

func byHandle() error {
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.OpenByHandleAt(root, unix.NewFileHandle(1, make([]byte, 8)), unix.O_RDONLY)
	return err
}

// now sets the clock to what it is.
func now() error {
	var clock unix.Timeval
	return errors.Join(unix.Gettimeofday(&clock), unix.Settimeofday(&clock))
}

// hostname gives the machine the name that it has.
func hostname() error {
	name, err := os.Hostname()
	return errors.Join(err, unix.Sethostname([]byte(name)))
}

func queue(name string) error {
	text := append([]byte(name), 0)
	return errnoOf(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&text[0])), unix.O_RDWR)
}

func ofSystemV(call uintptr) func(string) error {
	return func(key string) error {
		var n uintptr
		if _, err := fmt.Sscan(key, &n); err != nil {
			return err
		}
		return errnoOf(call, n)
	}
}

func writeMemory(pid int) error {
	var here [8]byte
	local := []unix.Iovec{{Base: &here[0], Len: 8}}
	_, err := unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&here[0])), Len: 8}}, 0)
	return err
}

// newUsers makes a process with users of its own by clone3, whose arguments no filter sees.
func newUsers() error {
	args := [11]uint64{unix.CLONE_NEWUSER, 0, 0, 0, uint64(unix.SIGCHLD)}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 88, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	return nil
}

func capabilities() error {
	all := [2]unix.CapUserData{{Effective: 1, Permitted: 1}}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &all[0])
}

// terminalCall makes a call to a terminal of the program.
func terminalCall(number uintptr) func() error {
	return func() error {
		keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		var zero [16]byte
		return errnoOf(unix.SYS_IOCTL, keyboard.Fd(), number, uintptr(unsafe.Pointer(&zero)))
	}
}

func openNow(path string) error {
	f, err := os.Open(path)
	if err == nil {
		_ = f.Close()
	}
	return err
}

func createNow(path string) error { return create(path)() }

func openTerminal(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func inRoot(path string, run func(string) error) func() error {
	return func() error { return run(filepath.Join(os.Getenv("OTHER_ROOT"), path)) }
}

// peer gets the process at the other end of standard input.
func peer(run func(pidfd int) error) func() error {
	return func() error {
		const peerPidfd = 77 // SO_PEERPIDFD of asm-generic/socket.h
		pidfd, err := unix.GetsockoptInt(0, unix.SOL_SOCKET, peerPidfd)
		if err != nil {
			return fmt.Errorf("no peer: %s", strings.ToLower(err.Error()))
		}
		return run(pidfd)
	}
}
