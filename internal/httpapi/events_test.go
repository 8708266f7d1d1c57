package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// hearing follows approval events for as long as the test runs.
type hearing struct {
	events chan client.ApprovalEvent
	ended  chan error
}

func hear(t *testing.T, c *client.Client) *hearing {
	t.Helper()
	return hearOn(t, c.WatchApprovals())
}

func hearOn(t *testing.T, watch *client.ApprovalWatch) *hearing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	h := &hearing{events: make(chan client.ApprovalEvent, 1000), ended: make(chan error, 1)}
	go func() {
		h.ended <- watch.Follow(ctx, func(e client.ApprovalEvent) error {
			h.events <- e
			return nil
		})
	}()
	return h
}

// next returns the next event, such as "waiting ID" or "approved ID".
func (h *hearing) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-h.events:
		switch {
		case e.Waiting != nil:
			return "waiting " + e.Waiting.ID
		case e.More:
			return "more"
		}
		return string(e.Decided.Status) + " " + e.Decided.ID
	case err := <-h.ended:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(patience):
		t.Fatalf("waited %s for the next event", patience)
	}
	return ""
}

func (h *hearing) wants(t *testing.T, want string) {
	t.Helper()
	if got := h.next(t); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// silent checks that no further event has arrived.
func (h *hearing) silent(t *testing.T) {
	t.Helper()
	select {
	case e := <-h.events:
		t.Errorf("got %+v, want nothing", e)
	default:
	}
}

// A waiting request is sent at once, on any replica, to people who may see it, and to no others.
func TestEventsReportPendingRequests(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	other, sandbox := s.Replica(t), s.Client(t, agent)
	before := waiting(t, sandbox, askFor("git.issues.write"))
	bob, carol := hear(t, s.Person(t, "bob")), hear(t, other.Person(t, "carol"))
	otto, mallory := hear(t, s.Person(t, "otto")), hear(t, other.Person(t, "mallory"))
	for _, h := range []*hearing{bob, carol} {
		h.wants(t, "waiting "+before)
	}
	otto.wants(t, "waiting "+before)
	asked := time.Now()
	two := waiting(t, sandbox, askFor("git.repo.delete"))
	bob.wants(t, "waiting "+two)
	carol.wants(t, "waiting "+two)
	if took := time.Since(asked); took > 10*time.Second { // a stream that only its keep-alive wakes would take 15 s
		t.Errorf("it was told after %v", took)
	}
	// Otto is an approver in other.test through another group, which does not decide this request.
	foreignOne := waiting(t, s.Client(t, foreign), askFor("git.issues.write"))
	otto.wants(t, "waiting "+two)
	otto.wants(t, "waiting "+foreignOne)
	admins := waiting(t, sandbox, askFor("vault.notes.write"))
	carol.wants(t, "waiting "+admins)

	if _, err := vote(t, other.Person(t, "bob"), two, openapi.VerdictApprove); err != nil { // one of two
		t.Fatal(err)
	}
	for _, step := range []struct {
		id, want string
		do       func() error
	}{
		{before, "approved ", func() error {
			_, err := vote(t, s.Person(t, "carol"), before, openapi.VerdictApprove)
			return err
		}},
		{two, "rejected ", func() error {
			_, err := vote(t, other.Person(t, "carol"), two, openapi.VerdictDeny)
			return err
		}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*hearing{bob, carol, otto} {
			h.wants(t, step.want+step.id)
		}
	}
	if err := sandbox.Withdraw(t.Context(), admins); err != nil {
		t.Fatal(err)
	}
	carol.wants(t, "withdrawn "+admins)
	last := waiting(t, s.Client(t, aliceBot), askFor("git.issues.write"))
	for _, h := range []*hearing{bob, carol, otto} {
		h.wants(t, "waiting "+last)
		h.silent(t)
	}
	mallory.silent(t)
}

// A client that reconnects receives what has changed, once, including changes made through another replica.
func TestEventsResumeAfterReconnect(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	other, sandbox := s.Replica(t), s.Client(t, agent)
	stays, goes := waiting(t, sandbox, askFor("git.issues.write")), waiting(t, sandbox, askFor("git.issues.write"))
	watch := s.Person(t, "bob").WatchApprovals()
	enough := errors.New("enough")
	heard := 0
	err := watch.Follow(t.Context(), func(client.ApprovalEvent) error {
		if heard++; heard == 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("got %v, want the caller's own error", err)
	}
	if _, err := vote(t, other.Person(t, "carol"), goes, openapi.VerdictDeny); err != nil {
		t.Fatal(err)
	}
	comes := waiting(t, sandbox, askFor("git.issues.write"))
	again := hearOn(t, watch)
	got := map[string]bool{again.next(t): true, again.next(t): true}
	if !got["waiting "+comes] || !got["rejected "+goes] {
		t.Errorf("got %v, want what has come and what has gone, and not %s", got, stays)
	}
	if _, err := vote(t, other.Person(t, "carol"), stays, openapi.VerdictDeny); err != nil {
		t.Fatal(err)
	}
	again.wants(t, "rejected "+stays)
	again.silent(t)
}

// brief is a ledger in which requests for deletions expire after six seconds, less than any catalogue would set.
type brief struct{ broker.Ledger }

func (b brief) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	if rec.Request.Scope == "git.repo.delete" {
		rec.Expires = rec.Time.Add(6 * time.Second)
	}
	return b.Ledger.Begin(ctx, rec)
}

// A request stops waiting when nobody may vote on it any more: it has expired, its task has ended, or its sandbox is in
// quarantine.
func TestEventsReportClosedRequests(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Ledger = func(l broker.Ledger) broker.Ledger { return brief{l} }
	s := testkit.NewStack(t, o)
	bob, sandbox := hear(t, s.Person(t, "bob")), s.Client(t, agent)
	late := waiting(t, sandbox, askFor("git.repo.delete"))
	bob.wants(t, "waiting "+late)
	bob.wants(t, "expired "+late)
	task := waiting(t, sandbox, askFor("git.issues.write"))
	bob.wants(t, "waiting "+task)
	if _, err := sandbox.EndTask(t.Context(), "task-1", client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
	// Ending a task withdraws its requests afterwards. Between the two steps a request is pending, but no longer waits.
	if got := bob.next(t); got != "withdrawn "+task && got != "pending "+task {
		t.Errorf("got %q, want %s withdrawn", got, task)
	}
	confined := waiting(t, s.Client(t, twin), askFor("git.issues.write"))
	bob.wants(t, "waiting "+confined)
	if _, err := s.Client(t, admin).Quarantine(t.Context(), twin, "test"); err != nil {
		t.Fatal(err)
	}
	bob.wants(t, "pending "+confined)
}

// watchCall opens a stream without reading it.
func watchCall(t *testing.T, s *testkit.Stack, person string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/approvals/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Authorization", "Bearer "+s.IDToken(t, person))
	carrier := s.HTTP(t, nil)
	carrier.Timeout = 0
	carrier.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	resp, err := carrier.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestEventStreamsAreLimitedPerPerson(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	var open []*http.Response
	for range 4 {
		resp := watchCall(t, s, "bob", nil)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("got %d %v, want a stream that nobody keeps", resp.StatusCode, resp.Header)
		}
		open = append(open, resp)
	}
	if err := s.Person(t, "bob").WatchApprovals().Follow(t.Context(), nil); !errors.Is(err, client.ErrRateLimited) {
		t.Errorf("a fifth: got %v, want rate_limited", err)
	}
	if resp := watchCall(t, s, "carol", nil); resp.StatusCode != 200 {
		t.Errorf("somebody else: got %d", resp.StatusCode)
	}
	_ = open[0].Body.Close()
	eventually(t, func() error {
		if resp := watchCall(t, s, "bob", nil); resp.StatusCode != 200 {
			_ = resp.Body.Close()
			return fmt.Errorf("got %d in the place that is free", resp.StatusCode)
		}
		return nil
	})
	if err := s.Client(t, agent).WatchApprovals().Follow(t.Context(), nil); !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("a workload: got %v, want not_allowed", err)
	}
	resp := watchCall(t, s, "carol", http.Header{"Last-Event-Id": {"1; DROP"}})
	if resp.StatusCode != 400 {
		t.Errorf("a Last-Event-ID that is not one: got %d, want 400", resp.StatusCode)
	}
}

// A client that does not read is disconnected, and the others receive every event.
func TestEventsDisconnectStalledReaders(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox := s.Client(t, agent)
	long := askFor("git.issues.write")
	long.Reason = strings.Repeat("a", 1000)
	bob := hear(t, s.Person(t, "bob"))
	var all []string
	for i := range 60 { // a sandbox may have at most 20 waiting requests
		all = append(all, waiting(t, s.Client(t, fmt.Sprintf("%s-%d", agent, i/15)), long))
	}
	deaf := watchCall(t, s, "carol", nil)
	for _, id := range all {
		bob.wants(t, "waiting "+id)
	}
	eventually(t, func() error {
		if !strings.Contains(s.Log.String(), "events cut off") {
			return errors.New("nobody is cut off")
		}
		return nil
	})
	if data, err := io.ReadAll(deaf.Body); err == nil {
		t.Errorf("got the end after %d bytes, want it to be cut off", len(data))
	}
	next := waiting(t, sandbox, long)
	bob.wants(t, "waiting "+next)
}

func TestEventsEndWithTheToken(t *testing.T) {
	t.Parallel()
	var offset atomic.Int64
	o := withPeople
	o.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	s := testkit.NewStack(t, o)
	var resp *http.Response
	for left := 3 * time.Second; ; left *= 2 { // the life of the token; a busy machine needs longer to begin the stream
		offset.Store(0)
		token := s.IDToken(t, "bob")
		offset.Store(int64(10*time.Minute - left))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/approvals/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if resp, err = s.HTTP(t, nil).Do(req); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusUnauthorized || left > patience {
			break
		}
	}
	data, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || err != nil || !strings.Contains(string(data), "event: current\ndata: {\"ids\":[]}\n") ||
		!strings.HasSuffix(string(data), ": your ID token has expired\n\n") {
		t.Errorf("got %d %q, %v, want a stream that ends with the token", resp.StatusCode, data, err)
	}
}

func TestEventsEndWithTheReplica(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	srv := s.Server.HTTP(nil)
	bob := hear(t, s.Person(t, "bob"))
	bob.wants(t, "waiting "+waiting(t, s.Client(t, agent), askFor("git.issues.write")))
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-bob.ended:
		if err != nil {
			t.Errorf("got %v, want the end", err)
		}
	case <-time.After(patience):
		t.Errorf("waited %s for the stream to end", patience)
	}
}

// A person with a group name that no database can store is refused, the refusal is recorded, and others are not affected. A
// display name with control characters is accepted and cleaned.
func TestInvalidGroupNamesAreRefused(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.People = append(slices.Clone(withPeople.People),
		devstack.DevPerson{Username: "nul", Name: "Nul", Groups: []string{"oncall", "on\x00call"}},
		devstack.DevPerson{Username: "esc", Name: "Es\x00c\x1b[2J", Groups: []string{"oncall"}})
	s := testkit.NewStack(t, o)
	other, sandbox := s.Replica(t), s.Client(t, agent)
	bob, esc := hear(t, s.Person(t, "bob")), hear(t, other.Person(t, "esc"))
	first := waiting(t, sandbox, askFor("git.issues.write"))
	for _, h := range []*hearing{bob, esc} {
		h.wants(t, "waiting "+first)
	}
	nul := s.Person(t, "nul")
	if _, err := nul.WhoAmI(t.Context()); code(err) != openapi.CodeUnauthenticated {
		t.Errorf("got %v, want %s", err, openapi.CodeUnauthenticated)
	}
	if _, err := nul.Approvals(t.Context(), 10); code(err) != openapi.CodeUnauthenticated {
		t.Errorf("got %v, want %s", err, openapi.CodeUnauthenticated)
	}
	if err := nul.WatchApprovals().Follow(t.Context(), func(client.ApprovalEvent) error { return nil }); code(err) != openapi.CodeUnauthenticated {
		t.Errorf("got %v, want %s", err, openapi.CodeUnauthenticated)
	}
	second := waiting(t, sandbox, askFor("git.repo.delete"))
	for _, h := range []*hearing{bob, esc} {
		h.wants(t, "waiting "+second)
	}
	if after, err := vote(t, other.Person(t, "esc"), first, openapi.VerdictApprove); err != nil || len(after.Votes) != 1 || after.Votes[0].Name != "Es c [2J" {
		t.Errorf("got %+v, %v, want a vote under a name that can be shown", after, err)
	}
	refused := 0
	for _, e := range s.DB.Entries(t) {
		if e.Kind == "call.refused" && e.Body["detail"] == "id_token_claims" {
			refused++
		}
	}
	if refused != 3 {
		t.Errorf("got %d refusals on record, want 3", refused)
	}
	s.DB.Check(t)
}

// The events follow the newest groups that Brevet knows, as the list does, also for a person who presents an older token.
func TestEventsFollowTheNewestGroups(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	old := s.IDToken(t, "bob")
	// begins returns what a stream says first: all that waits.
	begins := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/v1/approvals/events", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+old)
		resp, err := s.HTTP(t, nil).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body) // until the time is over
		if err := resp.Body.Close(); err != nil || !strings.Contains(string(text), "event: current") {
			t.Fatalf("got %s, %v", text, err)
		}
		return string(text)
	}
	if text := begins(); !strings.Contains(text, id) {
		t.Errorf("got %s, want %s", text, id)
	}
	time.Sleep(time.Second) // tokens say in seconds when they were issued
	s.Know(devstack.DevPerson{Username: "bob", Name: "Bob", Groups: []string{"staff"}})
	if list, err := s.Person(t, "bob").Approvals(t.Context(), 10); err != nil || len(list.Approvals) > 0 {
		t.Fatalf("got %+v, %v, want nothing after bob has left the group", list, err)
	}
	if text := begins(); strings.Contains(text, id) {
		t.Errorf("got %s, want nothing after bob has left the group", text)
	}
}
