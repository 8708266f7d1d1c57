package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelFiles are files of /proc by which root changes the whole machine, without a capability.
var kernelFiles = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi"}

// devices are what the program gets of /dev. Disks, other machines' sockets and others' terminals are not among them.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "shm"}

// hideMachine gives this mount namespace a /proc of its own processes, a /dev of harmless devices, and no way to change the
// kernel. It forbids further user namespaces, which would give the program capabilities again.
func hideMachine() error {
	folder, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separating mounts: %w", err)
	}
	others, err := processFolders()
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc, which the kernel refuses in a container that hides parts of /proc: %w", err)
	}
	if err := write("/proc/sys/user/max_user_namespaces", "0"); err != nil {
		return fmt.Errorf("forbidding user namespaces: %w", err)
	}
	for _, path := range others { // they show the host's processes
		if err := unix.Mount("none", path, "tmpfs", unix.MS_RDONLY, "size=4k"); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("hiding %s: %w", path, err)
		}
	}
	for _, path := range kernelFiles {
		if err := readOnly(path); err != nil {
			return err
		}
	}
	if err := readOnly("/sys"); err != nil {
		return err
	}
	if err := newDevices(); err != nil {
		return err
	}
	// Enter the working directory again by its path: it may have been in the host's /proc.
	if err := os.Chdir(folder); err != nil {
		return fmt.Errorf("entering the working directory: %w", err)
	}
	return nil
}

// escaped are the characters that mountinfo writes as an octal number.
var escaped = regexp.MustCompile(`\\[0-7]{3}`)

// processFolders returns where /proc file systems are mounted, other than at /proc.
func processFolders() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		const at = 4 // the fifth field is the mount point, and the first after the hyphen the type
		left, right, _ := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if len(fields) <= at || !strings.HasPrefix(right, "proc ") {
			continue
		}
		path := escaped.ReplaceAllStringFunc(fields[at], func(code string) string {
			n, _ := strconv.ParseUint(code[1:], 8, 8)
			return string([]byte{byte(n)})
		})
		if path != "/proc" && !strings.HasPrefix(path, "/proc/") {
			all = append(all, path)
		}
	}
	return all, nil
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

// newDevices replaces /dev.
func newDevices() error {
	kept := map[string]int{}
	for _, name := range devices {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keeping /dev/%s: %w", name, err)
		}
		kept[name] = fd
	}
	if err := unix.Mount("none", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("replacing /dev: %w", err)
	}
	for name, fd := range kept {
		path := filepath.Join("/dev", name)
		err := os.WriteFile(path, nil, 0o600)
		if name == "shm" {
			err = errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}
		err = errors.Join(err, unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH), unix.Close(fd))
		if err != nil {
			return fmt.Errorf("keeping /dev/%s: %w", name, err)
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
