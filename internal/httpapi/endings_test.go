package httpapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

var officers = testkit.Options{
	Catalogue: catalogue, Auditors: []string{auditor}, Admins: []string{admin, outsider}, Orchestrators: []string{runtime},
}

// outsider is an admin of acme.test that no quarantine in it covers.
const outsider = "spiffe://other.test/ops/admin"

// token requests a credential, and fails the test if it gets none.
func token(t *testing.T, c *client.Client, ask client.Ask) *client.Token {
	t.Helper()
	got, err := c.Request(t.Context(), ask)
	if err != nil || got.Token == nil {
		t.Fatalf("asking for %+v: got %+v, %v", ask, got, err)
	}
	return got.Token
}

func task(name string) client.Ask {
	ask := read
	ask.Task = name
	return ask
}

// wantEnded checks what a receipt lists, and that the records agree with it.
func wantEnded(t *testing.T, s *testkit.Stack, r openapi.Receipt, err error, status openapi.Status, cause, by string, ids ...string) {
	t.Helper()
	if err != nil {
		t.Fatalf("got %v, want a receipt", err)
	}
	got := map[string]bool{}
	for _, e := range r.Ended {
		got[e.ID] = true
		if e.Status != status || e.Cause != cause || e.Why != "" || e.At.IsZero() {
			t.Errorf("got %+v, want it %s by %s", e, status, cause)
		}
		one, err := s.Client(t, auditor).Issuance(t.Context(), e.ID)
		if err != nil || one.Status != status || one.StatusDetail != cause || one.EndedBy != by {
			t.Errorf("got the record %+v, %v, want it %s by %s", one, err, status, by)
		}
	}
	want := map[string]bool{}
	for _, id := range ids {
		want[id] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(r.Ended) != len(ids) {
		t.Errorf("the receipt lists (-want +got):\n%s", diff)
	}
	if r.Counts[string(status)] != len(ids) || r.More {
		t.Errorf("got the counts %v, want %d %s and no more", r.Counts, len(ids), status)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	mine := token(t, c, read)
	for _, who := range []string{twin, foreign, admin, auditor, runtime} {
		if _, err := s.Client(t, who).Release(t.Context(), mine.ID); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s releases a foreign credential: got %v, want ErrNotFound", who, err)
		}
	}
	for range 2 {
		r, err := c.Release(t.Context(), mine.ID)
		if err == nil && r.ID != "" {
			t.Errorf("got the command %s on a receipt that has none", r.ID)
		}
		wantEnded(t, s, r, err, "released", "released", agent, mine.ID)
	}
	if got := scrape(t, s.Server); !strings.Contains(got, `brevet_ended_total{cause="released",status="released"} 2`) {
		t.Error("the release is not in the metrics")
	}
	s.DB.Check(t)
}

func TestEndTask(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	one, two, other := token(t, c, task("t-1")), token(t, c, task("t-1")), token(t, c, task("t-2"))
	r, err := c.EndTask(t.Context(), "t-1", client.TaskEnd{Reason: "done\r\nX: 1"})
	wantEnded(t, s, r, err, "revoked", "task_ended", agent, one.ID, two.ID)
	until := map[string]time.Time{one.ID: one.Expires, two.ID: two.Expires}
	for _, ended := range r.Ended { // in any order
		if r.ID == "" || !ended.UsableUntil.Equal(until[ended.ID]) {
			t.Errorf("got %+v, want it to name its entry, and until when others may accept the tokens", r)
		}
	}
	if r, err := c.EndTask(t.Context(), "t-1", client.TaskEnd{}); err != nil || len(r.Ended) != 0 || r.Counts == nil {
		t.Errorf("again: got %+v, %v, want an empty receipt", r, err)
	}
	_, err = c.Request(t.Context(), task("t-1"))
	var p *client.Problem
	if !errors.Is(err, client.ErrTaskEnded) || !errors.Is(err, client.ErrDenied) || !errors.As(err, &p) || p.Reason != "task_ended" || p.ID == "" {
		t.Errorf("asking for an ended task: got %v, want it denied as task_ended", err)
	}
	if state, err := c.State(t.Context(), other.ID); err != nil || state.Status != "issued" {
		t.Errorf("another task: got %+v, %v, want it untouched", state, err)
	}
	// A task belongs to its sandbox: the same name in another sandbox is another task.
	if _, err := s.Client(t, twin).Request(t.Context(), client.Ask{Scope: "git.issues.list", Task: "t-1"}); err != nil {
		t.Errorf("the same name with another sandbox: got %v", err)
	}
	later, err := c.EndTask(t.Context(), "t-2", client.TaskEnd{At: time.Now().Add(time.Hour)})
	if err != nil || len(later.Ended) != 0 || later.Time.Before(time.Now().Add(50*time.Minute)) {
		t.Errorf("a deadline: got %+v, %v", later, err)
	}
	if _, err := c.Request(t.Context(), task("t-2")); err != nil {
		t.Errorf("before the deadline: got %v", err)
	}
	// A call without a body also ends the task.
	bare := wire{target: "/v1/tasks/t-2/end", body: nothing}.send(t, s)
	if bare.status != 200 || bare.header.Get("Cache-Control") != "no-store" || strings.Count(bare.text, `"cause":"task_ended"`) != 2 {
		t.Errorf("without a body: got %d %s", bare.status, bare.text)
	}
	s.DB.Check(t)
}

func TestOnlyPermittedCallersEndATask(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	end := func(who, of string) error {
		_, err := s.Client(t, who).EndTask(t.Context(), "t-1", client.TaskEnd{SPIFFEID: of})
		return err
	}
	for _, tc := range []struct{ who, of string }{
		{agent, twin},
		{auditor, agent},
		{foreign, agent},
		{runtime, foreign},
		{admin, foreign},
	} {
		if err := end(tc.who, tc.of); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s ends a task of %s: got %v, want ErrNotFound", tc.who, tc.of, err)
		}
	}
	for _, who := range []string{runtime, admin} {
		mine := token(t, s.Client(t, agent), task("by-"+who[len("spiffe://acme.test/"):]))
		r, err := s.Client(t, who).EndTask(t.Context(), mine.Task, client.TaskEnd{SPIFFEID: agent})
		wantEnded(t, s, r, err, "revoked", "task_ended", who, mine.ID)
	}
	if err := end(agent, agent); err != nil {
		t.Errorf("naming oneself: got %v", err)
	}
}

func TestRevokeBySelector(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c, others, boss := s.Client(t, agent), s.Client(t, twin), s.Client(t, admin)
	for name, which := range map[string]func(*client.Token) client.Selection{
		"id":           func(mine *client.Token) client.Selection { return client.Selection{ID: mine.ID} },
		"task":         func(*client.Token) client.Selection { return client.Selection{Task: "t-9"} },
		"SPIFFE ID":    func(*client.Token) client.Selection { return client.Selection{SPIFFEID: agent} },
		"prefix":       func(*client.Token) client.Selection { return client.Selection{SPIFFEIDPrefix: agent} },
		"scope":        func(*client.Token) client.Selection { return client.Selection{Scope: "git.issues.read"} },
		"two":          func(*client.Token) client.Selection { return client.Selection{TrustDomain: "acme.test", Task: "t-9"} },
		"trust domain": func(*client.Token) client.Selection { return client.Selection{TrustDomain: "acme.test"} },
		"catalogue":    func(mine *client.Token) client.Selection { return client.Selection{Catalogue: mine.Catalogue} },
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := token(t, c, task("t-9")), token(t, others, client.Ask{Scope: "git.issues.list", Task: "t-8"})
			ids, all := []string{mine.ID}, name == "catalogue" || name == "trust domain"
			if all {
				ids = append(ids, theirs.ID)
			}
			if _, err := c.Revoke(t.Context(), which(mine), "x"); !errors.Is(err, client.ErrNotAllowed) {
				t.Errorf("a sandbox: got %v, want ErrNotAllowed", err)
			}
			r, err := boss.Revoke(t.Context(), which(mine), "leaked \x1b[2J")
			wantEnded(t, s, r, err, "revoked", "revoked", admin, ids...)
			if state, err := others.State(t.Context(), theirs.ID); err != nil || (state.Status == "issued") == all {
				t.Errorf("another's: got %+v, %v", state, err)
			}
			if _, err := boss.Revoke(t.Context(), which(mine), "again"); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("again: got %v, want ErrNotFound", err)
			}
			revokeAll(t, boss)
		})
	}
	s.DB.Check(t)
}

// revokeAll revokes all credentials in acme.test.
func revokeAll(t *testing.T, boss *client.Client) {
	t.Helper()
	_, err := boss.Revoke(t.Context(), client.Selection{TrustDomain: "acme.test"}, "tidy up")
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
}

// replica starts a second broker and server on the same ledger and the same Vault, behind the same TLS.
func replica(t *testing.T, s *testkit.Stack) *httptest.Server {
	t.Helper()
	loaded, err := scopes.Load(catalogue)
	if err != nil {
		t.Fatal(err)
	}
	book := s.DB.Ledger(t)
	core, err := broker.New(broker.Config{
		Ledger: book, Live: book, Feed: book, Usage: book, Stats: book, Tokens: book, Approvals: book, Passkeys: book, DPoPReplayCache: book,
		Catalogues: book, Minter: s.Minter, Signer: s.Minter, Catalogue: func() *scopes.Catalogue { return loaded },
		Issuer: testkit.Audience, Now: time.Now, Log: s.Config.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.Config
	cfg.Broker, cfg.Registry = core, prometheus.NewRegistry()
	other, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewTLSServer(other.Handler())
	t.Cleanup(srv.Close)
	return srv
}

// askReplica sends a request to the second replica as id, and returns the status and the reason in the problem.
func askReplica(t *testing.T, s *testkit.Stack, srv *httptest.Server, id string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/tokens", strings.NewReader(goodBody))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.JWT(t, id))
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var p struct{ Reason string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, p.Reason
}

// T9: a sandbox in quarantine gets no credential, and the credentials that it has are revoked.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	other, boss := replica(t, s), s.Client(t, admin)
	for _, name := range []string{agent, "spiffe://acme.test/agents", "spiffe://acme.test"} {
		t.Run(name, func(t *testing.T) {
			mine := token(t, s.Client(t, agent), read)
			r, err := boss.Quarantine(t.Context(), name, "odd\u202e")
			wantEnded(t, s, r, err, "revoked", "quarantined", admin, mine.ID)
			if status, reason := askReplica(t, s, other, agent); status != 403 || reason != "quarantined" {
				t.Errorf("the other replica answers %d %s, want 403 quarantined", status, reason)
			}
			if _, err := s.Client(t, agent).Request(t.Context(), read); !errors.Is(err, client.ErrQuarantined) {
				t.Errorf("got %v, want ErrQuarantined", err)
			}
			for _, who := range []string{admin, auditor} {
				all, err := s.Client(t, who).Quarantines(t.Context())
				if err != nil || len(all) != 1 || all[0].SpiffeID != name || all[0].Actor != admin || all[0].Reason != "odd\u202e" || all[0].Since.IsZero() {
					t.Errorf("%s sees %+v, %v", who, all, err)
				}
			}
			if err := boss.Unquarantine(t.Context(), name+"/x", ""); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("lifting another name: got %v, want ErrNotFound", err)
			}
			free := boss
			if name == "spiffe://acme.test" {
				if err := boss.Unquarantine(t.Context(), name, "all well"); !errors.Is(err, client.ErrNotFound) {
					t.Errorf("lifting it as a workload of it: got %v, want ErrNotFound", err)
				}
				free = s.Client(t, outsider)
			}
			if err := free.Unquarantine(t.Context(), name, "all well"); err != nil {
				t.Fatal(err)
			}
			if status, _ := askReplica(t, s, other, agent); status != 201 {
				t.Errorf("once it is lifted the other replica answers %d", status)
			}
			if err := boss.Unquarantine(t.Context(), name, ""); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("lifting it again: got %v, want ErrNotFound", err)
			}
			revokeAll(t, boss)
		})
	}
	s.DB.Check(t)
}

// An admin workload that quarantined itself cannot lift that: another admin may have ordered the same, and a quarantine names only the
// first who ordered it.
func TestWorkloadDoesNotLiftWhatOthersOrdered(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	own, other := s.Client(t, admin), s.Client(t, outsider)
	for _, order := range []struct {
		by     *client.Client
		reason string
	}{{own, "planted"}, {other, "compromised"}} {
		if _, err := order.by.Quarantine(t.Context(), admin, order.reason); err != nil {
			t.Fatal(err)
		}
	}
	if err := own.Unquarantine(t.Context(), admin, "let me out"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("lifting what another admin ordered too: got %v, want ErrNotFound", err)
	}
	if all, err := other.Quarantines(t.Context()); err != nil || len(all) != 1 || all[0].SpiffeID != admin {
		t.Errorf("got the quarantines %+v, %v, want that of %s", all, err, admin)
	}
	if err := other.Unquarantine(t.Context(), admin, "all well"); err != nil {
		t.Errorf("lifting it from outside: got %v", err)
	}
	s.DB.Check(t)
}

func TestRolesDoNotIncludeEachOther(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	mine := token(t, s.Client(t, agent), read)
	for _, who := range []string{agent, auditor, runtime, foreign} {
		c := s.Client(t, who)
		if _, err := c.Quarantine(t.Context(), agent, "x"); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s adds a quarantine: got %v", who, err)
		}
		if err := c.Unquarantine(t.Context(), agent, ""); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s lifts a quarantine: got %v", who, err)
		}
		if _, err := c.Revoke(t.Context(), client.Selection{ID: mine.ID}, "x"); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s revokes: got %v", who, err)
		}
		if _, err := c.Quarantines(t.Context()); errors.Is(err, client.ErrNotAllowed) == (who == auditor) {
			t.Errorf("%s lists quarantines: got %v", who, err)
		}
	}
	for _, who := range []string{admin, runtime} {
		if page, err := s.Client(t, who).Page(t.Context(), client.Filter{}); err != nil || len(page.Issuances) != 0 {
			t.Errorf("%s reads %+v, %v, want nothing of others", who, page, err)
		}
		if _, err := s.Client(t, who).Request(t.Context(), read); !errors.Is(err, client.ErrDenied) {
			t.Errorf("%s asks: got %v, want a denial", who, err)
		}
	}
}
