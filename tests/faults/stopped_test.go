package faults_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
)

// replicaStopped stops a replica that answers introspection of a token from its cache and revokes the token at another replica.
// Then it resumes the stopped replica, which has an introspection request waiting.
func (w *world) replicaStopped(t *testing.T) string {
	const rounds = 5
	s, k := w.sandbox(t), kindCalled("jwt")
	r := w.startReplica(t, &fault{})
	var slowest time.Duration
	for range rounds {
		got := s.must(t, k)
		for range 200 { // so that the replica caches it
			if !s.active(t, r, got) {
				t.Fatal("not active before its end")
			}
		}
		if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		answer := make(chan bool, 1)
		began := time.Now()
		ended, err := call(t.Context(), w.admin, w.stack.URL+"/v1/revocations", map[string]any{"id": got.ID, "reason": "test"})
		took := time.Since(began)
		slowest = max(slowest, took)
		if err != nil || ended.status != http.StatusOK || took > patience(time.Second) {
			t.Errorf("revoking: status %d after %s, %v", ended.status, took, err)
		}
		go func() { answer <- s.active(t, r, got) }()
		pauseFor(t.Context(), 50*time.Millisecond) // the request waits at the stopped replica
		if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if <-answer {
			t.Error("active after its end was confirmed")
		}
	}
	r.stop(t)
	return fmt.Sprintf("ends confirmed without it after %s at most; inactive by whatever it was asked when it went on", slowest.Round(10*time.Millisecond))
}

// active introspects a token at a replica, as its holder.
func (s *sandbox) active(t *testing.T, r *replica, token answer) bool {
	t.Helper()
	resp, err := s.client.PostForm(r.url+"/oauth2/introspect", url.Values{"token": {token.Token}})
	if err != nil {
		t.Errorf("introspecting: %v", err)
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("got %d %s, %v", resp.StatusCode, text, err)
	}
	return strings.Contains(string(text), `"active":true`)
}
