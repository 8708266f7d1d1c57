package confine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stdio are the standard files of the caller, and what the caller sees of them afterwards.
type stdio struct {
	files [3]*os.File
	// harm says what the program did to the caller, or is empty. reached says whether the program believes that it got something.
	harm func(reached bool) string
	// behind says that the files are those of the caller, whose terminal they are, and not of the program.
	behind bool
}

// escape is one way in which a program may use the caller's standard files against the caller.
type escape struct {
	name string
	open func(t *testing.T) stdio
	run  func() error // in the program: nil if it got something
	// reads says that what the program gets is the harm.
	reads bool
}

const theirSecret = "a secret of another program\n"

var errNothing = errors.New("nothing")

// escapes are the ways out by standard files. Each harms the caller of a program that is not confined.
var escapes = []escape{
	{"write_into_a_script_that_a_shell_reads", pipeAs(0, ""), func() error { return appendTo("/proc/self/fd/0", "evil") }, false},
	{"write_into_a_script_by_dev_stdin", pipeAs(0, ""), func() error { return appendTo("/dev/stdin", "evil") }, false},
	{"larger_pipe", pipeAs(0, ""), func() error { _, err := unix.FcntlInt(0, unix.F_SETPIPE_SZ, 1<<17); return err }, false},
	{"memory_of_a_page_in_the_input", pipeAs(0, ""), func() error {
		fd, err := unix.Open("/proc/self/fd/0", unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		text := []byte("evil")
		_, err = unix.Vmsplice(fd, []unix.Iovec{{Base: &text[0], Len: 4}}, 0)
		return err
	}, false},
	{"read_what_others_write_to_standard_output", pipeAs(1, theirSecret), func() error { return readFrom("/proc/self/fd/1") }, true},
	{"read_what_others_write_to_standard_error", pipeAs(2, theirSecret), func() error { return readFrom("/dev/stderr") }, true},
	{"pipe_that_does_not_wait", pipeAs(1, ""), func() error { return unix.SetNonblock(1, true) }, false},
	{"pipe_that_signals", pipeAs(2, ""), func() error { _, err := unix.FcntlInt(2, unix.F_SETOWN, 1); return err }, false},
	{"cut_off_a_log", logAs(1, os.O_WRONLY|os.O_APPEND), func() error { return unix.Ftruncate(1, 0) }, false},
	{"cut_off_a_log_by_its_link", logAs(2, os.O_WRONLY|os.O_APPEND), func() error { return os.Truncate("/proc/self/fd/2", 0) }, false},
	{"overwrite_a_log", logAs(1, os.O_WRONLY|os.O_APPEND), func() error {
		return overwrite("/proc/self/fd/1")
	}, false},
	{"overwrite_a_log_without_the_flag_to_append", logAs(1, os.O_WRONLY|os.O_APPEND), func() error {
		if _, err := unix.FcntlInt(1, unix.F_SETFL, 0); err != nil {
			return err
		}
		_, err := unix.Pwrite(1, []byte("evil"), 0)
		return err
	}, false},
	{"overwrite_a_file_at_another_position", logAs(1, os.O_WRONLY), func() error { _, err := unix.Pwrite(1, []byte("evil"), 0); return err }, false},
	{"move_the_position", logAs(1, os.O_WRONLY), func() error { _, err := unix.Seek(1, 0, io.SeekStart); return err }, false},
	{"hole_in_a_log", logAs(1, os.O_WRONLY), func() error { return unix.Fallocate(1, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 8) }, false},
	{"read_a_log", logAs(1, os.O_RDWR|os.O_APPEND), func() error { _, err := unix.Pread(1, make([]byte, 8), 0); return err }, true},
	{"read_a_log_by_its_link", logAs(2, os.O_WRONLY), func() error { return readFrom("/proc/self/fd/2") }, true},
	{"map_a_log", logAs(1, os.O_RDWR), func() error {
		_, err := unix.Mmap(1, 0, 8, unix.PROT_READ, unix.MAP_SHARED)
		return err
	}, true},
	{"write_to_the_input_file", logAs(0, os.O_RDWR), func() error { _, err := unix.Pwrite(0, []byte("evil"), 0); return err }, false},
	{"write_to_the_input_file_by_its_link", logAs(0, os.O_RDONLY), func() error { return overwrite("/proc/self/fd/0") }, false},
	{"mode_of_a_log", logAs(1, os.O_WRONLY), func() error { return unix.Fchmod(1, 0o7777) }, false},
	{"times_of_a_log", logAs(2, os.O_WRONLY), func() error { return unix.Futimes(2, []unix.Timeval{{Sec: 1}, {Sec: 1}}) }, false},
	{"lock_of_a_log", logAs(1, os.O_WRONLY), func() error { return unix.Flock(1, unix.LOCK_EX|unix.LOCK_NB) }, false},
	{"seal_of_the_input", memoryAs(0), func() error { _, err := unix.FcntlInt(0, unix.F_ADD_SEALS, unix.F_SEAL_WRITE); return err }, false},
	{"file_that_does_not_wait", logAs(1, os.O_WRONLY), func() error { return unix.SetNonblock(1, true) }, false},
	{"descriptor_by_a_socket", socketAs(0, true), func() error {
		_, m, _, _, err := unix.Recvmsg(0, make([]byte, 8), make([]byte, unix.CmsgSpace(4)), unix.MSG_DONTWAIT)
		if err == nil && m == 0 {
			err = errNothing
		}
		return err
	}, true},
	{"descriptor_for_the_peer_of_a_socket", socketAs(1, false), func() error { return unix.Sendmsg(1, []byte("x"), unix.UnixRights(0), nil, 0) }, true},
	{"end_of_a_socket", socketAs(1, false), func() error { return unix.Shutdown(1, unix.SHUT_RDWR) }, true},
	{"peer_of_a_socket", socketAs(0, false), func() error { _, err := unix.GetsockoptUcred(0, unix.SOL_SOCKET, unix.SO_PEERCRED); return err }, true},
	{"socket_that_does_not_wait", socketAs(1, false), func() error { return unix.SetNonblock(1, true) }, false},
	{"state_of_the_terminal", terminalAs, func() error {
		state, err := unix.IoctlGetTermios(0, unix.TCGETS)
		if err == nil {
			state.Lflag &^= unix.ECHO
			err = unix.IoctlSetTermios(0, unix.TCSETS, state)
		}
		return err
	}, false},
	{"size_of_the_terminal", terminalAs, func() error { return unix.IoctlSetWinsize(0, unix.TIOCSWINSZ, &unix.Winsize{Row: 1, Col: 1}) }, false},
	{"terminal_that_does_not_wait", terminalAs, func() error { return unix.SetNonblock(0, true) }, false},
	{"terminal_for_one_program", terminalAs, func() error { return unix.IoctlSetInt(0, unix.TIOCEXCL, 0) }, false},
	{"foreground_of_the_terminal", terminalAs, func() error {
		if err := unix.Setpgid(0, 0); err != nil {
			return err
		}
		runtime.LockOSThread()
		var block unix.Sigset_t
		block.Val[0] = 1 << (unix.SIGTTOU - 1)
		return errors.Join(unix.PthreadSigmask(unix.SIG_BLOCK, &block, nil), unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, unix.Getpgrp()))
	}, false},
	{"terminal_of_the_session", terminalBehind, func() error {
		fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 1, Col: 1})
	}, false},
	{"signal_to_the_group", groupAs, func() error { return unix.Kill(0, unix.SIGUSR2) }, false},
	{"priority_of_the_group", groupAs, func() error { return unix.Setpriority(unix.PRIO_PGRP, 0, 7) }, false},
	{"input_and_output_of_the_group", groupAs, func() error { return errnoOf(unix.SYS_IOPRIO_SET, 2, 0, 3<<13) }, false},
}

func appendTo(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(text))
	return err
}

func overwrite(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = unix.Pwrite(fd, []byte("evil"), 0)
	return err
}

func readFrom(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if n, err := unix.Read(fd, make([]byte, 8)); err != nil || n == 0 {
		return errors.Join(errNothing, err)
	}
	return nil
}

// with returns standard files of which one is given, and the others are harmless.
func with(t *testing.T, i int, f *os.File) (files [3]*os.File) {
	t.Helper()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = null.Close(), f.Close() })
	files = [3]*os.File{null, null, null}
	files[i] = f
	return files
}

// flags are what a file's sharers have in common.
func flags(f *os.File) string {
	var all []int
	conn, err := f.SyscallConn()
	if err != nil {
		return err.Error()
	}
	_ = conn.Control(func(fd uintptr) {
		for _, command := range []int{unix.F_GETFL, unix.F_GETOWN, unix.F_GETPIPE_SZ, unix.F_GET_SEALS} {
			n, _ := unix.FcntlInt(fd, command, 0)
			all = append(all, n)
		}
		at, _ := unix.Seek(int(fd), 0, io.SeekCurrent)
		all = append(all, int(at))
	})
	return fmt.Sprint(all)
}

// raw makes a file that Go does not make non-blocking.
func raw(fd int, name string) *os.File { return os.NewFile(uintptr(fd), name) }

func pipeAs(i int, content string) func(*testing.T) stdio {
	return func(t *testing.T) stdio {
		t.Helper()
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		ends := [2]*os.File{raw(fds[0], "read"), raw(fds[1], "write")}
		theirs := ends[min(i, 1)]
		if _, err := unix.Write(fds[1], []byte(content)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(t.Name(), "/nobody/") { // who may open it again, as if it were nobody's own
			if err := unix.Fchown(fds[0], nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _, _ = ends[0].Close(), ends[1].Close() })
		before := flags(theirs)
		return stdio{files: with(t, i, theirs), harm: func(reached bool) string {
			if after := flags(theirs); after != before {
				return "flags " + after
			}
			if reached {
				return "it read a secret"
			}
			if n, err := unix.IoctlGetInt(fds[0], unix.TIOCINQ); err != nil || n != len(content) {
				return fmt.Sprintf("%d bytes in the pipe", n)
			}
			return ""
		}}
	}
}

// logAs opens a file that has no name any more: the program has no other way to it.
func logAs(i, flag int) func(*testing.T) stdio {
	return func(t *testing.T) stdio {
		t.Helper()
		path := filepath.Join(t.TempDir(), "log")
		if err := errors.Join(os.WriteFile(path, []byte(theirSecret), 0o666), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(t.Name(), "/nobody/") {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(path, flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		look, err := os.Open(path)
		if err := errors.Join(err, os.Remove(path)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = look.Close() })
		if i > 0 { // a shell that has written
			if _, err := f.Seek(0, io.SeekEnd); err != nil {
				t.Fatal(err)
			}
		}
		return watched(t, i, f, look)
	}
}

func memoryAs(i int) func(*testing.T) stdio {
	return func(t *testing.T) stdio {
		t.Helper()
		fd, err := unix.MemfdCreate("input", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, []byte(theirSecret), 0); err != nil {
			t.Fatal(err)
		}
		f := raw(fd, "memory")
		return watched(t, i, f, f)
	}
}

// watched is a file that must not change, and that the program must not read unless it is its input.
func watched(t *testing.T, i int, f, look *os.File) stdio {
	t.Helper()
	state := func() string {
		content := make([]byte, 99)
		n, err := look.ReadAt(content, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		info, err := look.Stat()
		if err != nil {
			t.Fatal(err)
		}
		locked := ""
		if again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", look.Fd())); err == nil && f != look {
			if unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
				locked = "locked"
			}
			_ = again.Close()
		}
		return fmt.Sprint(string(content[:n]), info.Mode(), info.ModTime().Unix(), flags(f), locked)
	}
	before := state()
	return stdio{files: with(t, i, f), harm: func(reached bool) string {
		if after := state(); after != before {
			return fmt.Sprintf("%q became %q", before, after)
		}
		if reached {
			return "it read the file"
		}
		return ""
	}}
}

func socketAs(i int, descriptor bool) func(*testing.T) stdio {
	return func(t *testing.T) stdio {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, peer := raw(fds[0], "theirs"), raw(fds[1], "peer")
		t.Cleanup(func() { _ = peer.Close() })
		if descriptor {
			if err := unix.Sendmsg(fds[1], []byte("x"), unix.UnixRights(fds[1]), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		before := flags(theirs)
		return stdio{files: with(t, i, theirs), harm: func(reached bool) string {
			if after := flags(theirs); after != before {
				return "flags " + after
			}
			if reached {
				return "it used the socket"
			}
			return ""
		}}
	}
}

// terminalAs is the terminal of the caller's session.
func terminalAs(t *testing.T) stdio {
	t.Helper()
	_, path := terminal(t)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	screen := raw(fd, path)
	t.Cleanup(func() { _ = screen.Close() })
	state := func() string {
		modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		size, failed := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		var queued unix.PollFd
		queued.Fd, queued.Events = int32(fd), unix.POLLOUT // not while its output is stopped
		_, polled := unix.Poll([]unix.PollFd{queued}, 0)
		exclusive, asked := unix.IoctlGetUint32(fd, 0x80045440) // TIOCGEXCL
		if err := errors.Join(err, failed, asked, polled); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(*modes, *size, exclusive, flags(screen))
	}
	before := state()
	return stdio{files: [3]*os.File{screen, screen, screen}, harm: func(reached bool) string {
		if after := state(); after != before {
			return fmt.Sprintf("%s became %s", before, after)
		}
		return ""
	}}
}

// terminalBehind is the terminal of a session in which no standard file of the program is a terminal.
func terminalBehind(t *testing.T) stdio {
	t.Helper()
	s := terminalAs(t)
	s.behind = true
	return s
}

func groupAs(t *testing.T) stdio {
	t.Helper()
	var none *os.File
	return stdio{files: [3]*os.File{none, none, none}}
}

// tryFile makes one attempt, and exits with 0 if the program got something.
func tryFile(name string) int {
	for _, e := range escapes {
		if e.name == name && e.run() == nil {
			return 0
		}
	}
	return 3
}

// T12: a program harms its caller by the caller's standard files, terminal and group if it is not confined, and does not if it is.
func TestProgramHasNoFileOfItsCaller(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		for _, e := range escapes {
			t.Run(e.name, func(t *testing.T) {
				for _, confined := range []bool{false, true} {
					line := []string{self, "try-file", e.name}
					if confined {
						line = append([]string{self, "launch", "{}"}, line...)
					}
					if harm := e.harm(t, u, line); (harm == "") != confined {
						t.Errorf("confined %t: got the harm %q", confined, harm)
					}
				}
			})
		}
	})
}

// harm runs a program that makes the attempt, and says what it did to the caller.
func (e escape) harm(t *testing.T, u user, line []string) string {
	t.Helper()
	around := e.open(t)
	cmd := u.command(t, line...)
	if around.files[0] != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = around.files[0], around.files[1], around.files[2]
		if cmd.SysProcAttr.Setctty = isTerminal(around.files[0]); cmd.SysProcAttr.Setctty { // the caller is a shell
			front := `"$@"; set -- $(cat /proc/$$/stat); test "$5" = "$8" || exit 9`
			if around.behind {
				front = `"$@" </dev/null >/dev/null 2>&1`
			}
			cmd.Args, cmd.Path = append([]string{"sh", "-c", front, "sh"}, line...), "/bin/sh"
		}
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() == 9 {
			return "it took the terminal"
		}
		return around.harm(e.reads && cmd.ProcessState.ExitCode() == 0)
	}
	// The caller is a shell, and its group has another program, whose priorities count.
	script := `
		trap 'echo signalled' USR2
		sleep 600 & other=$!
		state() { cut -d ' ' -f 19 /proc/$other/stat; ionice -p $other; }
		before=$(state)
		"$@"
		test "$(state)" = "$before" || echo changed
		kill $other 2>/dev/null || echo killed`
	cmd = u.command(t, append([]string{"sh", "-c", script, "sh"}, line...)...)
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		return err.Error()
	}
	return string(out)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// T12: the bytes pass as they are: all of them, in both directions, with their ends.
func TestBytesPassAsTheyAre(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		script := func(text string) string {
			cmd := u.command(t, "bash", "-c", text)
			cmd.Dir, cmd.Env = dir, append(cmd.Env, "SELF="+self)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			return string(out)
		}
		for _, one := range []struct{ what, script, want string }{
			{"much", `head -c 30000000 /dev/urandom >much; $SELF launch {} cat <much | cmp - much; cat much | $SELF launch {} cat >copy; cmp much copy`, ""},
			{"much at the end", `$SELF launch {} sh -c 'head -c 60000 /dev/zero; exit 0' | (sleep 0.3; wc -c)`, "60000\n"},
			{"no reader", `$SELF launch {} yes | head -1; echo ${PIPESTATUS[0]}`, "y\n141\n"},
			{"no writer", `yes | $SELF launch {} head -1; echo ${PIPESTATUS[*]}`, "y\n141 0\n"},
			{"the rest of a pipe", `seq 3 | while read n; do echo $n; $SELF launch {} true; done`, "1\n2\n3\n"},
			{"the rest of a file", `seq 30000 >lines; (read a; $SELF launch {} sh -c 'read a; echo $a'; read a; echo $a) <lines`, "2\n3\n"},
			{"the rest of a long pipe", `seq 30000 | (read a; $SELF launch {} sh -c 'read a; echo $a'; read a; echo $a; tail -1)`, "2\n3\n30000\n"},
			{"one order", `$SELF launch {} sh -c 'for n in 1 2 3; do echo o$n; echo e$n >&2; done' >log 2>&1; cat log`, "o1\ne1\no2\ne2\no3\ne3\n"},
			{"appended", `echo first >log; $SELF launch {} echo second >>log; cat log`, "first\nsecond\n"},
			{"read and write", `echo 'in the file' >both; $SELF launch {} sh -c 'cat >/dev/null; echo out' 0<>both 1>&0; cat both`, "in the file\nout\n"},
			{"full device", `$SELF launch {} cat /etc/passwd >/dev/full 2>err; grep -c 'No space left' err`, "1\n"},
			{"closed input", `$SELF launch {} cat <&-; echo $?`, "0\n"},
			{"devices by name", `echo in | $SELF launch {} sh -c 'cat /dev/stdin >/dev/stdout; echo err >/dev/stderr' 2>&1`, "in\nerr\n"},
			{"background", `$SELF launch {} sh -c 'sleep 900 & echo done'; echo $?`, "done\n0\n"},
		} {
			if got := script(one.script); got != one.want {
				t.Errorf("%s: got %q, want %q", one.what, got, one.want)
			}
		}
	})
}

// What could not be written is no success.
func TestUnwrittenOutputIsAnError(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		cmd := u.command(t, "bash", "-c", `ulimit -f 8; trap '' XFSZ; exec "$@" >big`, "bash", self, "launch", "{}", "head", "-c", "30000", "/dev/zero")
		cmd.Dir = dir
		var said bytes.Buffer
		cmd.Stderr = &said
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != 99 || !strings.Contains(said.String(), "writing standard output: file too large") {
			t.Errorf("got %d and %s", cmd.ProcessState.ExitCode(), said.String())
		}
	})
}

// A program that is only separated ends its caller's wait, whatever it leaves in the background.
func TestSeparatedProgramIsNotWaitedForInTheBackground(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		cmd := u.command(t, self, "separate", "sh", "-c", "sleep 900 & echo $!; exit 7")
		begin := time.Now()
		out, _ := cmd.Output()
		if cmd.ProcessState.ExitCode() != 7 || time.Since(begin) > patience/2 {
			t.Errorf("got %d after %s", cmd.ProcessState.ExitCode(), time.Since(begin))
		}
		if err := exec.CommandContext(t.Context(), "kill", strings.TrimSpace(string(out))).Run(); err != nil {
			t.Errorf("the process in the background, %q: %v", out, err)
		}
	})
}
