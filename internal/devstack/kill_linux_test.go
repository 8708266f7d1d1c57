package devstack_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Other systems have no parent-death signal: there, the next start ends what was left.
func TestKilledParentLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child: got %q, want ready", line)
	}
	pids := servers(t, dir)
	if err := child.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	for _, pid := range pids {
		within(t, 10*time.Second, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
	}
	if got := query(t, start(t, dir).Postgres.AdminURL(), `SELECT 'resumed'`); got != "resumed" {
		t.Errorf("query after the crash: got %q, want resumed", got)
	}
}
