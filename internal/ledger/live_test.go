package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func quarantine(id string) broker.Command {
	return announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: id})
}

func lift(id string) broker.Command {
	return announced(broker.CommandQuarantineRemove, broker.Selector{SPIFFEID: id})
}

func taskEnd(id, task string, at time.Time) broker.Command {
	cmd := announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: id, Task: task})
	cmd.At = at
	return cmd
}

func TestQuarantineForbids(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		quarantine, subject string
		want                error
	}{
		{"spiffe://acme.test/agents/a", "spiffe://acme.test/agents/a", broker.ErrQuarantined},
		{"spiffe://acme.test/agents/a", "spiffe://acme.test/agents/a/b", broker.ErrQuarantined},
		{"spiffe://acme.test/agents/a", "spiffe://acme.test/agents/ab", nil},
		{"spiffe://acme.test/agents/a", "spiffe://acme.test/agents", nil},
		{"spiffe://acme.test/agents/a/b", "spiffe://acme.test/agents/a", nil},
		{"spiffe://acme.test/agents", "spiffe://acme.test/agents/a/b/c/d", broker.ErrQuarantined},
		{"spiffe://acme.test", "spiffe://acme.test/agents/a", broker.ErrQuarantined},
		{"spiffe://acme.test", "spiffe://acme.test.evil/agents/a", nil},
		{"spiffe://acme", "spiffe://acme.test/agents/a", nil},
		{"spiffe://other.test/agents/a", "spiffe://acme.test/agents/a", nil},
		{"spiffe://acme.test/agents/%", "spiffe://acme.test/agents/a", nil},
	} {
		t.Run(tc.quarantine+" and "+tc.subject, func(t *testing.T) {
			db := testkit.NewDB(t)
			l, other := db.Ledger(t), db.Ledger(t)
			who := as(moment(), tc.subject, "git.read", "t", 0)
			announce(t, l, quarantine(tc.quarantine))
			for name, rec := range map[string]broker.Record{
				"a JWT": allowed(who), "a request that waits": pending(who), "a login": dynamic("database", who),
			} {
				if earlier, err := other.Begin(t.Context(), rec); !errors.Is(err, tc.want) || earlier != nil {
					t.Errorf("%s: got %v, %v, want %v", name, earlier, err, tc.want)
				}
			}
			begin(t, other, denied(who))
			announce(t, other, lift(tc.quarantine))
			begin(t, l, allowed(who))
			db.Check(t)
		})
	}
}

func TestTaskEnds(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l, other := db.Ledger(t), db.Ledger(t)
	tries := func(name, id, task string, want error) {
		t.Helper()
		for _, rec := range []broker.Record{allowed(as(moment(), id, "git.read", task, 0)), pending(as(moment(), id, "git.read", task, 0))} {
			if _, err := other.Begin(t.Context(), rec); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
	}
	soon, passed := time.Now().Add(time.Hour), start.Add(-time.Minute)
	over := func(task string, at ...time.Time) {
		t.Helper()
		for i, at := range at {
			announce(t, []*ledger.Ledger{l, other}[i%2], taskEnd(sandbox, task, at))
		}
	}
	over("at once", time.Time{})
	over("at its own time", start)
	over("soon", soon)
	changesNothing := func(task string, first, second time.Time) {
		t.Helper()
		over(task, first)
		before := size(t, db)
		if err := other.Announce(t.Context(), taskEnd(sandbox, task, second)); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", task, err)
		}
		if after := size(t, db); after != before {
			t.Errorf("%s: got %d entries more, want none", task, after-before)
		}
		if command, err := other.TaskEnded(t.Context(), broker.Task{SPIFFEID: sandbox, Task: task}, second); err != nil || command == "" {
			t.Errorf("%s: got %q, %v, want the first command", task, command, err)
		}
	}
	changesNothing("not later", soon, soon.Add(time.Hour))
	changesNothing("at once again", time.Time{}, time.Time{})
	over("sooner", soon, passed)
	changesNothing("not undone", start, soon)
	over("made final", soon, start)
	for task, at := range map[string]time.Time{"deadline has passed": passed, "deadline passed before": passed.Add(-time.Second)} {
		cmd := taskEnd(sandbox, task, at)
		cmd.Time = passed.Add(-time.Hour)
		announce(t, l, cmd)
	}
	for task, want := range map[string]error{
		"at once": broker.ErrTaskEnded, "at once again": broker.ErrTaskEnded, "at its own time": broker.ErrTaskEnded, "soon": nil, "not later": nil,
		"sooner": broker.ErrTaskEnded, "not undone": broker.ErrTaskEnded, "made final": broker.ErrTaskEnded,
		"deadline has passed": broker.ErrTaskEnded, "deadline passed before": broker.ErrTaskEnded, "another": nil,
	} {
		tries(task, sandbox, task, want)
		tries(task+", of another sandbox", sandbox+"b", task, nil)
	}
	begin(t, l, denied(as(moment(), sandbox, "git.read", "at once", 0)))

	due := func(limit int) []broker.Task {
		t.Helper()
		tasks, err := l.Deadlines(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		return tasks
	}
	// Deadlines does not return tasks that end soon, whatever the caller's clock says.
	want := []broker.Task{{SPIFFEID: sandbox, Task: "deadline passed before"}, {SPIFFEID: sandbox, Task: "deadline has passed"}}
	for limit, want := range map[int][]broker.Task{10: want, 1: want[:1]} {
		if diff := cmp.Diff(want, due(limit)); diff != "" {
			t.Errorf("%d deadlines (-want +got):\n%s", limit, diff)
		}
	}
	for _, task := range want {
		cmd := taskEnd(task.SPIFFEID, task.Task, time.Time{})
		cmd.Actor = nil
		announce(t, l, cmd)
	}
	if got := due(10); len(got) != 0 {
		t.Errorf("got deadlines %v after they were closed", got)
	}
	db.Check(t)
}

func TestQuarantines(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, other := db.Ledger(t), db.Ledger(t)
	if err := l.Announce(t.Context(), lift(sandbox)); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("lifting what does not stand: got %v, want ErrNotFound", err)
	}
	first, second := quarantine(sandbox), quarantine(sandbox)
	second.Reason, second.Actor = "again", nil
	announce(t, l, first)
	elsewhere, above := quarantine("spiffe://other.test"), quarantine("spiffe://acme.test/a")
	announce(t, other, second, elsewhere, above)
	for _, on := range []*ledger.Ledger{l, other} {
		if err := on.Announce(t.Context(), quarantine(sandbox)); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("an equal order while the first is in force: got %v, want ErrNotFound", err)
		}
	}
	list := func(reach broker.Reach) []broker.Quarantine {
		t.Helper()
		got, err := other.Quarantines(t.Context(), reach)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	inForce := func(cmd broker.Command, index int64) broker.Quarantine {
		return broker.Quarantine{
			SPIFFEID: cmd.Target.SPIFFEID, Since: cmd.Time.Truncate(time.Microsecond), Actor: "spiffe://acme.test/admin", Reason: "because",
			Command: cmd.ID, Index: index,
		}
	}
	one, two, three := inForce(above, 3), inForce(first, 0), inForce(elsewhere, 2)
	for _, tc := range []struct {
		name  string
		reach broker.Reach
		want  []broker.Quarantine
	}{
		{"all", broker.Reach{All: true}, []broker.Quarantine{one, two, three}},
		{"a trust domain", broker.Reach{TrustDomains: []string{"other.test"}}, []broker.Quarantine{three}},
		{"a sandbox", broker.Reach{Subject: sandbox}, []broker.Quarantine{two}},
		{"nothing", broker.Reach{}, nil},
	} {
		if diff := cmp.Diff(tc.want, list(tc.reach), sameView); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	stale := lift(sandbox)
	if stale.Lifts = second.ID; !errors.Is(l.Announce(t.Context(), stale), broker.ErrNotFound) || len(list(broker.Reach{Subject: sandbox})) != 1 {
		t.Error("what stands by one command was lifted as if it stood by another")
	}
	var lifted, none atomic.Int64
	var wg sync.WaitGroup
	for n := range 10 {
		wg.Go(func() {
			cmd := lift(sandbox)
			if n%3 > 0 {
				cmd.Lifts = first.ID
			}
			switch err := []*ledger.Ledger{l, other}[n%2].Announce(t.Context(), cmd); {
			case err == nil:
				lifted.Add(1)
			case errors.Is(err, broker.ErrNotFound):
				none.Add(1)
			default:
				t.Errorf("lifting: %v", err)
			}
		})
	}
	wg.Wait()
	if lifted.Load() != 1 || none.Load() != 9 {
		t.Errorf("got %d lifted and %d not found, want 1 and 9", lifted.Load(), none.Load())
	}
	announce(t, l, quarantine(sandbox)) // after the lift it is a new order
	if n := size(t, db); n != 6 {
		t.Errorf("got %d entries, want 6: four orders, a lift and another order", n)
	}
	db.Check(t)
}

// The owner of the database can append what the broker never would. An auditor sees if such an entry lifts no quarantine in
// force.
func TestLiftWithoutAQuarantineIsDetected(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	stands := quarantine(sandbox)
	announce(t, db.Ledger(t), stands, quarantine("spiffe://other.test"))
	const body = `{"id":%q,"kind":"quarantine.remove","lifts":%q,"reason":"","target":{"spiffe_id":%q},"time":"2096-01-01T00:00:00Z","version":1}`
	for name, text := range map[string]string{
		"of nothing":         fmt.Sprintf(body, uuid.NewString(), stands.ID, sandbox+"/x"),
		"by another command": fmt.Sprintf(body, uuid.NewString(), uuid.NewString(), sandbox),
	} {
		report := verifyWith(t, db, text)
		if !slices.ContainsFunc(report.Findings, func(f audit.Finding) bool { return f.Code == audit.Impossible && f.Index == 2 }) {
			t.Errorf("%s: got %+v, want it impossible", name, report.Findings)
		}
	}
	report := verifyWith(t, db, fmt.Sprintf(body, uuid.NewString(), stands.ID, sandbox))
	if len(report.Findings) != 1 || report.Findings[0].Code != audit.ProjectionExtra {
		t.Errorf("what can be: got %+v, want its row to be there still", report.Findings)
	}
}

// After a command was answered, nothing that it forbids begins on any replica. The checker covers what began before.
func TestNoForbiddenRequestFollowsACommand(t *testing.T) {
	t.Parallel()
	for name, cmd := range map[string]broker.Command{
		"quarantine": quarantine("spiffe://acme.test/agents"), "task": taskEnd(sandbox, "task-1", time.Time{}),
	} {
		t.Run(name, func(t *testing.T) {
			db := testkit.NewDB(t)
			replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
			var answered atomic.Bool
			var began atomic.Int64
			var wg sync.WaitGroup
			for n := range 100 {
				wg.Go(func() {
					for range 200 {
						late := answered.Load()
						_, err := replicas[n%2].Begin(t.Context(), allowed(nil))
						switch {
						case err == nil && late:
							t.Error("a request began after the command was answered")
						case err == nil:
							began.Add(1)
						case errors.Is(err, broker.ErrQuarantined), errors.Is(err, broker.ErrTaskEnded):
							if late {
								return
							}
						default:
							t.Errorf("Begin: %v", err)
						}
					}
				})
			}
			until(t, "some have begun", func() bool { return began.Load() > 50 })
			announce(t, replicas[0], cmd)
			answered.Store(true)
			wg.Wait()
			db.Check(t)
		})
	}
}

func TestBadCommands(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	good := quarantine(sandbox)
	announce(t, l, good)
	for name, cmd := range map[string]broker.Command{
		"no kind":                    announced("", broker.Selector{SPIFFEID: sandbox}),
		"another kind":               announced("call.refused", broker.Selector{SPIFFEID: sandbox}),
		"a task's end without task":  taskEnd(sandbox, "", start),
		"a task's end for nobody":    taskEnd("", "t", start),
		"a task's end of a path":     announced(broker.CommandTaskEnd, broker.Selector{SPIFFEIDPrefix: sandbox, Task: "t"}),
		"a task of a trust domain":   taskEnd("spiffe://acme.test", "t", start),
		"a quarantine of nobody":     quarantine(""),
		"a quarantine of a scope":    announced(broker.CommandQuarantineAdd, broker.Selector{SPIFFEID: sandbox, Scope: "x"}),
		"a quarantine with a slash":  quarantine("spiffe://acme.test/"),
		"a quarantine of everything": quarantine("spiffe://"),
		"a reason that is no text":   func() broker.Command { c := quarantine(sandbox); c.Reason = "\xff"; return c }(),
		"no id":                      func() broker.Command { c := quarantine(sandbox); c.ID = ""; return c }(),
		"the same command again":     func() broker.Command { c := good; c.Reason = "another"; return c }(),
	} {
		if err := l.Announce(t.Context(), cmd); !errors.Is(err, record.ErrUnrecordable) {
			t.Errorf("%s: got %v, want ErrUnrecordable", name, err)
		}
	}
	cmd := announced(broker.CommandRevoke, broker.Selector{TrustDomain: "acme.test", Scope: "git.read", Catalogue: "sha256:x"})
	announce(t, l, cmd)
	entries := db.Entries(t)
	want := map[string]any{
		"version": 1.0, "kind": "credentials.revoke", "id": cmd.ID, "time": cmd.Time.Truncate(time.Microsecond).Format(time.RFC3339Nano),
		"actor": map[string]any{
			"spiffe_id": "spiffe://acme.test/admin", "trust_domain": "acme.test", "svid": "x509-svid", "thumbprint": "dGh1bWI",
		},
		"target": map[string]any{"trust_domain": "acme.test", "scope": "git.read", "catalogue": "sha256:x"}, "reason": "because",
	}
	if diff := cmp.Diff(want, entries[len(entries)-1].Body); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	db.Check(t)
}

// lapse gives a record an end that has passed.
func lapse(rec *broker.Record) {
	rec.Time = moment().Add(-time.Hour)
	rec.Expires = rec.Time.Add(30 * time.Minute).Truncate(time.Second)
}

func TestLive(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	names := map[string]string{}
	add := func(name, kind string, change func(*broker.Record), way ...broker.Status) {
		names[bring(t, l, kind, way, change).ID] = name
	}
	const issued, unknown, revoking = broker.StatusIssued, broker.StatusUnknown, broker.StatusRevoking
	add("jwt", "jwt", nil)
	add("jwt, lapsed", "jwt", lapse)
	add("jwt, revoked", "jwt", nil, broker.StatusRevoked)
	add("intent", "database", nil)
	add("login", "database", nil, issued)
	add("login, lapsed", "database", lapse, issued)
	add("login, expired", "database", lapse, issued, broker.StatusExpired)
	add("unknown, lapsed", "database", lapse, unknown)
	add("revoking", "database", nil, issued, revoking)
	add("revoking, lapsed", "database", lapse, revoking)
	add("static", "kv", nil, issued)
	add("static, lapsed", "kv", lapse, issued)
	add("below", "jwt", as(moment(), sandbox+"/x", "git.write", "t2", 0))
	add("beside", "jwt", as(moment(), sandbox+"b", "git.read", "task-1", 0))
	add("elsewhere", "database", as(moment(), "spiffe://other.test/agents/a", "git.read", "task-1", 0), issued)
	begin(t, l, denied(nil), pending(nil))
	live := func(sel broker.Selector, reach broker.Reach, page broker.LivePage) []string {
		t.Helper()
		var got []string
		for {
			held, err := l.Live(t.Context(), sel, reach, page)
			if err != nil || len(held) > page.Limit {
				t.Fatalf("Live: got %d, %v", len(held), err)
			}
			for _, h := range held {
				got, page.After = append(got, names[h.ID]), h.ID
			}
			if len(held) < page.Limit {
				return got
			}
		}
	}
	own := []string{"jwt", "intent", "login", "login, lapsed", "unknown, lapsed", "revoking", "revoking, lapsed", "static"}
	all := slices.Concat(own, []string{"below", "beside", "elsewhere"})
	acme := slices.Concat(own, []string{"below", "beside"})
	everywhere := broker.Reach{All: true}
	for _, tc := range []struct {
		name  string
		sel   broker.Selector
		reach broker.Reach
		want  []string
	}{
		{"everything", broker.Selector{}, everywhere, all},
		{"nothing in reach", broker.Selector{}, broker.Reach{}, nil},
		{"a trust domain's", broker.Selector{}, broker.Reach{TrustDomains: []string{"acme.test"}}, acme},
		{"one's own", broker.Selector{}, broker.Reach{Subject: sandbox}, own},
		{"by trust domain", broker.Selector{TrustDomain: "other.test"}, everywhere, []string{"elsewhere"}},
		{"out of reach", broker.Selector{TrustDomain: "other.test"}, broker.Reach{Subject: sandbox}, nil},
		{"by sandbox", broker.Selector{SPIFFEID: sandbox}, everywhere, own},
		{"by path", broker.Selector{SPIFFEIDPrefix: sandbox}, everywhere, slices.Concat(own, []string{"below"})},
		{"by task", broker.Selector{Task: "t2"}, everywhere, []string{"below"}},
		{"by scope", broker.Selector{Scope: "git.write"}, everywhere, []string{"below"}},
		{"by catalogue", broker.Selector{Catalogue: "sha256:c0ffee"}, everywhere, all},
		{"by another catalogue", broker.Selector{Catalogue: "sha256:c0ffe"}, everywhere, nil},
		{"by a malformed id", broker.Selector{ID: "x"}, everywhere, nil},
		{"by invalid text", broker.Selector{Task: "\x00"}, everywhere, nil},
	} {
		for _, limit := range []int{1, 2, 100} {
			if diff := cmp.Diff(tc.want, live(tc.sel, tc.reach, broker.LivePage{Limit: limit})); diff != "" {
				t.Errorf("%s, %d at a time (-want +got):\n%s", tc.name, limit, diff)
			}
		}
	}
	leased := []string{"intent", "login", "login, lapsed", "unknown, lapsed", "revoking", "revoking, lapsed", "elsewhere"}
	if diff := cmp.Diff(leased, live(broker.Selector{}, everywhere, broker.LivePage{Limit: 3, Leased: true})); diff != "" {
		t.Errorf("leased (-want +got):\n%s", diff)
	}
	var before int64
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `SELECT entry_index FROM issuances WHERE scope = 'git.write'`).Scan(&before); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(own, live(broker.Selector{}, everywhere, broker.LivePage{Limit: 3, Before: before})); diff != "" {
		t.Errorf("before the one below (-want +got):\n%s", diff)
	}
	for id, name := range names {
		want := []string{name}
		if !slices.Contains(all, name) {
			want = nil
		}
		if got := live(broker.Selector{ID: id}, everywhere, broker.LivePage{Limit: 2}); !slices.Equal(got, want) {
			t.Errorf("by the id of %s: got %v", name, got)
		}
	}
	if _, err := l.Live(t.Context(), broker.Selector{}, everywhere, broker.LivePage{}); !errors.Is(err, record.ErrPageSize) {
		t.Errorf("no limit: got %v, want ErrPageSize", err)
	}
}

func TestLiveCredentialHasEveryField(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rec := bring(t, l, "database", []broker.Status{broker.StatusIssued}, nil)
	out := to(rec, broker.StatusRevoking)
	out.Actor = "spiffe://acme.test/admin"
	settle(t, l, out)
	got, err := l.Live(t.Context(), broker.Selector{ID: rec.ID}, everything, broker.LivePage{Limit: 1})
	want := []broker.LiveCredential{{
		ID: rec.ID, Subject: sandbox, Task: "task-1", Scope: "git.read", Kind: "database", Status: broker.StatusRevoking,
		Detail: "because", Actor: out.Actor, StatusTime: out.Time.Truncate(time.Microsecond), Expires: rec.Expires,
		Leased: true, VaultLease: minted(rec).VaultLease,
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
}

// Tokens that wait for GitHub, however many, do not keep a database login waiting.
func TestTokensOfGitHubAreDueAfterAllOthers(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	for range 20 {
		bring(t, l, "github", []broker.Status{broker.StatusUnknown}, nil)
	}
	login := bring(t, l, "database", []broker.Status{broker.StatusUnknown}, nil).ID
	for range 10 {
		held, err := l.Overdue(t.Context(), broker.Overdue{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if len(held) != 2 || held[0].ID != login || held[1].Kind != "github" {
			t.Fatalf("got %+v, want the login and a token", held)
		}
	}
}

func TestOverdueCredentialsAreFound(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	type found struct {
		Name, Detail string
	}
	names := map[string]string{}
	add := func(name, kind string, change func(*broker.Record), way ...broker.Status) {
		names[bring(t, l, kind, way, change).ID] = name
	}
	const issued = broker.StatusIssued
	add("a fresh intent", "database", nil)
	add("an old intent", "ssh", lapse)
	add("lost", "database", nil, broker.StatusUnknown)
	add("revoking", "database", nil, broker.StatusRevoking)
	add("alive", "database", nil, issued)
	add("overdue", "database", lapse, issued)
	add("a lapsed JWT", "jwt", lapse)
	for name, who := range map[string]func(*broker.Record){
		" of the task": as(moment(), sandbox+"2", "git.read", "over", 0), " in quarantine": as(moment(), sandbox+"3/x", "git.read", "t", 0),
		" of another task": as(moment(), sandbox+"2", "git.read", "goes on", 0), " of a task with a deadline": as(moment(), sandbox+"2", "git.read", "ends", 0),
	} {
		add("a JWT"+name, "jwt", who)
		add("a login"+name, "database", who, issued)
		add("a static secret"+name, "kv", who, issued)
		add("a revoked JWT"+name, "jwt", who, broker.StatusRevoked)
	}
	for _, cmd := range []broker.Command{
		taskEnd(sandbox+"2", "over", time.Time{}), taskEnd(sandbox+"2", "ends", time.Now().Add(time.Hour)), quarantine(sandbox + "3"),
	} {
		cmd.Time = start.Add(-10 * time.Second) // a command must stand for some seconds before anything is due by it
		announce(t, l, cmd)
	}
	due := func(limit int) []found {
		t.Helper()
		held, err := l.Overdue(t.Context(), broker.Overdue{
			Unfinished: start.Add(-time.Minute), Overdue: start.Add(-time.Minute), Expired: start, Limit: limit,
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []found
		for _, h := range held {
			got = append(got, found{names[h.ID], h.Detail})
		}
		slices.SortFunc(got, func(a, b found) int { return strings.Compare(a.Name, b.Name) })
		return got
	}
	want := []found{
		{"a JWT in quarantine", broker.CauseQuarantined},
		{"a JWT of the task", broker.CauseTaskEnded},
		{"a login in quarantine", broker.CauseQuarantined},
		{"a login of the task", broker.CauseTaskEnded},
		{"an old intent", ""},
		{"lost", "because"},
		{"overdue", ""},
		{"revoking", "because"},
	}
	if diff := cmp.Diff(want, due(100)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// With a limit, each one still comes at some time.
	seen := map[found]bool{}
	until(t, "all come in turn", func() bool {
		for _, f := range due(2) {
			seen[f] = true
		}
		return len(seen) == len(want)
	})
}

// The answers to commands and outcomes can get lost too.
func TestCommandSurvivesALostCommitResponse(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	p, databaseURL := through(t, db.BrokerURL)
	l := open(t, databaseURL)
	rec := dynamic("database", nil)
	begin(t, l, rec)
	lose := func(name, marker string, call func() error) {
		t.Helper()
		p.arm(marker, cutAnswer, false)
		if err := call(); err != nil || !p.fired() {
			t.Errorf("%s: got %v, and the statement passed: %t", name, err, p.fired())
		}
	}
	lose("issued", "issuance.issued", func() error { return l.RecordOutcome(t.Context(), to(rec, broker.StatusIssued)) })
	lose("revoking", "issuance.revoking", func() error { return l.RecordOutcome(t.Context(), to(rec, broker.StatusRevoking)) })
	for _, cmd := range []broker.Command{
		quarantine(sandbox), lift(sandbox), taskEnd(sandbox, "t", time.Time{}), announced(broker.CommandRevoke, broker.Selector{ID: uuid.NewString()}),
	} {
		lose(cmd.Kind, cmd.ID, func() error { return l.Announce(t.Context(), cmd) })
	}
	if got := len(db.Entries(t)); got != 7 {
		t.Errorf("got %d entries, want 7", got)
	}
	db.Check(t)
}

// size returns the number of entries.
func size(t *testing.T, db *testkit.DB) (n int64) {
	t.Helper()
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestUrgentEntriesOvertake checks that an admin's command is committed before entries of sandboxes that were queued earlier (T11).
func TestUrgentEntriesOvertake(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	waiting, release := hold(t, db)
	var all sync.WaitGroup
	all.Go(func() { begin(t, l, allowed(nil)) }) // in flight
	waiting()
	const ends = 20
	for n := range ends {
		all.Go(func() { // each needs a batch of its own, since the sandbox ends the same task
			cmd := taskEnd(sandbox, "same", time.Now().Add(time.Duration(ends-n)*time.Hour))
			cmd.Actor = &broker.Actor{Workload: broker.Subject{ID: spiffeid.RequireFromString(sandbox), Kind: attest.KindX509, Thumbprint: "dGh1bWI"}}
			if err := l.Announce(t.Context(), cmd); err != nil {
				t.Errorf("ending a task: %v", err)
			}
		})
		until(t, "an end is queued", func() bool { return l.Queued() > n }) // so that each is sooner than the one before, and takes effect
	}
	all.Go(func() { announce(t, l, quarantine("spiffe://other.test/agents/x")) })
	until(t, "the quarantine is queued", func() bool { return l.QueuedUrgent() == 1 })
	release()
	all.Wait()
	var place, size int64
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
		SELECT (SELECT index FROM entries WHERE kind = 'quarantine.add'), size FROM ledger_head`).Scan(&place, &size); err != nil {
		t.Fatal(err)
	}
	if place > 2 { // after the one in flight, and at most one that was taken with it
		t.Errorf("the quarantine is entry %d of %d, want it right after what was in flight", place, size)
	}
	db.Check(t)
}

// TestEndsByPeopleAndCataloguesAreUrgent checks that what a person's end of a task ends, and a catalogue that an admin applies, do not
// wait behind what sandboxes end (T11).
func TestEndsByPeopleAndCataloguesAreUrgent(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	const ends = 20
	var ended []broker.Outcome
	for range ends + 1 {
		rec := allowed(nil)
		begin(t, l, rec)
		out := to(rec, broker.StatusRevoked)
		out.Detail, out.Actor = broker.CauseTaskEnded, sandbox
		ended = append(ended, out)
	}
	ended[ends].Actor = "https://idp.test#alice"
	applied := step(t, l, broker.CatalogueApplied, "Urgent", "https://idp.test#alice")
	waiting, release := hold(t, db)
	var all sync.WaitGroup
	all.Go(func() { begin(t, l, allowed(nil)) }) // in flight
	waiting()
	for _, out := range ended[:ends] {
		all.Go(func() { settle(t, l, out) })
	}
	until(t, "the ends of sandboxes are queued", func() bool { return l.Queued() == ends })
	all.Go(func() { settle(t, l, ended[ends]) })
	all.Go(func() { take(t, l, applied) })
	until(t, "the others are queued as urgent", func() bool { return l.QueuedUrgent() == 2 })
	release()
	all.Wait()
	db.Check(t)
}

// TestUrgentEntriesLeaveTurns checks that an entry of a sandbox is committed although many urgent entries came first, each of which
// needs a batch of its own (T11).
func TestUrgentEntriesLeaveTurns(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	waiting, release := hold(t, db)
	var all sync.WaitGroup
	all.Go(func() { begin(t, l, allowed(nil)) }) // in flight
	waiting()
	const orders = 20
	for n := range orders {
		cmd := quarantine("spiffe://other.test/agents/same")
		cmd.Reason = fmt.Sprint(n) // an equal order would leave no entry
		all.Go(func() { announce(t, l, cmd) })
	}
	until(t, "the quarantines are queued", func() bool { return l.QueuedUrgent() == orders })
	all.Go(func() { begin(t, l, allowed(nil)) })
	until(t, "the request is queued", func() bool { return l.Queued() == 1 })
	release()
	all.Wait()
	var place, size int64
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `
		SELECT (SELECT max(index) FROM entries WHERE kind = 'issuance.intent'), size FROM ledger_head`).Scan(&place, &size); err != nil {
		t.Fatal(err)
	}
	if size != orders+2 || place > 2 { // after the one in flight, and one urgent batch
		t.Errorf("the request is entry %d of %d, want it after one of the quarantines", place, size)
	}
	db.Check(t)
}
