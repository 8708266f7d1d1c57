package integrations_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// noFileOfTheCaller tries to harm the caller of a sandbox by what the caller has open, from inside. command starts a sandbox in which a shell
// runs a script.
func noFileOfTheCaller(t *testing.T, command func(script string) *exec.Cmd) {
	t.Helper()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	// run runs a script with the given files, and returns what it wrote to the others.
	run := func(script string, files [3]*os.File, change func(*exec.Cmd)) string {
		cmd := command(script)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = null, io.Writer(&said), io.Writer(&said)
		for i, f := range files {
			switch {
			case f == nil:
			case i == 0:
				cmd.Stdin = f
			case i == 1:
				cmd.Stdout = f
			default:
				cmd.Stderr = f
			}
		}
		if change != nil {
			change(cmd)
		}
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v: %s", script, err, said.String())
		}
		return said.String()
	}
	pipe := func(content string) (ends [2]*os.File, rest func() string) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fds[1], []byte(content)); err != nil {
			t.Fatal(err)
		}
		ends = [2]*os.File{os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")}
		t.Cleanup(func() { _, _ = ends[0].Close(), ends[1].Close() })
		return ends, func() string {
			left := make([]byte, 1<<12)
			_ = unix.SetNonblock(fds[0], true)
			n, _ := unix.Read(fds[0], left)
			return string(left[:max(0, n)])
		}
	}

	const write = "timeout 5 sh -c 'echo evil >/proc/self/fd/%d' 2>/dev/null; true"
	script, rest := pipe("")
	run(fmt.Sprintf(write, 0), [3]*os.File{script[0]}, nil)
	if got := rest(); got != "" {
		t.Errorf("the shell of the caller would run %q", got)
	}
	for fd := 1; fd <= 2; fd++ {
		shared, rest := pipe("secret of another\n")
		files := [3]*os.File{}
		files[fd] = shared[1]
		got := run(fmt.Sprintf("timeout 5 dd iflag=nonblock status=none bs=99 count=1 </proc/self/fd/%d >&%d 2>/dev/null; true", fd, 3-fd), files, nil)
		if left := rest(); strings.Contains(got, "secret") || !strings.HasPrefix(left, "secret of another\n") {
			t.Errorf("descriptor %d: got %q, and %q is left in the caller's pipe", fd, got, left)
		}
	}
	for name, script := range map[string]string{
		"cut off":   ": >/proc/self/fd/1",
		"overwrite": "echo evil | dd of=/proc/self/fd/1 conv=notrunc status=none",
		"mode":      "chmod 777 /proc/self/fd/1",
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte("first\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		run("("+script+") 2>/dev/null; true", [3]*os.File{1: log}, nil)
		got, err := os.ReadFile(path)
		info, failed := log.Stat()
		if err := errors.Join(err, failed, log.Close()); err != nil || !strings.HasPrefix(string(got), "first\n") || info.Mode() != 0o600 {
			t.Errorf("%s: got the log %q with the mode %s, %v", name, got, info.Mode(), err)
		}
	}
	secret := filepath.Join(t.TempDir(), "descriptor-of-the-caller")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(secret)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	got := run("ls -l /proc/self/fd /proc/[0-9]*/fd 2>/dev/null; cat /proc/[0-9]*/environ 2>/dev/null; true", [3]*os.File{}, func(cmd *exec.Cmd) {
		cmd.ExtraFiles = []*os.File{open, open, open}
		cmd.Env = append(cmd.Env, "GH_TOKEN=variable-of-the-caller")
	})
	if !strings.Contains(got, "HOME=") || strings.Contains(got, "of-the-caller") {
		t.Errorf("got %q, want neither descriptors nor variables of the caller", got)
	}
	noTerminalOfTheCaller(t, run)
}

// noTerminalOfTheCaller tries to change the terminal and the group of the caller.
func noTerminalOfTheCaller(t *testing.T, run func(string, [3]*os.File, func(*exec.Cmd)) string) {
	t.Helper()
	keyboard, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(keyboard, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(keyboard, unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	screen := os.NewFile(uintptr(fd), "screen")
	defer func() { _, _ = screen.Close(), unix.Close(keyboard) }()
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	run("stty -echo rows 7; stty -echo rows 7 </proc/self/fd/1; true", [3]*os.File{screen, screen, screen}, func(cmd *exec.Cmd) { cmd.SysProcAttr.Setctty = true })
	after, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	size, failed := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err := errors.Join(err, failed); err != nil || *after != *before || size.Row != 0 {
		t.Errorf("got the terminal %+v of %+v, want it as before, %+v: %v", *after, *size, *before, err)
	}
	got := run("renice -n 7 -g 0 >/dev/null 2>&1; kill -USR2 0; true", [3]*os.File{}, func(cmd *exec.Cmd) {
		const caller = `trap 'echo signalled' USR2; sleep 600 & other=$!; "$@"; cut -d ' ' -f 19 /proc/$other/stat; kill $other`
		cmd.Args = append([]string{"sh", "-c", caller, "sh"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
		cmd.Path = "/bin/sh"
	})
	if got != "0\n" {
		t.Errorf("got %q, want a group whose priority is 0, without a signal", got)
	}
}
