package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	researcher = "spiffe://acme.example/research/agent-7"
	theAdmin   = "spiffe://acme.example/ops/admin"
)

// TestRevocationCommands runs the commands with which sandboxes, admins and auditors end credentials, in a typical order.
func TestRevocationCommands(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	t.Run("kinds", s.kinds)
	t.Run("release", s.release)
	t.Run("tail", s.tails)
	t.Run("task end", s.endsTasks)
	t.Run("revoke", s.revokes)
	t.Run("quarantine", s.quarantines)
	brevet(t, s.as("auditor"), "audit", "unrevoked").want(t, 0, "no overdue credentials")
	if got := brevet(t, s.as("auditor"), "audit", "unrevoked", "-o", "json"); got.code != 0 || got.out != "" {
		t.Errorf("got %+v, want nothing", got)
	}
	s.stop(t, syscall.SIGTERM)
}

var aLogin = regexp.MustCompile(`(?m)\Apassword=(\S+)\nusername=(\S+)\n\z`)

// kinds requests credentials that are not JWTs.
func (s *session) kinds(t *testing.T) {
	got := brevet(t, s.env, "request", "reports.orders.read", "--task", "t-kinds")
	got.want(t, 0, "issuance ")
	login := aLogin.FindStringSubmatch(got.out)
	if login == nil {
		t.Fatalf("got %q, want a user and a password, line by line", got.out)
	}
	if strings.Contains(got.err, login[1]) {
		t.Error("the password is on standard error")
	}
	document := object(t, brevet(t, s.env, "request", "reports.orders.read", "--task", "t-kinds", "-o", "json").out)
	credential, ok := document["credential"].(map[string]any)
	if !ok || document["kind"] != "database" || document["name"] != credential["username"] || credential["password"] == "" || document["token"] != nil {
		t.Errorf("got %v", document)
	}
	key := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(key, []byte("-----BEGIN OPENSSH PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	brevet(t, s.env, "request", "hosts.shell.open", "user=deploy", "--task", "t-kinds", "--public-key", key).want(t, 1, "holds a private key")
	idToken, none := filepath.Join(t.TempDir(), "id-token"), filepath.Join(t.TempDir(), "none")
	for path, text := range map[string]string{idToken: "a.b.c\n", none: "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	brevet(t, s.env, "request", "reports.orders.read", "--task", "t-kinds", "--on-behalf-of-file", idToken).want(t, 1, "on_behalf_of", "is not a valid ID token of a person")
	brevet(t, s.env, "request", "reports.orders.read", "--task", "t-kinds", "--on-behalf-of-file", none).want(t, 1, "--on-behalf-of-file: "+none+" is empty")
	brevet(t, s.env, "request", "reports.orders.read", "--task", "t-kinds", "--on-behalf-of-file", key).want(t, 1, key+" does not hold an ID token")
}

// issue requests a token for a task and returns its issuance id.
func (s *session) issue(t *testing.T, task string) string {
	t.Helper()
	got := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", task, "-o", "json")
	got.want(t, 0)
	return object(t, got.out)["id"].(string)
}

func (s *session) release(t *testing.T) {
	id := s.issue(t, "t-release")
	brevet(t, s.as("support"), "release", id).want(t, 1, "Not found")
	brevet(t, s.env, "release", id).want(t, 0, "STATUS", "released", id, "accepted offline until")
	brevet(t, s.env, "release", "nonsense").want(t, 1, "Not found")
	brevet(t, s.as("auditor"), "audit", "list", "--status", "released").want(t, 0, "t-release")
}

// tails runs `brevet audit tail` while credentials are issued and released. The tail shows only records from after its
// start, which may be at any time.
func (s *session) tails(t *testing.T) {
	tail := launch(t, s.as("auditor"), "audit", "tail", "--task", "t-tail")
	var id string
	within(t, patience, "the tail shows what is issued", func() bool {
		id = s.issue(t, "t-tail")
		return strings.Contains(tail.out.String(), "issued")
	})
	s.issue(t, "t-other")
	brevet(t, s.env, "release", id).want(t, 0)
	tail.waitFor(t, tail.out, "released")
	tail.signal(t, syscall.SIGTERM)
	tail.finish(t).want(t, 0, researcher, "task t-tail")
	if strings.Contains(tail.out.String(), "t-other") {
		t.Errorf("got %s, want one task alone", tail.out)
	}
}

func (s *session) endsTasks(t *testing.T) {
	s.issue(t, "t-1")
	brevet(t, s.env, "request", "reports.orders.read", "--task", "t-1").want(t, 0)
	brevet(t, s.as("support"), "task", "end", "t-1", "--spiffe-id", researcher).want(t, 1, "Not found")
	got := brevet(t, s.env, "task", "end", "t-1", "--reason", "done", "-o", "json")
	got.want(t, 0)
	receipt := object(t, got.out)
	if ended, _ := receipt["ended"].([]any); len(ended) != 2 || receipt["counts"].(map[string]any)["revoked"] != 2.0 {
		t.Errorf("got %s, want two that are revoked", got.out)
	}
	brevet(t, s.env, "task", "end", "t-1").want(t, 0, "no live credentials matched")
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-1").want(t, exitDenied, "The task has ended")
	story := brevet(t, s.as("auditor"), "audit", "task", "t-1", "--spiffe-id", researcher)
	story.want(t, 0, "reports.orders.read", "task.end", "done")
	brevet(t, s.as("auditor"), "audit", "task", "t-1").want(t, 1, "brevet audit task t-1 --spiffe-id spiffe://")
	unnamed := brevet(t, s.as("auditor"), "audit", "task", "t-1", "-o", "json")
	if problem := object(t, unnamed.out); unnamed.code != 1 || problem["field"] != "spiffe_id" || problem["explanation"] == nil {
		t.Errorf("got exit code %d and %v, want the problem", unnamed.code, problem)
	}
	brevet(t, s.env, "audit", "task", "t-1").want(t, 0, "task.end") // a sandbox may read its own tasks
	if first, last := strings.Index(story.out, "issuance.intent"), strings.LastIndex(story.out, "revoked"); first < 0 || last < first {
		t.Errorf("got %s, want the end after the beginning", story.out)
	}
	s.issue(t, "t-2")
	brevet(t, s.as("admin"), "task", "end", "t-2", "--spiffe-id", researcher).want(t, 0, "task_ended")
	later := time.Now().Add(48 * time.Hour)
	brevet(t, s.env, "task", "end", "t-3", "--at", later.Format(time.RFC3339)).want(t, 0, "ends at "+later.Format(time.DateOnly))
	brevet(t, s.env, "task", "end", "t-3", "--at", "2100-01-02T15:04:05Z").want(t, 1, "at")
}

func (s *session) revokes(t *testing.T) {
	s.issue(t, "t-revoke")
	brevet(t, s.env, "revoke", "--task", "t-revoke", "--reason", "x").want(t, 1, "Permission denied")
	brevet(t, s.as("admin"), "revoke", "--task", "t-revoke", "--prefix", "spiffe://acme.example/research", "--reason", "leaked").want(t, 0, "revoked")
	brevet(t, s.as("admin"), "revoke", "--task", "t-revoke", "--reason", "leaked").want(t, 1, "Not found")
	records := objects(t, brevet(t, s.as("auditor"), "audit", "list", "--task", "t-revoke", "-o", "json").out)
	if len(records) != 1 || records[0]["status"] != "revoked" || records[0]["ended_by"] != theAdmin {
		t.Errorf("got the records %v", records)
	}
}

func (s *session) quarantines(t *testing.T) {
	id := s.issue(t, "t-quarantine")
	brevet(t, s.as("admin"), "quarantine", "list").want(t, 0, "no quarantined sandboxes")
	brevet(t, s.env, "quarantine", "add", researcher, "--reason", "x").want(t, 1, "Permission denied")
	brevet(t, s.as("admin"), "quarantine", "add", "spiffe://acme.example/research", "--reason", "odd").want(t, 0, "quarantined", id)
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-4").want(t, exitDenied, "The sandbox is quarantined")
	brevet(t, s.as("auditor"), "quarantine", "list").want(t, 0, "spiffe://acme.example/research", theAdmin, "odd")
	standing := objects(t, brevet(t, s.as("auditor"), "quarantine", "list", "-o", "json").out)
	if len(standing) != 1 || standing[0]["actor"] != theAdmin {
		t.Errorf("got %v", standing)
	}
	brevet(t, s.as("admin"), "quarantine", "remove", researcher).want(t, 1, "Not found")
	brevet(t, s.as("admin"), "quarantine", "remove", "spiffe://acme.example/research", "--reason", "all well").want(t, 0, "no longer in quarantine")
	s.issue(t, "t-5")
}
