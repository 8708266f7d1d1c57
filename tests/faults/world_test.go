package faults_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/clouds"
)

// task is the task of every request here.
const task = "t-1"

// adminID is the workload that may revoke.
const adminID = "spiffe://acme.test/ops/admin"

// world is a Brevet deployment that keeps running while its other replicas fail.
type world struct {
	stack     *testkit.Stack
	inventory *inventory
	admin     *http.Client
	crowd     chan struct{}
	// unrevoked is the number that the sweeper last reported.
	unrevoked atomic.Int64
	checking  sync.Mutex
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, testkit.Options{})
}

// newWorldOn is newWorld with another database for the record, or another way to Vault.
func newWorldOn(t *testing.T, options testkit.Options) *world {
	t.Helper()
	w := &world{crowd: make(chan struct{}, 3)}
	hub := testkit.StartGitHub(t)
	stack := testkit.NewStack(t, testkit.Options{
		GitHub: hub, DB: options.DB, VaultVia: options.VaultVia, Catalogue: catalogue, Admins: []string{adminID}, People: approvers, Rules: approverRules, OnUnrevoked: func(n int) { w.unrevoked.Store(int64(n)) },
	})
	w.stack = stack
	w.inventory = &inventory{stack: stack, vault: stack.Vault(t), target: stack.TargetURL(t), delivered: map[string]bool{}, since: time.Now()}
	w.inventory.hub = hub
	w.inventory.engines = clouds.NewEngines(t, w.inventory.vault, "")
	w.admin = w.client(t, adminID)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	election := stack.DB.Ledger(t)
	go func() {
		defer close(done)
		_ = stack.Broker.Sweep(ctx, election)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) client(t *testing.T, id string) *http.Client {
	t.Helper()
	return w.stack.HTTP(t, w.stack.X509(t, id))
}

// replica is a broker in a separate process.
type replica struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	log   *bytes.Buffer
	ended chan struct{}
	err   error
}

// sweeping makes a replica a candidate for the sweep.
func sweeping(s map[string]any) { s["Sweeps"] = true }

// startReplica runs this test binary as a broker, and waits until it serves.
func (w *world) startReplica(t *testing.T, f *fault, options ...func(map[string]any)) *replica {
	t.Helper()
	settings := w.settings(t, f)
	for _, option := range options {
		option(settings)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{cmd: exec.Command(os.Args[0]), log: &bytes.Buffer{}, ended: make(chan struct{})} // it ends when our pipe closes
	r.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	r.cmd.Stderr = r.log
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() { r.stop(t) })
	if readErr != nil {
		<-r.ended
		t.Fatalf("starting a replica: %v\n%s", r.err, r.log)
	}
	r.url = "https://" + strings.TrimSpace(line)
	return r
}

func (w *world) settings(t *testing.T, f *fault) map[string]any {
	t.Helper()
	s := w.stack
	svid := s.X509(t, "spiffe://acme.test/brevet")
	chain, key, err := svid.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := s.Acme.Bundle().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	access, app := s.VaultAccess(), w.inventory.hub.App()
	roots, err := os.ReadFile(w.inventory.hub.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"Fault": map[string]any{"Point": f.Point, "Action": f.Action, "Spares": f.Spares, "Spoils": f.Spoils, "Says": f.Says}, "Database": s.DB.BrokerURL,
		"VaultAddr": access.Addr, "RoleID": access.RoleID, "SecretIDFile": access.SecretIDFile,
		"SigningKey": access.SigningKey, "TokenRole": access.TokenRole, "Catalogue": catalogue,
		"GitHubURL": app.URL.String(), "GitHubClient": app.ClientID, "GitHubRoots": roots,
		"Bundle": bundle, "TrustDomain": "acme.test", "Chain": chain, "Key": key, "Admin": adminID,
	}
}

// waitKilled fails the test unless the fault killed the replica.
func (r *replica) waitKilled(t *testing.T) {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(20 * time.Second):
		t.Fatalf("the replica lives: the fault did not strike\n%s", r.log)
	}
	if r.err == nil || !strings.Contains(r.err.Error(), "killed") {
		t.Errorf("the replica ended with %v, want it killed\n%s", r.err, r.log)
	}
}

// stop ends the replica, if it still runs.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	_ = r.stdin.Close()
	select {
	case <-r.ended:
	case <-time.After(20 * time.Second):
		_ = r.cmd.Process.Kill()
		<-r.ended
		t.Errorf("a replica did not end by itself")
	}
}

// ask requests a credential of a kind from a replica.
func (w *world) ask(t *testing.T, r *replica, subject string, k kind) answer {
	t.Helper()
	body := k.body()
	body["scope"], body["task"] = "test."+k.name, task
	got, err := call(t.Context(), w.client(t, subject), r.url+"/v1/tokens", body)
	if err != nil {
		t.Logf("no answer: %v", err)
	}
	if got.has() {
		w.inventory.deliver(got.ID)
	}
	return got
}

// awaitEnd waits until every record of the sandbox is in an end state, or is issued and not open by the caller's stillOpen.
func (w *world) awaitEnd(t *testing.T, subject string, deadline time.Time, stillOpen func(row) bool) []row {
	t.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		rows := w.inventory.rows(t.Context(), t, subject)
		open := ""
		for _, r := range rows {
			switch {
			case r.elsewhere():
			case r.Status == "intent", r.Status == "unknown", r.Status == "revoking":
				open = r.Status
			case r.Status == "issued" && stillOpen(r):
				open = "issued"
			}
		}
		if open == "" {
			return rows
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s a record is still %s", grace, open)
		}
		<-tick.C
	}
}

// renewed reports whether a credential has lived longer than it could without renewal.
func renewed(r row) bool { return time.Since(r.begun()) > 40*time.Second }

// check runs the invariant checker over everything.
func (w *world) check(t *testing.T) {
	t.Helper()
	w.checking.Lock()
	defer w.checking.Unlock()
	for _, line := range w.inventory.check(t) {
		t.Error(line)
	}
}

// checkLater runs check, a minute after what happened.
func (w *world) checkLater(t *testing.T, what string) {
	t.Helper()
	pauseFor(t.Context(), grace+time.Second)
	t.Run("a minute later", func(t *testing.T) {
		t.Cleanup(func() {
			results.other("the record against Vault and the target database, a minute after "+what, "the same", !t.Failed())
		})
		w.check(t)
	})
}
