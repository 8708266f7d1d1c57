package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// fault is something that goes wrong for a while and is then repaired.
type fault struct {
	what        string
	begin, mend func(ctx context.Context) error
	// excuses reports whether a replica may fail an operation during the fault.
	excuses func(op string, on int) bool
	// bites means that some calls must fail or wait during the fault. Otherwise the fault had no effect.
	bites bool
}

func nothing(context.Context) error { return nil }

// These report which operations may fail if one replica, Vault, the database, or nothing that calls need is affected. No
// replica confirms a revocation before the other one knows, so both may fail to revoke.
func ofReplica(n int) func(string, int) bool {
	return func(op string, on int) bool { return on == n || op == opRevoke || op == opLogout }
}
func ofVault(op string, _ int) bool  { return op == opIssue || op == opLogin || op == opLogout }
func ofDatabase(string, int) bool    { return true }
func ofWhatIsSpare(string, int) bool { return false }

// faults returns the faults to draw from. Faults of a process affect the second replica.
func (s *soak) faults() []fault {
	second, on := s.brokers[1], s.random.IntN(2)
	relay, by := s.relays[on], time.Duration(20+s.random.IntN(300))*time.Millisecond
	send := func(signal os.Signal) func(context.Context) error {
		return func(context.Context) error { return second.process.Process.Signal(signal) }
	}
	relaunch := func(ctx context.Context) error { return s.launch(context.WithoutCancel(ctx), second) }
	do := func(f func()) func(context.Context) error { return func(context.Context) error { f(); return nil } }
	try := func(f func() error) func(context.Context) error { return func(context.Context) error { return f() } }
	postgres, vault := s.servers.Postgres, s.servers.Vault
	return []fault{
		{"the second replica is killed", func(context.Context) error {
			err := second.process.Process.Kill()
			_ = second.process.Wait()
			return err
		}, relaunch, ofReplica(1), true},
		{"the second replica is restarted", do(second.end), relaunch, ofReplica(1), true},
		{"the second replica stands still", send(syscall.SIGSTOP), send(syscall.SIGCONT), ofReplica(1), true},
		{"connections to Postgres are ended", s.terminate, nothing, ofDatabase, false},
		{"Postgres is away", try(postgres.Stop), postgres.Start, ofDatabase, true},
		{fmt.Sprintf("replica %d is cut from Postgres", on+1), do(relay.Cut), do(relay.Restore), ofReplica(on), true},
		{fmt.Sprintf("Postgres is %s slower for replica %d", by, on+1), do(func() { relay.Slow(by) }), do(relay.Restore), ofReplica(on), false},
		{fmt.Sprintf("replica %d hears nothing of Postgres", on+1), do(relay.Hush), do(relay.Restore), ofReplica(on), true},
		{"Vault is killed", try(vault.Kill), vault.Start, ofVault, true},
		{"Vault is sealed", vault.Seal, vault.Unseal, ofVault, true},
		{"the Workload API is away", try(s.socket.Close), s.serveAgain, ofWhatIsSpare, false},
	}
}

// terminate ends all connections to Postgres but its own.
func (s *soak) terminate(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.database())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	return errors.Join(err, conn.Close(ctx))
}

func (s *soak) serveAgain(context.Context) (err error) {
	s.socket, err = s.issuer.ServeWorkload(s.path("svid.sock"), spiffeid.RequireFromString("spiffe://"+domain+"/brevet"))
	return err
}

// goWrong draws a fault and its duration, injects it, and repairs it.
func (s *soak) goWrong(t *testing.T) wrong {
	t.Helper()
	all := s.faults()
	f, lasts := all[s.random.IntN(len(all))], min(time.Second+time.Duration(s.random.Int64N(int64(7*time.Second))), *soakEvery/5)
	now := wrong{fault: f, from: time.Now()}
	if err := f.begin(t.Context()); err != nil {
		t.Errorf("%s: %v", f.what, err)
	}
	<-time.After(lasts)
	if err := f.mend(t.Context()); err != nil {
		t.Errorf("mending that %s: %v", f.what, err)
	}
	now.until = time.Now()
	return now
}

// taken holds a replica's use of resources.
type taken struct{ memory, goroutines, files float64 }

func (v taken) String() string {
	return fmt.Sprintf("%.0f MiB, %.0f goroutines, %.0f files", v.memory/(1<<20), v.goroutines, v.files)
}

// take samples the first replica's metrics.
func (s *soak) take(t *testing.T) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.brokers[0].metrics+"/metrics", nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	var v taken
	into := map[string]*float64{"process_resident_memory_bytes": &v.memory, "go_goroutines": &v.goroutines, "process_open_fds": &v.files}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if to := into[name]; to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil {
				t.Error(err)
			}
			delete(into, name)
		}
	}
	if len(into) > 0 {
		t.Errorf("the replica does not tell %v", slices.Collect(maps.Keys(into)))
	}
	s.taken = append(s.taken, v)
}
