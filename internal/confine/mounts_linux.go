package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ofTheKernel are the file systems that show the host's processes, devices and drivers, or change the kernel for all.
var ofTheKernel = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "bpf", "configfs", "debugfs", "tracefs", "securityfs", "efivarfs",
	"pstore", "binfmt_misc", "selinuxfs", "smackfs", "fusectl", "rpc_pipefs", "nfsd", "resctrl",
}

// devices are what the program gets of /dev. Disks, other machines' sockets and others' terminals are not among them.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// sharedMemory is where programs have memory that others of their user can open by its name.
const sharedMemory = "/dev/shm"

// hideMachine gives this mount namespace a /proc of its own processes, a /dev of harmless devices, memory that it shares with nobody,
// and no way to change the kernel. Nothing of /dev/shm stays but the folder kept, and nothing shows of the private files. It forbids further user namespaces, which would
// give the program capabilities again.
func hideMachine(kept string, private []string) error {
	folder, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separating mounts: %w", err)
	}
	hidden, err := kernelMounts()
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc, which the kernel refuses in a container that hides parts of /proc: %w", err)
	}
	if err := write("/proc/sys/user/max_user_namespaces", "0"); err != nil {
		return fmt.Errorf("forbidding user namespaces: %w", err)
	}
	if err := pinAncestors(private); err != nil {
		return err
	}
	for _, path := range slices.Concat(hidden, private) {
		if err := hide(path); err != nil {
			return err
		}
	}
	if err := protectProc(); err != nil {
		return err
	}
	if err := readOnly("/sys"); err != nil {
		return err
	}
	if err := newDevices(kept); err != nil {
		return err
	}
	// Enter the working directory again by its path: it may have been in the host's /proc.
	if err := os.Chdir(folder); err != nil {
		return fmt.Errorf("entering the working directory, which must not be in /dev, %s or a folder that is hidden from the program: %w", sharedMemory, err)
	}
	return nil
}

// escaped are the characters that mountinfo writes as an octal number.
var escaped = regexp.MustCompile(`\\[0-7]{3}`)

// kernelMounts returns where file systems of the kernel are mounted, other than those that this mount namespace gets anew, and the
// control groups and drivers below /sys, from which programs learn their limits.
func kernelMounts() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		const at = 4 // the fifth field is the mount point, and the first after the hyphen the type
		left, right, _ := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		kind, _, _ := strings.Cut(right, " ")
		if len(fields) <= at || !slices.Contains(ofTheKernel, kind) {
			continue
		}
		path := escaped.ReplaceAllStringFunc(fields[at], func(code string) string {
			n, _ := strconv.ParseUint(code[1:], 8, 8)
			return string([]byte{byte(n)})
		})
		drivers := below(path, "/sys") && (kind == "sysfs" || strings.HasPrefix(kind, "cgroup"))
		if !drivers && !below(path, "/proc") && !below(path, "/dev") {
			all = append(all, path)
		}
	}
	return all, nil
}

func below(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// pinAncestors mounts the folders above the paths on themselves, so that the program can neither rename nor remove them: what is hidden
// would move along, and what comes to the path later would show.
func pinAncestors(paths []string) error {
	var all []string
	for _, path := range paths {
		path, err := filepath.EvalSymlinks(path)
		if err != nil { // the program cannot reach it either, or it does not exist
			continue
		}
		for at := filepath.Dir(path); at != "/"; at = filepath.Dir(at) {
			if unix.Access(filepath.Dir(at), unix.W_OK) == nil {
				all = append(all, at)
			}
		}
	}
	slices.Sort(all) // a folder before those in it
	for _, path := range slices.Compact(all) {
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keeping %s in its place: %w", path, err)
		}
	}
	return nil
}

// hide puts something empty over a folder or a file. What this user cannot reach stays: the program cannot reach it either.
func hide(path string) error {
	err := unix.Mount("none", path, "tmpfs", unix.MS_RDONLY, "size=4k")
	if errors.Is(err, unix.ENOTDIR) {
		err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("hiding %s: %w", path, err)
	}
	return nil
}

// protectProc makes everything in /proc read-only by which root changes the whole machine without a capability, and hides what only
// root may read, and the keys of the host. What shows a process stays as it is.
func protectProc() error {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("reading /proc: %w", err)
	}
	for _, entry := range all {
		path := filepath.Join("/proc", entry.Name())
		_, notProcess := strconv.Atoi(entry.Name())
		info, err := entry.Info()
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		const others, writable = 0o004, 0o222
		switch mode := info.Mode(); {
		case notProcess == nil || mode&os.ModeSymlink != 0:
		case mode.IsRegular() && mode&others == 0 && mode&writable == 0, strings.HasPrefix(entry.Name(), "key"):
			err = hide(path)
		case mode.IsDir(), mode&writable != 0:
			err = readOnly(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readOnly makes a tree read-only, with all that is mounted in it.
func readOnly(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", path, err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("making %s read-only (Linux 5.12 or newer is required): %w", path, err)
	}
	return nil
}

// newDevices replaces /dev, and makes the devices of all other folders useless.
func newDevices(folder string) error {
	type tree struct {
		path string
		fd   int
	}
	var trees []tree
	paths := []string{}
	for _, name := range devices {
		paths = append(paths, filepath.Join("/dev", name))
	}
	if below(folder, sharedMemory) {
		paths = append(paths, folder)
	}
	for _, path := range paths {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keeping %s: %w", path, err)
		}
		trees = append(trees, tree{path, fd})
	}
	// A device that a folder has elsewhere, such as one for a container, opens the same disk.
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}); err != nil {
		return fmt.Errorf("forbidding devices (Linux 5.12 or newer is required): %w", err)
	}
	if err := unix.Mount("none", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("replacing /dev: %w", err)
	}
	if err := os.Mkdir(sharedMemory, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", sharedMemory, err)
	}
	if err := unix.Mount("none", sharedMemory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("making %s: %w", sharedMemory, err)
	}
	for _, one := range trees {
		var err error
		if one.path == folder {
			err = os.MkdirAll(one.path, 0o700)
		} else {
			err = os.WriteFile(one.path, nil, 0o600)
		}
		err = errors.Join(err, unix.MoveMount(one.fd, "", unix.AT_FDCWD, one.path, unix.MOVE_MOUNT_F_EMPTY_PATH), unix.Close(one.fd))
		if err != nil {
			return fmt.Errorf("keeping %s: %w", one.path, err)
		}
	}
	if err := os.Mkdir("/dev/pts", 0o755); err != nil { //nolint:gosec // a folder of devices, as everywhere
		return fmt.Errorf("making /dev/pts: %w", err)
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return fmt.Errorf("making /dev/pts: %w", err)
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join("/dev", name)); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
	}
	return nil
}
