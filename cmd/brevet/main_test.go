package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

var (
	binary     string // the program under test
	buildFlags []string
)

// patience is how long a test waits for something that must happen, on a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

// buildAndRun builds the program once, for tests of what only a process shows: signals, exit codes, and leftovers.
func buildAndRun(m *testing.M) int {
	// A developer's own environment must not affect these tests.
	for _, name := range []string{
		"BREVET_SERVER", "BREVET_SERVER_ID", "BREVET_TASK", "BREVET_AUDIENCE", "BREVET_CONFIG", "SPIFFE_ENDPOINT_SOCKET", "BREVET_OIDC_ISSUER",
		"BREVET_OIDC_CLIENT_ID", "BREVET_CA_FILE", "BREVET_DEV_STATE", "BREVET_AS_WORKLOAD",
	} {
		_ = os.Unsetenv(name)
	}
	dir, err := os.MkdirTemp("", "brevet-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	_ = os.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	_ = os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")) // nor must a developer's own login
	binary = filepath.Join(dir, "brevet")
	build := exec.Command("go", append(append([]string{"build", "-o", binary}, buildFlags...), ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building brevet: %v\n%s", err, out)
		return 1
	}
	// On a machine that has never built Vault this takes minutes, which should not count as the time of a test.
	if err := devstack.Prepare(context.Background(), func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return testkit.Main(m)
}

// result is the exit code of a program and what it printed.
type result struct {
	code     int
	out, err string
}

// inProcess runs a command that needs neither signals nor a separate environment.
func inProcess(t *testing.T, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// process is a running brevet.
type process struct {
	cmd      *exec.Cmd
	out, err *stream
	ended    chan struct{}
}

// launch starts brevet with env on top of the test's own environment. It is killed with the test.
func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return launchWith(t, nil, env, args...)
}

// launchWith is launch with attributes for the operating system.
func launchWith(t *testing.T, attr *syscall.SysProcAttr, env []string, args ...string) *process {
	t.Helper()
	return start(t, attr, env, append([]string{binary}, args...)...)
}

// start is launchWith for any program.
func start(t *testing.T, attr *syscall.SysProcAttr, env []string, line ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &process{
		cmd: exec.CommandContext(ctx, line[0], line[1:]...), out: newStream(), err: newStream(), ended: make(chan struct{}),
	}
	p.cmd.Env, p.cmd.SysProcAttr = append(os.Environ(), env...), attr
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	return p
}

// finish waits until the program has ended.
func (p *process) finish(t *testing.T) result {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(5 * patience): // a demo starts servers
		t.Fatalf("%v has not ended within %s\nstdout: %s\nstderr: %s", p.cmd.Args, 5*patience, p.out, p.err)
	}
	if p.cmd.ProcessState.ExitCode() == 66 && strings.Contains(p.err.String(), "DATA RACE") {
		t.Fatalf("a data race in %v:\n%s", p.cmd.Args, p.err)
	}
	return result{p.cmd.ProcessState.ExitCode(), p.out.String(), p.err.String()}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("sending %s: %v", sig, err)
	}
}

// brevet runs the program to its end.
func brevet(t *testing.T, env []string, args ...string) result {
	t.Helper()
	return launch(t, env, args...).finish(t)
}

// want fails the test unless the program ended with code, and its output and messages contain all parts.
func (r result) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("got exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.out+r.err, part) {
			t.Errorf("%q is missing in\nstdout: %s\nstderr: %s", part, r.out, r.err)
		}
	}
}

// stream is output for which a test can wait.
type stream struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{} // closed and replaced at each write
}

func newStream() *stream { return &stream{written: make(chan struct{})} }

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		close(s.written)
		s.written = make(chan struct{})
	}()
	return s.text.Write(p)
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// waitFor returns when the program has printed text to the given stream. It fails if the program ends before that.
func (p *process) waitFor(t *testing.T, on *stream, text string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		on.mu.Lock()
		found, more := strings.Contains(on.text.String(), text), on.written
		on.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-p.ended:
			if !strings.Contains(on.String(), text) {
				t.Fatalf("%v ended (%v) without printing %q\nstdout: %s\nstderr: %s", p.cmd.Args, p.cmd.ProcessState, text, p.out, p.err)
			}
			return
		case <-timeout:
			t.Fatalf("%v did not print %q within %s\nstdout: %s\nstderr: %s", p.cmd.Args, text, patience, p.out, p.err)
		}
	}
}

// within calls ok until it succeeds. It is for conditions that send no event, such as the end of another process.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !ok(); <-tick.C {
		if time.Since(began) > limit {
			t.Fatalf("waited %s for this: %s", limit, what)
		}
	}
}

// running lists the processes that work in dir or have it on their command line.
func running(t *testing.T, dir string) []string {
	t.Helper()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		return listed(t, dir)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatalf("reading /proc: %v", err)
	}
	var found []string
	for _, path := range lines {
		proc := filepath.Dir(path)
		line, _ := os.ReadFile(path) // empty for a zombie, missing if the process has just ended
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd"))
		if filepath.Base(proc) == strconv.Itoa(os.Getpid()) {
			continue
		}
		if bytes.Contains(line, []byte(dir)) || cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			found = append(found, filepath.Base(proc)+": "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// listed does what running does, on systems without /proc.
func listed(t *testing.T, dir string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-axo", "pid=,command=").Output()
	if err != nil {
		t.Fatalf("listing processes: %v", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) && !strings.HasPrefix(strings.TrimSpace(line), strconv.Itoa(os.Getpid())+" ") {
			found = append(found, line)
		}
	}
	return found
}

// nothingRuns fails unless all processes of dir end soon.
func nothingRuns(t *testing.T, dir string) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Errorf("left running: %q", left)
		}
	}()
	within(t, patience, "nothing of "+dir+" runs", func() bool {
		left = running(t, dir)
		return len(left) == 0
	})
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
