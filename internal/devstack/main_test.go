package devstack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// childDir makes the test binary start a stack in that folder, print "ready", and close the stack when its input ends,
// unless it is killed before.
const childDir = "BREVET_TEST_STACK_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		stack, err := devstack.Start(context.Background(), devstack.Config{Dir: dir})
		if err == nil {
			fmt.Println("ready")
			_, _ = io.Copy(io.Discard, os.Stdin)
			err = stack.Close()
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the shared stack:", err)
		code = 1
	}
	os.Exit(code)
}

var closeShared = func() error { return nil }

var startShared = sync.OnceValues(func() (*devstack.Stack, error) {
	dir, err := os.MkdirTemp("", "brevet-devstack-*")
	if err != nil {
		return nil, err
	}
	stack, err := devstack.Start(context.Background(), devstack.Config{
		Dir: dir, Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	closeShared = func() error { return errors.Join(stack.Close(), os.RemoveAll(dir)) }
	return stack, nil
})

// shared returns a stack for tests that leave both servers running and unsealed.
func shared(t *testing.T) *devstack.Stack {
	t.Helper()
	stack, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return stack
}

// start runs a separate stack for the test and logs how long the start took.
func start(t *testing.T, dir string) *devstack.Stack {
	t.Helper()
	begin := time.Now()
	stack, err := devstack.Start(t.Context(), devstack.Config{Dir: dir, Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() { stop(t, stack) })
	return stack
}

func stop(t *testing.T, stack *devstack.Stack) {
	t.Helper()
	if err := stack.Close(); err != nil {
		t.Errorf("closing the stack: %v", err)
	}
}

// servers returns the process ids of the PostgreSQL and Vault that run in a state folder.
func servers(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	for _, name := range []string{"postgres/postmaster.pid", "vault/pid"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		pid, err := strconv.Atoi(line)
		if err != nil || !alive(pid) {
			t.Fatalf("%s: got pid %q, want that of a running process", name, line)
		}
		pids = append(pids, pid)
	}
	return pids
}

// alive counts a zombie as dead: its new parent has just not reaped it yet.
func alive(pid int) bool {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := bytes.Cut(text, []byte(") "))
		return !bytes.HasPrefix(state, []byte("Z"))
	}
	return syscall.Kill(pid, 0) == nil
}

// within fails the test unless the condition becomes true in time.
func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}
