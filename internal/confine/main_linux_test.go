package confine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/confine"
	"golang.org/x/sys/unix"
)

// patience is how long a test waits for something that must happen, on a busy machine.
const patience = time.Minute

// self is a copy of this test's executable that every user may run.
var self string

// The tests run this executable again: as the caller of a confined program, as its first process, and as the program itself.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "confined":
			code, err := confine.Main(os.Args[2:])
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return code
		case "launch":
			return launch(os.Args[2], os.Args[3:])
		case "separate":
			return apart(os.Args[2:])
		case "try-file":
			return tryFile(os.Args[2])
		case "try":
			return try(os.Args[2])
		}
	}
	dir, err := os.MkdirTemp("", "brevet-confine-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self = filepath.Join(dir, "self")
	if err := errors.Join(os.Chmod(dir, 0o755), duplicate("/proc/self/exe", self)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func duplicate(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// The ports that lead out of the confined network.
const (
	proxyPort    = 3128
	databasePort = 5432
)

// launch does what `brevet exec --egress --confine` does: it confines a program, and serves its ports.
func launch(options string, line []string) int {
	o := confine.Options{Init: "confined", Ports: []int{proxyPort, databasePort}}
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return refuse(err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // as a gateway does
		return refuse(err)
	}
	path, err := exec.LookPath(line[0])
	if err != nil {
		return refuse(err)
	}
	cmd := exec.Command(path)
	cmd.Args, cmd.Env = line, append(os.Environ(), fmt.Sprintf("GATEWAY=%d", os.Getpid()))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	box, err := confine.Wrap(cmd, o)
	if err != nil {
		return refuse(err)
	}
	if err := cmd.Start(); err != nil {
		return refuse(box.Explain(err))
	}
	listeners, err := box.Listeners()
	if err != nil {
		_ = cmd.Wait()
		return refuse(err)
	}
	for _, l := range listeners {
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "of the caller") }))
		}()
	}
	if err := box.Begin(); err != nil {
		return refuse(err)
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		return refuse(err)
	}
	if err := box.Finish(nil); err != nil {
		return refuse(err)
	}
	return cmd.ProcessState.ExitCode()
}

// apart does what `brevet egress relay` does.
func apart(line []string) int {
	path, err := exec.LookPath(line[0])
	if err != nil {
		return refuse(err)
	}
	cmd := exec.Command(path)
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = line, os.Stdin, os.Stdout, os.Stderr
	box, err := confine.Separate(cmd, "confined")
	if err != nil {
		return refuse(err)
	}
	if err := errors.Join(cmd.Start(), box.Begin()); err != nil {
		return refuse(err)
	}
	_ = cmd.Wait() // the exit code says more
	if err := box.Finish(nil); err != nil {
		return refuse(err)
	}
	return cmd.ProcessState.ExitCode()
}

func refuse(err error) int {
	fmt.Fprintln(os.Stderr, "launch:", err)
	return 99
}

// user is who runs the caller of a confined program.
type user struct {
	name       string
	credential *syscall.Credential
}

const nobody = 65534

// users are the users that this test can be: if it runs as root, an ordinary one too.
func users() []user {
	if os.Getuid() != 0 {
		return []user{{name: "user"}}
	}
	return []user{{name: "root"}, {name: "nobody", credential: &syscall.Credential{Uid: nobody, Gid: nobody}}}
}

// as runs each test as each user.
func as(t *testing.T, test func(*testing.T, user)) {
	t.Helper()
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			test(t, u)
		})
	}
}

// command returns a program that runs as the user, in a folder that every user may enter.
func (u user) command(t *testing.T, line ...string) *exec.Cmd {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	t.Cleanup(stop)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: u.credential}
	cmd.WaitDelay = patience
	return cmd
}

// box returns a program that the user runs confined.
func (u user) box(t *testing.T, options string, line ...string) *exec.Cmd {
	t.Helper()
	return u.command(t, append([]string{self, "launch", options}, line...)...)
}

// shell runs a script confined, and returns its output.
func (u user) shell(t *testing.T, script string) string {
	t.Helper()
	out, err := u.box(t, "{}", "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%s%v", script, out, err)
	}
	return string(out)
}

// folder returns a folder that every user may enter and write to.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listen opens a listener of the host, which answers each connection.
func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "of the host")
			_ = conn.Close()
		}
	}()
	return l
}

func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
