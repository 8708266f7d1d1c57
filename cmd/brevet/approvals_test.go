package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// person logs somebody in with a separate home folder, and returns the environment to act as that person.
func (s *session) person(t *testing.T, username string) []string {
	t.Helper()
	return logInAs(t, s.env, username)
}

// logInAs logs a person in to the server that env names, in a home of their own, and returns env with that home.
func logInAs(t *testing.T, env []string, username string) []string {
	t.Helper()
	home := t.TempDir()
	env = append(env[:len(env):len(env)], "HOME="+home, "XDG_CONFIG_HOME="+home)
	login := launch(t, env, "login", "-o", "json")
	login.waitFor(t, login.out, "\n")
	var device struct {
		Address string `json:"verification_uri_complete"`
	}
	if err := json.Unmarshal([]byte(strings.SplitN(login.out.String(), "\n", 2)[0]), &device); err != nil || device.Address == "" {
		t.Fatalf("got %q, %v, want an address to log in at", login.out, err)
	}
	press(t, device.Address, url.Values{"username": {username}})
	login.finish(t).want(t, 0)
	return env
}

var aRequest = regexp.MustCompile(`request +(\S+)`)

// ask requests a write that needs approval. It returns the waiting process and the id of the request.
func (s *session) ask(t *testing.T, task, reason string) (*process, string) {
	t.Helper()
	p := launch(t, s.env, "request", "github.issues.write", "repo=acme/api", "--task", task, "--reason", reason, "--wait")
	p.waitFor(t, p.err, "waiting for oncall")
	return p, aRequest.FindStringSubmatch(p.err.String())[1]
}

// TestBreakGlassRequestIsListedSeparately checks that a break-glass request is not hidden behind an identical one without break-glass.
func TestBreakGlassRequestIsListedSeparately(t *testing.T) {
	var out bytes.Buffer
	whole := openapi.ApprovalCase{ID: "whole", Like: "x", Approval: openapi.Approval{Quorum: 3}}
	twin, broken := whole, whole
	twin.ID, broken.ID, broken.Approval.Broken = "twin", "broken", true
	if err := printApprovals(&console{out: &out}, []openapi.ApprovalCase{whole, twin, broken}); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(rows) != 3 || !strings.Contains(rows[1], "and 1 similar") || strings.Contains(rows[1], "GLASS") ||
		!strings.HasPrefix(rows[2], "broken") || !strings.HasSuffix(rows[2], "BREAK GLASS") {
		t.Errorf("got %s, want one row for two that are whole, and one with the alarm", out.String())
	}
}

// TestApprovalCommands runs the commands with which people decide on requests, in a typical order.
func TestApprovalCommands(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	brevet(t, append(s.env, "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir()), "approvals", "list").want(t, 1, "run brevet login")
	alice, carol := s.person(t, "alice"), s.person(t, "carol")
	brevet(t, alice, "approvals", "list").want(t, 0, "no pending approvals")

	watch := launch(t, alice, "approvals", "watch", "--every", "1h") // the broker pushes events, so the interval does not matter
	asks, id := s.ask(t, "t-1", hostileReason)
	watch.waitFor(t, watch.out, "brevet approvals show "+id)
	watch.signal(t, syscall.SIGTERM)
	watch.finish(t).want(t, 0)
	brevet(t, alice, "approvals", "list").want(t, 0, id, researcher, "github.issues.write", "0 of 1")
	brevet(t, carol, "approvals", "list").want(t, 0, id) // she may break glass
	brevet(t, carol, "approvals", "approve", id, "--yes").want(t, 1, "Not eligible to vote")
	shown := brevet(t, alice, "approvals", "show", id)
	shown.want(t, 0, "github:repo/acme/api", "at most 5m", "unverified", "mixes alphabets")
	inertWords(t, shown.out)
	brevet(t, alice, "approvals", "approve", id).want(t, 1, "confirmation requires a terminal")
	brevet(t, alice, "approvals", "approve", id, "--yes", "--note", "fine").want(t, 0, "is approved: 1 of 1")
	got := asks.finish(t)
	got.want(t, 0, "github.issues.write on github:repo/acme/api")
	if strings.Count(got.out, ".") != 2 {
		t.Errorf("got %q on standard output, want the token alone", got.out)
	}

	t.Run("script", func(t *testing.T) { s.collectsByScript(t, alice) })
	t.Run("collects", func(t *testing.T) { s.collects(t, alice) })
	t.Run("interrupted", func(t *testing.T) { s.interrupted(t, alice) })
	t.Run("glass", func(t *testing.T) { s.breakGlass(t, alice, carol) })
	t.Run("no", func(t *testing.T) {
		asks, id := s.ask(t, "t-2", "please")
		brevet(t, alice, "approvals", "deny", id, "--yes").want(t, 0, "is rejected")
		asks.finish(t).want(t, exitDenied, "denied the request")
		brevet(t, alice, "approvals", "approve", id, "--yes").want(t, 1, "Already decided")
	})
	t.Run("alike", func(t *testing.T) {
		first, id := s.ask(t, "t-3", "please")
		second, _ := s.ask(t, "t-4", "please")
		brevet(t, alice, "approvals", "list").want(t, 0, "and 1 similar")
		brevet(t, alice, "approvals", "approve", id, "--like", "--yes").want(t, 0, "is approved")
		first.finish(t).want(t, 0)
		second.finish(t).want(t, 0)
	})
	t.Run("withdrawn", func(t *testing.T) {
		asks, id := s.ask(t, "t-5", "please")
		brevet(t, s.env, "withdraw", id).want(t, 0, "is withdrawn")
		asks.finish(t).want(t, 1, "Nothing to redeem")
	})
	if data, err := os.ReadFile(s.dir + "/brevet.yaml"); err != nil || !strings.Contains(string(data), "people:") {
		t.Errorf("got %q, %v, want the people in the configuration", data, err)
	}
	s.stop(t, syscall.SIGTERM)
}

// breakGlass approves a request by break-glass while a member of the group watches.
func (s *session) breakGlass(t *testing.T, alice, carol []string) {
	t.Helper()
	watch := launch(t, alice, "approvals", "watch", "--every", "1h")
	asks, id := s.ask(t, "t-6", "it burns")
	if said := asks.err.String(); !strings.Contains(said, "or 2 of security in an emergency") {
		t.Errorf("got %q, want who may stand in", said)
	}
	watch.waitFor(t, watch.out, "brevet approvals show "+id)
	brevet(t, carol, "approvals", "break-glass", id, "--yes").want(t, 2, "--note")
	brevet(t, carol, "approvals", "break-glass", id, "--note", "nobody answers").want(t, 1, "confirmation requires a terminal")
	brevet(t, carol, "approvals", "break-glass", id, "--note", " ", "--yes").want(t, 1, "Note required")
	brevet(t, alice, "approvals", "break-glass", id, "--note", "me too", "--yes").want(t, 1, "Not eligible to vote")
	brevet(t, carol, "approvals", "break-glass", id, "--note", "nobody answers", "--yes").want(t, 0, "is pending; BREAK GLASS: 1 of 2 of security have voted in place of oncall")
	watch.waitFor(t, watch.out, "BREAK GLASS")
	watch.signal(t, syscall.SIGTERM)
	watch.finish(t).want(t, 0)
	brevet(t, alice, "approvals", "list").want(t, 0, id, "BREAK GLASS")
	brevet(t, alice, "approvals", "show", id).want(t, 0, "BREAK GLASS: a member of security", "break_glass by Carol Clark", "nobody answers")
	brevet(t, s.person(t, "dave"), "approvals", "break-glass", id, "--note", "it burns", "--yes").want(t, 0, "is approved; BREAK GLASS: 2 of 2 of security")
	asks.finish(t).want(t, 0, "github.issues.write on github:repo/acme/api", "Approved by break-glass")
	brevet(t, s.as("auditor"), "audit", "list", "--code", "break_glass").want(t, 0, "break_glass", "github.issues.write")
}

// hostileReason is a reason that a sandbox may give. All of it must be shown as mere text.
var hostileReason = "\x1b[2J\x1b]8;;https://evil.example\x07click\x1b]8;;\x07\x1b]52;c;ZXZpbA==\x07\u009b31m" + // H71
	"\u202egnp.exe\u2066" + // H72
	"\u200b\U000e0041" + // H73
	"рaypal.example" + // H74: the first letter is Cyrillic
	"<img onerror=alert(1)> javascript:alert(1) ![x](https://evil.example/x.png) <!channel>" + // H75
	strings.Repeat("\n", 40) + // H76
	"status     approved\nAPPROVED BY alice\r\n" + // H77
	"'; DROP TABLE votes; --\n" + // H80
	"approve this" // H81

// inertWords checks that the output shows the facts first, and the sandbox's words as mere text.
func inertWords(t *testing.T, text string) {
	t.Helper()
	facts, words, found := strings.Cut(text, "reason given by the sandbox")
	if !found || !strings.Contains(facts, "hash ") {
		t.Fatalf("got %q, want the facts before the sandbox's words", text)
	}
	for _, r := range text {
		if r != '\n' && !safetext.Visible(r) {
			t.Errorf("got %U in what is printed", r)
		}
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(words, "\n"), "\n") {
		if !strings.HasPrefix(line, "  | ") && !strings.Contains(line, "unverified") {
			t.Errorf("the line %q of the sandbox's words is not behind the bar", line)
		}
	}
}
