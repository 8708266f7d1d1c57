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
	log  string   // file that takes what the child writes
	// account is whom the child runs as; nil is whoever we are.
	account *account
	// folders are handed down open: a child without our rights may be unable to walk to them by path.
	folders []*os.File
	// onParentDeath is what the kernel sends to the child when this process dies without closing (Linux only).
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
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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

// supervise starts the child and waits for it on one locked thread. The kernel ties a child's parent-death signal to
// the thread that forked it, and Go would end an idle thread at will.
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

// serves reports whether the child runs and answers. A child that was killed from outside an instant ago still counts
// as running until it is reaped, so only an answer speaks for it.
func (p *process) serves(ctx context.Context, ready func(context.Context) error) bool {
	return p.running() && p.await(ctx, ready) == nil
}

// stop asks with each signal in turn, waits that long for each, and then kills. When it returns, the child is gone
// and reaped.
func (p *process) stop(patience time.Duration, signals ...syscall.Signal) {
	for _, sig := range signals {
		if !p.running() {
			return
		}
		_ = p.cmd.Process.Signal(sig) // an error means that it has just ended
		select {
		case <-p.done:
			return
		case <-time.After(patience):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// said answers with the last lines that the child wrote in this run, for an error message.
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

// claims reports whether the child has said that it listens, in a log that other users cannot write to. vaultd, vault
// and bao say so once, after they have taken their port, and end if they cannot take it.
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

// childEnv drops what would bend the servers to some other installation: PGDATA, PGPORT, VAULT_ADDR, VAULT_TOKEN ...
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

// endOrphan ends a server that an earlier stack left behind: the folder's lock is ours, so no living stack owns it.
// Linux ends children with their parent, elsewhere kill -9 of the parent leaves them. A process that is not about
// this folder has merely been given the same number and is left alone.
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

// poll asks until the answer is yes or the context ends.
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

// await polls until the server answers. One that ends first, or stays silent for too long, is an error that quotes
// what it said; it does not run on.
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
