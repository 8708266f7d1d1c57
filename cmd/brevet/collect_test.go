package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"syscall"
	"testing"
	"time"
)

// requestsOfTask returns the ids of a task's requests that a person could vote on.
func requestsOfTask(t *testing.T, person []string, task string) []string {
	t.Helper()
	got := brevet(t, person, "approvals", "list", "-o", "json")
	got.want(t, 0)
	var ids []string
	for line := range strings.Lines(got.out) {
		if one := object(t, line); one["task"] == task {
			ids = append(ids, one["id"].(string))
		}
	}
	return ids
}

// The command of README, repeated by a script that reads only its exit code, prints the credential once a person has approved it.
// People are asked once.
func (s *session) collectsByScript(t *testing.T, alice []string) {
	const task = "t-script"
	script := start(t, nil, append(s.env, "BREVET="+binary, "TASK="+task), "/bin/sh", "-c", `
		tries=0
		while :; do
			token=$("$BREVET" request github.issues.write repo=acme/api --task "$TASK" --reason "try $tries" 2>/dev/null) && break
			code=$?
			[ $code = 4 ] || exit $code
			tries=$((tries+1))
			echo "try $tries"
		done
		echo "$token"`)
	script.waitFor(t, script.out, "try 3\n")
	ids := requestsOfTask(t, alice, task)
	if len(ids) != 1 {
		t.Fatalf("after three tries people see %q, want one request", ids)
	}
	brevet(t, alice, "approvals", "approve", ids[0], "--yes").want(t, 0, "is approved: 1 of 1")
	got := script.finish(t)
	got.want(t, 0)
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if token := lines[len(lines)-1]; !aToken.MatchString(token + "\n") {
		t.Errorf("got %q, want the token at last", got.out)
	}
	if ids := requestsOfTask(t, alice, task); len(ids) != 0 {
		t.Errorf("afterwards people see %q, want nothing", ids)
	}
}

// The text and the JSON of a pending request name the commands that lead on, and these work.
func (s *session) collects(t *testing.T, alice []string) {
	request := func(more ...string) []string {
		return append([]string{"request", "github.issues.write", "repo=acme/api", "--task", "t-collect"}, more...)
	}
	approve := func(t *testing.T, id string) {
		t.Helper()
		brevet(t, alice, "approvals", "approve", id, "--yes").want(t, 0, "is approved")
	}
	t.Run("by the same command", func(t *testing.T) {
		got := brevet(t, s.env, request()...)
		id := aRequest.FindStringSubmatch(got.err)[1]
		got.want(t, exitPending, "approve    brevet approvals approve "+id, "/approvals/"+id, "same command again, or brevet request --id "+id)
		brevet(t, s.env, request("--reason", "once more")...).want(t, exitPending, id+" (made earlier)")
		approve(t, id)
		if got := brevet(t, s.env, request()...); got.code != 0 || !aToken.MatchString(got.out) {
			t.Errorf("got %d %q %s, want a token", got.code, got.out, got.err)
		}
		again := brevet(t, s.env, request()...)
		again.want(t, exitPending)
		if strings.Contains(again.err, id) {
			t.Errorf("got %s, want a new request", again.err)
		}
		brevet(t, s.env, "withdraw", aRequest.FindStringSubmatch(again.err)[1]).want(t, 0)
	})
	t.Run("by the command in JSON", func(t *testing.T) {
		got := brevet(t, s.env, request("-o", "json")...)
		got.want(t, exitPending)
		pending := object(t, got.out)
		id := pending["id"].(string)
		if pending["earlier"] != false || !strings.HasSuffix(pending["url"].(string), "/approvals/"+id) || pending["group"] != "oncall" {
			t.Errorf("got %s", got.out)
		}
		approving, collecting := strings.Fields(pending["approve"].(string)), strings.Fields(pending["collect"].(string))
		brevet(t, s.env, collecting[1:]...).want(t, exitPending, id+" (made earlier)")
		brevet(t, alice, append(approving[1:], "--yes")...).want(t, 0, "is approved")
		if got := brevet(t, s.env, collecting[1:]...); got.code != 0 || !aToken.MatchString(got.out) {
			t.Errorf("got %d %q %s, want a token", got.code, got.out, got.err)
		}
		brevet(t, s.env, collecting[1:]...).want(t, 1, "Nothing to redeem")
	})
	t.Run("with a key", func(t *testing.T) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key := pemFile(t, pkcs8(t, private))
		got := brevet(t, s.env, request("--dpop-key", key, "-o", "json")...)
		got.want(t, exitPending)
		pending := object(t, got.out)
		approve(t, pending["id"].(string))
		brevet(t, s.env, "request", "--id", pending["id"].(string)).want(t, 1, "Request has changed")
		collecting := strings.Fields(pending["collect"].(string))
		brevet(t, s.env, collecting[1:]...).want(t, 0, "requires DPoP proofs with your key")
	})
	t.Run("with an idempotency key", func(t *testing.T) {
		once := request("--idempotency-key", "once")
		got := brevet(t, s.env, once...)
		got.want(t, exitPending)
		approve(t, aRequest.FindStringSubmatch(got.err)[1])
		brevet(t, s.env, once...).want(t, 0, "github.issues.write on github:repo/acme/api")
		brevet(t, s.env, once...).want(t, 1, "Credential already issued")
	})
	t.Run("mistakes", func(t *testing.T) {
		const unknown = "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21"
		brevet(t, s.env, "request", "--id", unknown).want(t, 1, "Not found")
		brevet(t, s.env, "request", "github.issues.write", "--id", unknown).want(t, 2, "--id names a request that was made")
		brevet(t, s.env, "request", "--id", unknown, "--idempotency-key", "x").want(t, 2, "--id names a request that was made")
		brevet(t, s.env, "request", "--task", "t-1").want(t, 2, "name a scope, or with --id a request")
		brevet(t, s.env, "request", "github.issues.write").want(t, 2, "missing flags: --task")
	})
}

// An interrupt at --wait withdraws the request, or says that it did not and what to do then.
func (s *session) interrupted(t *testing.T, alice []string) {
	for name, sig := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			asks, id := s.ask(t, "t-interrupted", "please")
			asks.signal(t, sig)
			asks.finish(t).want(t, 1, "Interrupted. Request "+id+" is withdrawn.")
			brevet(t, s.env, "request", "--id", id).want(t, 1, "Nothing to redeem")
		})
	}
	t.Run("JSON", func(t *testing.T) {
		asks := launch(t, s.env, "request", "github.issues.write", "repo=acme/api", "--task", "t-interrupted-json", "--wait", "-o", "json")
		for deadline := time.Now().Add(patience); len(requestsOfTask(t, alice, "t-interrupted-json")) == 0; {
			if time.Now().After(deadline) {
				t.Fatal("nothing waits for people")
			}
		}
		asks.signal(t, syscall.SIGINT)
		got := asks.finish(t)
		got.want(t, 1)
		if object(t, got.out)["status"] != "withdrawn" {
			t.Errorf("got %s, want it withdrawn", got.out)
		}
	})
	t.Run("a request that was made earlier", func(t *testing.T) {
		first := brevet(t, s.env, "request", "github.issues.write", "repo=acme/api", "--task", "t-earlier")
		first.want(t, exitPending)
		asks, id := s.ask(t, "t-earlier", "please")
		asks.signal(t, syscall.SIGINT)
		asks.finish(t).want(t, exitPending, "Request "+id+" is not withdrawn", "brevet withdraw "+id, "brevet request --id "+id)
		brevet(t, s.env, "request", "--id", id).want(t, exitPending)
		brevet(t, s.env, "withdraw", id).want(t, 0)
	})
	t.Run("brevet exec", func(t *testing.T) {
		runs := launch(t, s.env, "exec", "--task", "t-exec", "--scope", "github.issues.write", "--param", "repo=acme/api", "--env", "TOKEN", "--", "true")
		runs.waitFor(t, runs.err, "to approve: brevet approvals approve ")
		runs.signal(t, syscall.SIGINT)
		runs.finish(t).want(t, 1, "Interrupted. Request ", "is withdrawn.")
	})
}
