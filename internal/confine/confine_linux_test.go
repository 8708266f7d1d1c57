package confine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPortsLeadToTheCaller(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		got := u.shell(t, `curl -sS http://127.0.0.1:3128/; echo; curl -sS http://localhost:5432/`)
		if got != "of the caller\nof the caller" {
			t.Errorf("got %q", got)
		}
	})
}

func TestConfinedProgramLooksLikeItsUser(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		want, err := u.command(t, "sh", "-c", "id -u; id -g; pwd; umask").Output()
		if err != nil {
			t.Fatal(err)
		}
		got := u.shell(t, "id -u; id -g; pwd; umask; echo x > "+dir+"/made")
		if got != string(want) {
			t.Errorf("got %q, want %q as outside", got, want)
		}
		info, err := os.Stat(filepath.Join(dir, "made"))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; strconv.Itoa(int(owner)) != lines(string(want))[0] {
			t.Errorf("got the owner %d of a file, want %s", owner, lines(string(want))[0])
		}
	})
}

// T12: a confined program has no capability, cannot get one, and its crash starts nothing.
func TestConfinedProgramHasNoPrivileges(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		got := u.shell(t, `grep -E '^(Cap|NoNewPrivs|Seccomp:|NSpid)' /proc/self/status`)
		for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if !strings.Contains(got, name+":\t0000000000000000\n") {
				t.Errorf("got %s, want no %s", got, name)
			}
		}
		if !strings.Contains(got, "NoNewPrivs:\t1\n") || !strings.Contains(got, "Seccomp:\t2\n") {
			t.Errorf("got %s, want no new privileges and a filter", got)
		}
		for _, first := range []string{"Cap", "NoNewPrivs"} { // the first process has none either
			inside := u.shell(t, `grep '^`+first+`' /proc/1/status`)
			if own := u.shell(t, `grep '^`+first+`' /proc/self/status`); inside != own {
				t.Errorf("the first process has %s, want %s", inside, own)
			}
		}
		// The kernel starts no program of the host for a crash if the limit is one byte.
		if got := strings.Fields(u.shell(t, `grep '^Max core file size' /proc/self/limits`)); len(got) < 6 || got[4] != "1" || got[5] != "1" {
			t.Errorf("got %s, want a limit that no crash passes", got)
		}
	})
}

func TestExitCodesPassThrough(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 128 + 9, "kill -TERM $$": 128 + 15} {
			cmd := u.box(t, "{}", "sh", "-c", script)
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Errorf("%s: got %d, want %d", script, got, want)
			}
		}
		none := filepath.Join(folder(t), "none")
		if err := os.WriteFile(none, []byte("#!/none/of/them\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := u.box(t, "{}", none)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 126 || !strings.Contains(string(out), "starting "+none) {
			t.Errorf("got %d and %s, want 126 for a program that cannot start", cmd.ProcessState.ExitCode(), out)
		}
	})
}

func TestStandardFilesPassThrough(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		cmd := u.box(t, "{}", "sh", "-c", "cat; echo wrong >&2")
		var errOut bytes.Buffer
		cmd.Stdin, cmd.Stderr = strings.NewReader("in and out"), &errOut
		out, err := cmd.Output()
		if err != nil || string(out) != "in and out" || errOut.String() != "wrong\n" {
			t.Errorf("got %q, %q, %v", out, errOut.String(), err)
		}
	})
}

// started waits until a program has written a line to a file.
func started(t *testing.T, path string) string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if text, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(text), "\n") {
			return string(text)
		}
	}
	t.Fatalf("waited %s for %s", patience, path)
	return ""
}

func TestSignalsReachTheProgram(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		for _, name := range []string{"HUP", "INT", "QUIT", "TERM", "USR1", "USR2"} {
			ready := filepath.Join(folder(t), "ready")
			cmd := u.box(t, "{}", "sh", "-c", `trap 'exit 9' `+name+`; cat /proc/self/stat >/dev/null; echo ready >`+ready+`; while :; do sleep 0.02; done`)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			started(t, ready)
			// The first process is the only child of the caller, which forwards signals in brevet.
			children, err := exec.CommandContext(t.Context(), "pgrep", "-P", strconv.Itoa(cmd.Process.Pid)).Output()
			if err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "kill", "-"+name, strings.TrimSpace(string(children))).CombinedOutput(); err != nil {
				t.Fatalf("%s%v", out, err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 9 {
				t.Errorf("%s: got %d, want the code of its trap", name, got)
			}
		}
	})
}

// All processes of the program end with it, unlike those of a program that is not confined.
func TestProcessesEndWithTheProgram(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		u.shell(t, `setsid sh -c 'while :; do date +%s%N > `+dir+`/alive.new; mv `+dir+`/alive.new `+dir+`/alive; sleep 0.02; done' >/dev/null 2>&1 &
			until test -s `+dir+`/alive; do sleep 0.02; done`)
		if out, err := exec.CommandContext(t.Context(), "pgrep", "-f", dir+"/alive").Output(); err == nil {
			t.Errorf("processes of the program still run: %s", out)
		}
	})
}

func TestOrphansAreReaped(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		got := u.shell(t, `for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 & exit' &) ; done; sleep 0.5; grep -l 'State:.Z' /proc/[0-9]*/status || true`)
		if got != "" {
			t.Errorf("got the zombies %s", got)
		}
	})
}

func TestDevicesWork(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		got := u.shell(t, `
			echo x >/dev/null; head -c 4 /dev/zero | wc -c; head -c 8 /dev/urandom | wc -c; head -c 8 /dev/random | wc -c
			test -w /dev/shm; python3 -c 'import os; os.close(os.openpty()[0]); print("pty")'
			ls /dev | tr '\n' ' '`)
		want := "4\n8\n8\npty\nfd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// Where Unix sockets are allowed, those of the file system work, and abstract ones are still the network's own.
func TestUnixSocketsWorkIfAllowed(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir, name := folder(t), fmt.Sprintf("brevet-test-%d-%s", os.Getpid(), u.name)
		path := filepath.Join(dir, "s")
		listen(t, "unix", path)
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		listen(t, "unix", "@"+name)
		for what, want := range map[string]string{"path_socket": "reached", "abstract_socket": "refused: connection refused"} {
			cmd := u.box(t, `{"UnixSockets": true}`, self, "try", what)
			cmd.Env = append(cmd.Env, "PATH_SOCKET="+path, "ABSTRACT_SOCKET="+name)
			out, err := cmd.CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != want {
				t.Errorf("%s: got %s, %v, want %s", what, out, err, want)
			}
		}
	})
}

// A machine that cannot confine a program refuses, and says what to do. A confined program is such a machine.
func TestMachineThatCannotConfineIsRefused(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		cmd := u.box(t, "{}", self, "launch", "{}", "true")
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 99 || !strings.Contains(string(out), "user namespaces are forbidden here: set the sysctl user.max_user_namespaces") {
			t.Errorf("got %d and %s", cmd.ProcessState.ExitCode(), out)
		}
	})
}

// T12: standard input and output must not be a way out either.
func TestStandardFilesThatLeadOutAreRefused(t *testing.T) {
	dir := folder(t)
	as(t, func(t *testing.T, u user) {
		open, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		counter, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		event := os.NewFile(uintptr(counter), "event")
		server := file(t, unix.AF_UNIX, unix.SOCK_STREAM)
		if err := errors.Join(unix.Bind(int(server.Fd()), &unix.SockaddrUnix{Name: filepath.Join(folder(t), "s")}), unix.Listen(int(server.Fd()), 1)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = open.Close(), event.Close() })
		for name, one := range map[string]struct {
			stdin *os.File
			want  string
		}{
			"UDP":            {file(t, unix.AF_INET, unix.SOCK_DGRAM), "standard input is a socket"},
			"Unix datagrams": {file(t, unix.AF_UNIX, unix.SOCK_DGRAM), "is a socket that is not a connected stream"},
			"no peer":        {file(t, unix.AF_UNIX, unix.SOCK_STREAM), "is a socket that is not a connected stream"},
			"server":         {server, "is a socket that is not a connected stream"},
			"folder":         {open, "standard input is a folder, a device or something else that brevet cannot copy"},
			"event":          {event, "standard input is a folder, a device or something else that brevet cannot copy"},
		} {
			cmd := u.box(t, "{}", "true")
			cmd.Stdin = one.stdin
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 99 || !strings.Contains(string(out), one.want) {
				t.Errorf("%s: got %d and %s, want %s", name, cmd.ProcessState.ExitCode(), out, one.want)
			}
		}
	})
}

// T12: signals and priorities reach the program's own processes only, and cannot end the first one.
func TestSignalsOfTheProgramStayInside(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		outside := stranger(t, u)
		before, err := unix.Getpriority(unix.PRIO_PROCESS, outside)
		if err != nil {
			t.Fatal(err)
		}
		cmd := u.box(t, "{}", "sh", "-c", `renice -n 5 -u $(id -u) >/dev/null; kill -KILL 1; kill -STOP 1; kill -KILL -1; exit 7`)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("got %d and %s, want the program's own exit code", cmd.ProcessState.ExitCode(), out)
		}
		if err := unix.Kill(outside, 0); err != nil {
			t.Errorf("a process of the same user: %v", err)
		}
		if after, err := unix.Getpriority(unix.PRIO_PROCESS, outside); err != nil || after != before {
			t.Errorf("got the priority %d of another process, %v, want %d", after, err, before)
		}
	})
}

// The program sees the folder that its caller made for it in shared memory.
func TestFolderOfTheCallerIsKept(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir, err := os.MkdirTemp("/dev/shm", "brevet-test-") //nolint:usetesting // in shared memory
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("of the caller"), 0o644)); err != nil {
			t.Fatal(err)
		}
		out, err := u.box(t, fmt.Sprintf(`{"Folder": %q}`, dir), "sh", "-ec", "cat "+dir+"/ca.pem; echo; ls /dev/shm; echo x >"+dir+"/made").CombinedOutput()
		if want := "of the caller\n" + filepath.Base(dir) + "\n"; err != nil || string(out) != want {
			t.Errorf("got %q, %v, want %q", out, err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
			t.Error(err)
		}
	})
}

// T12: the program does not see what its caller hides: by no path, and not what comes there later.
func TestFilesOfTheCallerAreHidden(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := t.TempDir()
		folder, single, link := filepath.Join(dir, "folder"), filepath.Join(dir, "single"), filepath.Join(dir, "link")
		for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
			if err := os.Chmod(at, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		err := errors.Join(os.Mkdir(folder, 0o777), os.WriteFile(filepath.Join(folder, "key"), []byte("secret"), 0o644),
			os.WriteFile(single, []byte("secret"), 0o644), os.Symlink(folder, link))
		if err != nil {
			t.Fatal(err)
		}
		hidden := fmt.Sprintf(`{"Hidden": [%q, %q, %q, %q]}`, link, folder, single, filepath.Join(dir, "none"))
		cmd := u.box(t, hidden, "sh", "-c", "cd "+dir+`; ls folder link; cat folder/key link/key single folder/../folder/key /proc/self/cwd/folder/key
			echo ready; read later; cat folder/later; umount folder; umount single; rm -rf folder; mv folder moved; mkdir folder/new; cat folder/key single`)
		keyboard, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err = errors.Join(os.WriteFile(filepath.Join(folder, "later"), []byte("secret"), 0o644), keyboard.Close())
		if err := errors.Join(err, ignoreExit(cmd.Wait())); err != nil || strings.Contains(out.String(), "secret") || !strings.Contains(out.String(), "ready") {
			t.Errorf("got %v and %q, want nothing of what is hidden", err, out.String())
		}
		if text, err := os.ReadFile(filepath.Join(folder, "key")); err != nil || string(text) != "secret" {
			t.Errorf("got %q, %v, want the file unchanged", text, err)
		}
	})
}

// T12: the program cannot move a folder above what its caller hides, so that a file that comes to the path later shows.
func TestWhatIsHiddenStaysInItsPlace(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		dir := folder(t)
		hidden := filepath.Join(dir, "home", ".config", "brevet")
		for _, path := range []string{filepath.Join(dir, "home"), filepath.Join(dir, "home", ".config"), hidden} {
			if err := errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := u.box(t, fmt.Sprintf(`{"Hidden": [%q]}`, hidden), "sh", "-c", "cd "+dir+`
			mv home/.config home/other; mv home other; mv home/.config/brevet home/.config/other; rm -rf home
			mkdir -p home/.config/brevet; chmod -R a+rwX home; echo x >home/.config/own && echo ready; read later; cat home/.config/brevet/login`)
		keyboard, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Error(err)
		}
		err = errors.Join(os.WriteFile(filepath.Join(hidden, "login"), []byte("secret"), 0o644), keyboard.Close())
		text, unread := io.ReadAll(out)
		if err := errors.Join(err, unread, ignoreExit(cmd.Wait())); err != nil || len(text) > 0 {
			t.Errorf("got %v and %q, want nothing of what is hidden", err, text)
		}
	})
}

// ignoreExit ignores that a program failed.
func ignoreExit(err error) error {
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		return nil
	}
	return err
}

func file(t *testing.T, family, kind int) *os.File {
	t.Helper()
	fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Node and others give the programs that they start Unix stream sockets, which lead to their other end only.
func TestStandardFilesMayBeStreamPairs(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		cmd := u.command(t, "node", "-e", `
			const p = require("child_process").spawn(process.argv[1], ["launch", "{}", "cat"], {stdio: ["pipe", "pipe", "inherit"]})
			p.stdout.pipe(process.stdout); p.stdin.end("through node"); p.on("exit", code => process.exitCode = code)`, self)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "through node" {
			t.Errorf("got %s, %v", out, err)
		}
	})
}

// Nothing that the set-up needs stays in the environment or in the arguments.
func TestProgramSeesItsOwnArguments(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		got := u.shell(t, `tr '\0' ' ' </proc/$$/cmdline; cat /proc/1/environ 2>&1 || true`)
		if !regexp.MustCompile(`^sh -ec tr`).MatchString(got) || !strings.Contains(got, "Permission denied") {
			t.Errorf("got %q, want the program's arguments, and a first process that nobody reads", got)
		}
	})
}
