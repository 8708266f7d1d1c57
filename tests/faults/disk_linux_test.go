package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// TestFullDisk fills the disk of the Postgres that keeps the record. Nothing may be issued then, nothing may be lost, callers must
// learn why, and everything must go on by itself when there is room again (I1, I2, I6, I10).
func TestFullDisk(t *testing.T) {
	small := testkit.NewSmallDisk(t)
	w := newWorldOn(t, testkit.Options{DB: small.DB})
	f := &fullDisk{world: w, small: small, replica: w.startReplica(t, &fault{})}
	for _, tc := range []struct {
		fault string
		run   func(*testing.T) (seen string)
	}{
		{"the disk of Postgres full", f.noRoomForData},
		{"the disk of Postgres full, and its write-ahead log needs room", f.noRoomForLog},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			seen := "not all of it"
			t.Cleanup(func() { results.other(tc.fault, seen, !t.Failed()) })
			seen = tc.run(t)
			if lost := (&load{world: w}).unrecorded(t); lost > 0 {
				t.Errorf("%d were delivered without a record (I1)", lost)
			}
			w.check(t)
		})
	}
	w.checkLater(t, "the disk of Postgres was full")
	f.replica.stop(t)
	for _, line := range []string{"the disk of postgres is full: nothing is issued", "the disk of postgres has room again"} {
		if got := strings.Count(f.replica.log.String(), line); got == 0 || got > 10 {
			t.Errorf("the replica has logged %q %d times", line, got)
		}
	}
}

// fullDisk is a world with two replicas and a disk that can be filled.
type fullDisk struct {
	*world
	small   *testkit.SmallDisk
	replica *replica
}

// addresses are those of the two replicas.
func (f *fullDisk) addresses() []string { return []string{f.stack.URL, f.replica.url} }

// refusal is the answer to a call that could not be recorded.
type refusal struct {
	status     int
	retryAfter string
	text       string
	answer     answer
}

func (f *fullDisk) post(ctx context.Context, client *http.Client, target string, body map[string]any) (refusal, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return refusal{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(encoded))
	if err != nil {
		return refusal{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return refusal{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return refusal{}, err
	}
	r := refusal{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After"), text: string(text), answer: answer{status: resp.StatusCode}}
	return r, json.Unmarshal(text, &r.answer)
}

// judge checks a refusal: it is a problem that says what happened and when to come back, and contains nothing else.
func (r refusal) judge(t *testing.T, codes ...string) {
	t.Helper()
	known := false
	for _, code := range codes {
		known = known || r.answer.Code == code
	}
	clear := strings.Contains(r.text, `"title":"Ledger`) && strings.Contains(r.text, "Retry after")
	if r.status != http.StatusServiceUnavailable || !known || r.retryAfter == "" || !clear {
		t.Errorf("got %d %s, Retry-After %q, want a problem of %v", r.status, r.text, r.retryAfter, codes)
	}
	if r.answer.Token != "" || r.answer.Credential != nil || strings.Contains(r.text, "eyJ") || strings.Contains(r.text, "hvs.") {
		t.Errorf("a refusal has a credential: %d", r.status)
	}
}

// crowd asks both replicas for credentials of all kinds until it is stopped. Once a replica has said that the disk is full, it may
// issue nothing until there is room.
type crowd struct {
	issued, refused atomic.Int64
	stop            func()
}

func (f *fullDisk) crowd(t *testing.T, codes ...string) *crowd {
	t.Helper()
	c := &crowd{}
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var full [2]atomic.Bool
	for n := range 4 {
		client := f.client(t, fmt.Sprintf("spiffe://acme.test/disk/agent-%d", n))
		callers.Go(func() {
			for i := n; ctx.Err() == nil; i++ {
				at := i / len(kinds) % 2
				k, closed := kinds[i%len(kinds)], full[at].Load()
				body := k.body()
				body["scope"], body["task"] = "test."+k.name, task
				if k.lives == nil { // AWS gives no key for so short a time
					body["ttl"] = 300
				}
				got, err := f.post(t.Context(), client, f.addresses()[at]+"/v1/tokens", body)
				switch {
				case err != nil:
					t.Errorf("%s: no answer: %v", k.name, err)
				case got.answer.has():
					f.inventory.deliver(got.answer.ID)
					c.issued.Add(1)
					if closed {
						t.Errorf("%s was issued on a full disk", k.name)
					}
				case !closed && got.answer.Code == "vault_unavailable": // a case locks Vault out of the target database for a while
				default:
					got.judge(t, codes...)
					c.refused.Add(1)
					full[at].Store(true)
				}
				pauseFor(ctx, 20*time.Millisecond)
			}
		})
	}
	c.stop = sync.OnceFunc(func() { cancel(); callers.Wait() })
	t.Cleanup(c.stop)
	return c
}

// closed waits until both replicas know that the disk is full.
func (f *fullDisk) closed(t *testing.T) {
	t.Helper()
	for _, address := range f.addresses() {
		for began := time.Now(); ; pauseFor(t.Context(), 100*time.Millisecond) {
			status, health := f.health(t, address)
			if status == http.StatusServiceUnavailable && health["ledger_disk"] == "failing" && health["ledger"] == "failing" {
				break
			}
			if time.Since(began) > patience(10*time.Second) {
				t.Fatalf("readiness says %d %v on a full disk", status, health)
			}
		}
	}
	if !strings.Contains(f.stack.Log.String(), "the disk of its database is full") {
		t.Error("the log does not say why calls fail")
	}
}

func (f *fullDisk) health(t *testing.T, address string) (int, map[string]string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.admin.Do(req)
	if err != nil {
		t.Fatalf("asking for health: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var said struct{ Checks map[string]string }
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		t.Errorf("reading the health: %v", err)
	}
	return resp.StatusCode, said.Checks
}

// introspect returns the status of the answer, and whether it calls the token active.
func (f *fullDisk) introspect(t *testing.T, s *sandbox, address string, token answer) (int, bool) {
	t.Helper()
	resp, err := s.client.PostForm(address+"/oauth2/introspect", url.Values{"token": {token.Token}})
	if err != nil {
		t.Fatalf("introspecting: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.Contains(string(text), `"active":true`)
}

// noRoomForData fills the disk. Statements that need a page fail; Postgres goes on.
func (f *fullDisk) noRoomForData(t *testing.T) string {
	s := f.sandbox(t)
	var held []answer
	for range 40 {
		held = append(held, s.must(t, kindCalled("jwt")))
	}
	// This login is inactive, and Vault cannot end it before the disk is full.
	leaving := &sandbox{world: f.world, client: f.client(t, s.id+"/leaving"), id: s.id + "/leaving"}
	login := leaving.must(t, kindCalled("database"))
	restore := f.lockVaultOut(t)
	if got := leaving.endTask(t); got.status != http.StatusAccepted {
		t.Errorf("ending the task: got status %d %s", got.status, got.Code)
	}
	f.small.Fill(t)
	c := f.crowd(t, "ledger_full")
	f.closed(t)
	restore()
	ended, refused := f.revokeEach(t, s, held)
	for began := time.Now(); kindCalled("database").opens(t, f.inventory, login); pauseFor(t.Context(), 200*time.Millisecond) {
		if time.Since(began) > patience(20*time.Second) {
			t.Fatal("Vault has not ended a login whose end was recorded before the disk was full")
		}
	}
	if left := f.small.Left(t); left > 0 {
		t.Errorf("%d bytes are free", left)
	}
	c.stop()
	if c.refused.Load() == 0 {
		t.Error("nobody was refused")
	}
	f.small.Free(t)
	took := f.back(t, s)
	for _, a := range held { // what was not recorded can be ordered again
		if got, err := call(t.Context(), f.admin, f.stack.URL+"/v1/revocations", map[string]any{"id": a.ID, "reason": "again"}); err != nil || got.status != http.StatusOK && got.status != http.StatusNotFound {
			t.Errorf("revoking again: status %d %s, %v", got.status, got.Code, err)
		}
		if status, active := f.introspect(t, s, f.replica.url, a); status != http.StatusOK || active {
			t.Errorf("after its revocation: status %d, active %t", status, active)
		}
	}
	f.awaitEnd(t, leaving.id, time.Now().Add(grace), func(row) bool { return true })
	f.endAll(t, s)
	return fmt.Sprintf("503 ledger_full for every kind, nothing issued; %d ends recorded in the room that was left, then 503 for %d; back after %s",
		ended, refused, took.Round(10*time.Millisecond))
}

// revokeEach orders the end of each token on a full disk. An order is either carried out or refused; a refused one claims nothing.
func (f *fullDisk) revokeEach(t *testing.T, s *sandbox, held []answer) (ended, refused int) {
	t.Helper()
	for _, a := range held {
		got, err := f.post(t.Context(), f.admin, f.stack.URL+"/v1/revocations", map[string]any{"id": a.ID, "reason": "test"})
		if err != nil {
			t.Fatalf("revoking: %v", err)
		}
		for _, address := range f.addresses() {
			status, active := f.introspect(t, s, address, a)
			if status != http.StatusOK || active != (got.status != http.StatusOK) {
				t.Errorf("after a revocation with status %d, introspection says %d, active %t", got.status, status, active)
			}
		}
		if got.status == http.StatusOK {
			ended++
			continue
		}
		got.judge(t, "ledger_full")
		refused++
	}
	if refused == 0 {
		t.Errorf("all %d ends were recorded on a full disk", ended)
	}
	return ended, refused
}

// back waits until all kinds are issued again, by both replicas.
func (f *fullDisk) back(t *testing.T, s *sandbox) time.Duration {
	t.Helper()
	took := s.backAfter(t)
	began := time.Now()
	for !f.ask(t, f.replica, s.id, kindCalled("database")).has() {
		if time.Since(began) > patience(back) {
			t.Fatal("the other replica does not issue again")
		}
		pauseFor(t.Context(), 50*time.Millisecond)
	}
	for _, address := range f.addresses() {
		for began := time.Now(); ; pauseFor(t.Context(), 100*time.Millisecond) {
			status, health := f.health(t, address)
			if status == http.StatusOK {
				break
			}
			if time.Since(began) > patience(back) {
				t.Fatalf("readiness says %d %v with room on the disk", status, health)
			}
		}
	}
	return took
}

// endAll ends the tasks of all sandboxes of a case, so that other tests find nothing alive.
func (f *fullDisk) endAll(t *testing.T, s *sandbox) {
	t.Helper()
	ids := []string{s.id}
	for n := range 4 {
		ids = append(ids, fmt.Sprintf("spiffe://acme.test/disk/agent-%d", n))
	}
	for _, id := range ids {
		all := map[string]any{"spiffe_id": id, "reason": "the case is over"}
		got, err := call(t.Context(), f.admin, f.stack.URL+"/v1/revocations", all)
		if err != nil || got.status != http.StatusOK && got.status != http.StatusAccepted && got.status != http.StatusNotFound {
			t.Errorf("ending what %s holds: status %d %s, %v", id, got.status, got.Code, err)
		}
	}
}

// noRoomForLog fills the disk, and then takes the rest of the write-ahead log. Postgres ends, and cannot start again before there
// is room.
func (f *fullDisk) noRoomForLog(t *testing.T) string {
	s := f.sandbox(t)
	token := s.must(t, kindCalled("jwt"))
	f.small.Fill(t)
	c := f.crowd(t, "ledger_full", "ledger_unavailable")
	f.closed(t)
	for range 200 { // so that the replica has it in memory
		if status, active := f.introspect(t, s, f.replica.url, token); status != http.StatusOK || !active {
			t.Fatalf("before the end of Postgres: status %d, active %t", status, active)
		}
	}
	f.exhaustLog(t)
	pauseFor(t.Context(), 600*time.Millisecond) // longer than a lease
	if status, active := f.introspect(t, s, f.replica.url, token); status != http.StatusServiceUnavailable || active {
		t.Errorf("without Postgres, introspection says %d, active %t", status, active)
	}
	got, err := f.post(t.Context(), f.admin, f.stack.URL+"/v1/revocations", map[string]any{"id": token.ID, "reason": "test"})
	if err != nil {
		t.Fatalf("revoking: %v", err)
	}
	got.judge(t, "ledger_full", "ledger_unavailable")
	f.closed(t)
	// What a service manager does.
	if err := f.small.Postgres.Start(t.Context()); err == nil {
		t.Error("Postgres starts on a full disk")
	}
	refused := c.refused.Load()
	pauseFor(t.Context(), time.Second)
	c.stop()
	if c.refused.Load() == refused {
		t.Error("nobody was refused without Postgres")
	}
	f.small.Free(t)
	if err := f.small.Postgres.Start(t.Context()); err != nil {
		t.Fatalf("Postgres does not start with room: %v", err)
	}
	took := f.back(t, s)
	if status, active := f.introspect(t, s, f.replica.url, token); status != http.StatusOK || !active {
		t.Errorf("a token that nobody has ended: status %d, active %t", status, active)
	}
	f.endAll(t, s)
	if status, active := f.introspect(t, s, f.replica.url, token); status != http.StatusOK || active {
		t.Errorf("after its end: status %d, active %t", status, active)
	}
	return fmt.Sprintf("Postgres ends; 503 for every kind and for introspection, nothing issued; back %s after Postgres", took.Round(10*time.Millisecond))
}

// exhaustLog writes to the log of Postgres until Postgres has ended. After a first crash it may start again by itself, in a segment
// that it can use once more.
func (f *fullDisk) exhaustLog(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; pauseFor(t.Context(), 100*time.Millisecond) {
		f.small.Fill(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		conn, err := pgx.Connect(ctx, f.small.DB.AdminURL)
		if err == nil {
			_, _ = conn.Exec(ctx, `SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000)) FROM generate_series(1, 2000)`)
			_ = conn.Close(ctx)
		}
		cancel()
		log := f.small.Log(t)
		if strings.Contains(log, "PANIC:  could not write to file \"pg_wal") && strings.HasSuffix(strings.TrimSpace(log), "database system is shut down") {
			return
		}
		if time.Since(began) > patience(20*time.Second) {
			t.Fatalf("the log of Postgres finds room:\n%s", log[max(0, len(log)-4000):])
		}
	}
}
