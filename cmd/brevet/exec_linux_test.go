package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo-terminal: the side on which a person types, and the side that programs see.
func terminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	return keyboard, screen
}

// execAtTerminal checks that Ctrl-C reaches the program once: from the terminal, and not again from brevet.
func (s *session) execAtTerminal(t *testing.T) {
	keyboard, screen := terminal(t)
	out := newStream()
	cmd := exec.CommandContext(t.Context(), binary, append(append([]string{"exec"}, with(repo, "--file", "token")...), "--", "sh", "-c", `
		n=0
		trap 'n=$((n+1)); echo "got $n"' INT
		trap 'echo "in all $n"; kill $!; exit 0' USR1
		sleep 60 & # wait lets a trap run at once, so that two signals are not taken for one
		echo ready
		while :; do wait; done`)...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), s.env...), screen, out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, out: out, err: newStream(), ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	p.waitFor(t, out, "ready\n")
	// Two signals in quick succession are often merged, but not always. So this repeats the test.
	const often = 30
	for range often {
		before := strings.Count(out.String(), "got ")
		if _, err := keyboard.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, out, fmt.Sprintf("got %d\n", before+1))
	}
	p.signal(t, syscall.SIGUSR1)
	p.finish(t).want(t, 0, fmt.Sprintf("in all %d\n", often))
}

// TestGatewayMemoryIsUnreadable checks that processes of the same user cannot read credentials in a gateway's memory.
func TestGatewayMemoryIsUnreadable(t *testing.T) {
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) })
	gateway, err := OutFlags{CallsPerSecond: 1}.gateway(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Close(t.Context())
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		t.Errorf("got %d, %v, want a process that no other can look into", dumpable, err)
	}
}
