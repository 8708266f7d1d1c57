package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// command describes a child process before it runs.
type command struct {
	path string
	args []string
	env  []string // beyond what the child inherits
	log  string   // file for the child's stdout and stderr
	// account is the user that the child runs as; nil is the current user.
	account *account
	// folders are passed to the child as open files, because a child with fewer rights may be unable to reach them by path.
	folders []*os.File
	// onParentDeath is the signal that the kernel sends to the child if this process dies without closing it (Linux only).
	onParentDeath syscall.Signal
}

// process is a running child. Its fields are set before done closes.
type process struct {
	cmd     *exec.Cmd
	log     string
	logFrom int64 // where this run's lines begin
	done    chan struct{}
	err     error
}

func (c command) start() (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	defer func() { _ = log.Close() }()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	cmd := exec.Command(c.path, c.args...) //nolint:noctx,gosec // a server outlives the context of its start
	cmd.Dir = "/"
	cmd.Env = append(childEnv(os.Environ()), c.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = c.folders
	cmd.SysProcAttr = sysProcAttr(c)
	p := &process{cmd: cmd, log: c.log, logFrom: from, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.supervise(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.path, err)
	}
	return p, nil
}

// run starts the child and waits until it has ended. Its error quotes the last lines that the child wrote.
func (c command) run(ctx context.Context) error {
	p, err := c.start()
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.stop(0)
		return ctx.Err()
	}
	if p.err != nil {
		return fmt.Errorf("%w; its last lines:\n%s", p.err, p.said())
	}
	return nil
}

// supervise starts the child and waits for it on one locked thread. The kernel ties a child's parent-death signal to
// the thread that forked it, and Go may end an idle thread at any time.
func (p *process) supervise(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// serves reports whether the child runs and answers requests. A child that was killed from outside still counts as
// running until it is reaped, so serves also requires an answer.
func (p *process) serves(ctx context.Context, ready func(context.Context) error) bool {
	return p.running() && p.await(ctx, ready) == nil
}

// stop sends each signal in turn and waits up to patience after each, then kills the child. When stop returns, the child
// has ended and is reaped.
func (p *process) stop(patience time.Duration, signals ...syscall.Signal) {
	for _, sig := range signals {
		if !p.running() {
			return
		}
		_ = p.cmd.Process.Signal(sig) // an error means that the child has just ended
		select {
		case <-p.done:
			return
		case <-time.After(patience):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// said returns the last lines that the child wrote in this run, for an error message.
func (p *process) said() string {
	const lines = 12
	file, err := os.Open(p.log)
	if err != nil {
		return "(no log)"
	}
	defer func() { _ = file.Close() }()
	text, _ := io.ReadAll(io.NewSectionReader(file, p.logFrom, 1<<20))
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, []byte("\n")))
}

// claims reports whether the child has logged that it listens. Other users cannot write to that log. vaultd, vault and
// bao log this line once, after they have bound their port, and exit if they cannot bind it.
func (p *process) claims(port int) bool {
	log, err := os.Open(p.log)
	if err != nil {
		return false
	}
	defer func() { _ = log.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(log, p.logFrom, 1<<16))
	return err == nil && (bytes.Contains(text, []byte(" listening on "+loopback(port)+"\n")) ||
		bytes.Contains(text, []byte(" server started! ")))
}

// childEnv removes variables that would point the servers at another installation: PGDATA, PGPORT, VAULT_ADDR, VAULT_TOKEN ...
func childEnv(env []string) []string {
	kept := []string{"LC_ALL=C"}
	for _, variable := range env {
		ours := true
		for _, prefix := range []string{"PG", "VAULT_", "BAO_", "LC_", "LANG=", "NOTIFY_SOCKET="} {
			ours = ours && !strings.HasPrefix(variable, prefix)
		}
		if ours {
			kept = append(kept, variable)
		}
	}
	return kept
}

// endOrphan ends a server that an earlier stack left behind. This stack holds the folder's lock, so no other live stack
// owns the server. Linux ends children together with their parent; on other systems, kill -9 of the parent leaves them
// running. If the process does not belong to this folder, its number was reused and endOrphan leaves it alone.
func endOrphan(ctx context.Context, pid int, folder string, signals ...syscall.Signal) error {
	for _, sig := range append(signals, syscall.SIGKILL) {
		if !belongsTo(pid, folder) {
			return nil
		}
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending process %d, left over from an earlier stack: %w", pid, err)
		}
		patience, cancel := context.WithTimeout(ctx, 5*time.Second)
		gone := poll(patience, func() bool { return !belongsTo(pid, folder) })
		cancel()
		if gone == nil {
			return nil
		}
	}
	return fmt.Errorf("process %d, left over from an earlier stack in %s, does not end", pid, folder)
}

// poll calls ready until it returns true or the context ends.
func poll(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// await polls until the server answers. If the server ends first, or does not answer within a minute, await makes sure
// that it is stopped and returns an error that quotes its last lines.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	var last error
	err := poll(ctx, func() bool {
		last = ready(ctx)
		return last == nil
	})
	if !p.running() {
		return p.ended()
	}
	if err == nil {
		return nil
	}
	p.stop(time.Second, syscall.SIGTERM)
	return fmt.Errorf("waiting until it is ready: %w (%w); its last lines, from %s:\n%s", err, last, p.log, p.said())
}

func (p *process) ended() error {
	said, reason := p.said(), errEnded
	if strings.Contains(strings.ToLower(said), "address already in use") {
		reason = errPortTaken
	}
	return fmt.Errorf("%w; its last lines, from %s:\n%s", reason, p.log, said)
}

var (
	errEnded     = errors.New("it ended before it was ready")
	errPortTaken = errors.New("another program has its port")
	errNotOurs   = errors.New("what listens on the port is not the server that was started")
)
