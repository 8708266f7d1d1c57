package replay_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// agentReads is a decision in the world: an agent reads issues of a permitted repository.
func agentReads() replay.Recorded {
	return replay.Recorded{
		ID: "01", SPIFFEID: "spiffe://td.example/agents/a", Scope: "git.issues.read", Params: testscopes.Repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"},
		Time: testscopes.Noon, Outcome: scopes.Allow, Reason: scopes.ReasonPermitted, Given: 5 * time.Minute,
	}
}

func TestReplayOfOneDecision(t *testing.T) {
	writes := func(rec *replay.Recorded) {
		rec.Scope, rec.Outcome, rec.Reason = "git.issues.write", scopes.Pending, scopes.ReasonApprovalRequired
	}
	const open = `@id("open") permit (principal, action, resource);`
	for _, tc := range []struct {
		name             string
		scopes, policies func(string) string
		rec              func(*replay.Recorded)
		want             replay.Shift
	}{
		{name: "as before", want: replay.Unchanged},
		{name: "TTL not known", rec: func(rec *replay.Recorded) { rec.Given = 0 }, want: replay.Unchanged},
		{name: "for longer", rec: func(rec *replay.Recorded) { rec.Given = time.Minute }, want: replay.NowLonger},
		{name: "for shorter", rec: func(rec *replay.Recorded) { rec.Given = time.Hour }, want: replay.NowShorter},
		{name: "allowed", rec: func(rec *replay.Recorded) { rec.Outcome, rec.Reason = scopes.Deny, scopes.ReasonNoPermit }, want: replay.NewlyAllowed},
		{name: "denied", policies: func(s string) string { return s + `@id("no") forbid (principal, action, resource);` }, want: replay.NewlyDenied},
		{name: "scope removed", scopes: func(s string) string { return strings.Replace(s, "name: git.issues.read", "name: git.issues.see", 1) }, want: replay.NewlyDenied},
		{name: "waits as before", rec: writes, want: replay.Unchanged},
		{name: "gated", rec: func(rec *replay.Recorded) { writes(rec); rec.Outcome = scopes.Allow }, want: replay.NewlyGated},
		{name: "askable", rec: func(rec *replay.Recorded) { writes(rec); rec.Outcome = scopes.Deny }, want: replay.NewlyAskable},
		{name: "ungated", rec: writes, policies: func(string) string { return open }, want: replay.NewlyUngated},
		{name: "waiting denied", rec: func(rec *replay.Recorded) { writes(rec); rec.Params = testscopes.Repo("evil/api") }, want: replay.NewlyDenied},
		{
			name: "approved", rec: func(rec *replay.Recorded) { writes(rec); rec.Outcome, rec.Reason = scopes.Allow, scopes.ReasonApproved },
			want: replay.Unchanged,
		},
		{
			name: "by breaking the glass", rec: func(rec *replay.Recorded) {
				writes(rec)
				rec.Outcome, rec.Reason, rec.TTL, rec.Given = scopes.Allow, scopes.ReasonBreakGlass, time.Hour, 30*time.Minute
			},
			scopes: func(s string) string { return strings.Replace(s, "15m}\n    approval", "2h}\n    approval", 1) }, want: replay.Unchanged,
		},
		{
			name: "approved, and forbidden now", rec: func(rec *replay.Recorded) { writes(rec); rec.Outcome, rec.Reason = scopes.Allow, scopes.ReasonApproved },
			policies: func(s string) string { return s + `@id("no") forbid (principal, action, resource);` }, want: replay.NewlyDenied,
		},
		{name: "parameter refused", scopes: func(s string) string { return strings.Replace(s, "max_length: 40", "max_length: 4", 1) }, want: replay.Undecidable},
		{name: "limited", rec: func(rec *replay.Recorded) { rec.Outcome, rec.Reason = scopes.Deny, scopes.ReasonLimited }, want: replay.NotByPolicies},
		{name: "quarantined", rec: func(rec *replay.Recorded) { rec.Outcome, rec.Reason = scopes.Deny, scopes.ReasonQuarantined }, want: replay.NotByPolicies},
		{name: "task ended", rec: func(rec *replay.Recorded) { rec.Outcome, rec.Reason = scopes.Deny, scopes.ReasonTaskEnded }, want: replay.NotByPolicies},
		{name: "nobody", rec: func(rec *replay.Recorded) { rec.SPIFFEID = "spiffe://td.example" }, want: replay.Undecidable},
		{name: "no SPIFFE ID", rec: func(rec *replay.Recorded) { rec.SPIFFEID = "" }, want: replay.Undecidable},
		{name: "no outcome known", rec: func(rec *replay.Recorded) { rec.Outcome = "" }, want: replay.Undecidable},
		{
			name: "SVID at its end", rec: func(rec *replay.Recorded) {
				rec.Scope, rec.Params, rec.Bound, rec.Outcome, rec.Reason, rec.Given = "mail.read", nil, true, scopes.Deny, scopes.ReasonSVIDExpiring, 0
			},
			want: replay.Unchanged,
		},
		{
			name: "a list for a parameter", rec: func(rec *replay.Recorded) { rec.Params = map[string]any{"repo": []any{"acme/api"}} },
			want: replay.Undecidable,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			yaml, cedar, rec := testscopes.Scopes, testscopes.Policies, agentReads()
			if tc.scopes != nil {
				yaml = tc.scopes(yaml)
				cedar = `@id("open") permit (principal, action, resource);`
			}
			if tc.policies != nil {
				cedar = tc.policies(cedar)
			}
			if tc.rec != nil {
				tc.rec(&rec)
			}
			r := replay.New(testscopes.Load(t, yaml, cedar))
			r.Add(rec)
			r.Add(rec) // from memory
			got := r.Report(10)
			if diff := cmp.Diff(map[replay.Shift]int64{tc.want: 2}, got.Counts); diff != "" || got.Decisions != 2 {
				t.Errorf("counts (-want +got) of %d:\n%s", got.Decisions, diff)
			}
			changed := tc.want != replay.Unchanged && tc.want != replay.NotByPolicies
			if changed != (len(got.Scopes) == 1) || changed != (len(got.Sandboxes) == 1) {
				t.Errorf("got groups %+v and %+v, want one of each for a change", got.Scopes, got.Sandboxes)
			}
		})
	}
}

// Scopes that certify the caller's key are replayed without the key.
func TestReplayWithoutKeys(t *testing.T) {
	draft := testscopes.Load(t, testscopes.Scopes+`  - name: web.certificate.issue
    title: Issue
    authority: write
    resource: service:web
    ttl: {default: 5m, max: 15m}
    credential: {kind: pki, mount: pki, role: web, common_name: web.td.example}
`, `@id("web") permit (principal, action in Action::"web.*", resource);`)
	rec := agentReads()
	rec.Scope, rec.Params, rec.Given = "web.certificate.issue", nil, 15*time.Minute
	r := replay.New(draft)
	r.Add(rec)
	if got := r.Report(1).Counts[replay.NowShorter]; got != 1 {
		t.Errorf("got %v, want it allowed for a shorter time", r.Report(1))
	}
}

// drawRecorded draws the decision of a catalogue for some request.
func drawRecorded(t *rapid.T, c *scopes.Catalogue) (replay.Recorded, scopes.Subject, scopes.Ask) {
	who, ask := testscopes.DrawSubject(t), testscopes.DrawAsk(t)
	d, err := c.Decide(who, ask, testscopes.Noon)
	if err != nil {
		t.Fatalf("deciding %+v: %v", ask, err)
	}
	rec := replay.Recorded{
		ID: fmt.Sprint(rapid.IntRange(0, 99).Draw(t, "record")), SPIFFEID: who.ID.String(), Bound: who.Bound, Proved: who.Proved, Expires: who.Expires, User: who.User,
		Scope: ask.Scope, Params: ask.Params, TTL: ask.TTL, RequestContext: ask.RequestContext, Time: testscopes.Noon, Outcome: d.Outcome, Reason: d.Reason, Given: d.TTL,
	}
	return rec, who, ask
}

// Memory and views change no answer: the counts equal those of deciding each request separately.
func TestReplayAgreesWithDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, draft := testscopes.MustLoad(t, testscopes.DrawPolicies(t)), testscopes.MustLoad(t, testscopes.DrawPolicies(t))
		r := replay.New(draft)
		want := map[replay.Shift]int64{}
		for range rapid.IntRange(1, 30).Draw(t, "decisions") {
			rec, who, ask := drawRecorded(t, was)
			// The same request at another time, which only matters for the remaining life of the SVID.
			for _, later := range []time.Duration{0, 1500 * time.Millisecond, time.Hour} {
				rec.Time = testscopes.Noon.Add(later)
				d, err := draft.Decide(who, ask, rec.Time)
				if err != nil {
					t.Fatal(err)
				}
				want[shiftOf(rec, d)]++
				r.Add(rec)
			}
		}
		if diff := cmp.Diff(want, r.Report(0).Counts); diff != "" {
			t.Fatalf("counts (-want +got):\n%s", diff)
		}
	})
}

func shiftOf(rec replay.Recorded, d scopes.Decision) replay.Shift {
	if rec.Outcome != d.Outcome {
		return map[string]replay.Shift{
			"deny allow": replay.NewlyAllowed, "deny pending": replay.NewlyAskable, "allow deny": replay.NewlyDenied,
			"pending deny": replay.NewlyDenied, "allow pending": replay.NewlyGated, "pending allow": replay.NewlyUngated,
		}[string(rec.Outcome)+" "+string(d.Outcome)]
	}
	switch {
	case d.Outcome == scopes.Deny || d.TTL == rec.Given:
		return replay.Unchanged
	case d.TTL > rec.Given:
		return replay.NowLonger
	default:
		return replay.NowShorter
	}
}

// The report does not depend on how the decisions are split over goroutines, or on their order.
func TestReplayMerges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, draft := testscopes.MustLoad(t, testscopes.DrawPolicies(t)), testscopes.MustLoad(t, testscopes.DrawPolicies(t))
		var records []replay.Recorded
		for range rapid.IntRange(1, 40).Draw(t, "decisions") {
			rec, _, _ := drawRecorded(t, was)
			records = append(records, rec)
		}
		one := replay.New(draft)
		for _, rec := range records {
			one.Add(rec)
		}
		workers := []*replay.Replayer{replay.New(draft), replay.New(draft), replay.New(draft)}
		var wg sync.WaitGroup
		for i, worker := range workers {
			wg.Go(func() {
				for j := len(records) - 1; j >= 0; j-- {
					if j%len(workers) == i {
						worker.Add(records[j])
					}
				}
			})
		}
		wg.Wait()
		for _, worker := range workers[1:] {
			workers[0].Merge(worker)
		}
		if diff := cmp.Diff(one.Report(5), workers[0].Report(5), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("report (-one +merged):\n%s", diff)
		}
	})
}

func TestReplayReport(t *testing.T) {
	r := replay.New(testscopes.Load(t, testscopes.Scopes, `@id("mail") permit (principal, action == Action::"mail.read", resource);`))
	for i := range 10 {
		rec := agentReads()
		rec.ID = fmt.Sprintf("%02d", 9-i)
		rec.SPIFFEID += fmt.Sprint(i % 2 * i) // all even ones are from one sandbox
		r.Add(rec)
	}
	got := r.Report(1)
	if got.Catalogue == "" || got.Decisions != 10 || got.Counts[replay.NewlyDenied] != 10 || got.Unlisted.Sandboxes != 5 || got.Unlisted.Scopes != 0 || got.AtLeast {
		t.Errorf("got %+v, want 10 newly denied, 5 of them not listed", got)
	}
	want := []replay.Group{{
		SPIFFEID: "spiffe://td.example/agents/a0", Scope: "git.issues.read", Changes: 5,
		Counts: map[replay.Shift]int64{replay.NewlyDenied: 5}, Samples: map[replay.Shift][]string{replay.NewlyDenied: {"01", "03", "05"}},
	}}
	if diff := cmp.Diff(want, got.Sandboxes); diff != "" {
		t.Errorf("sandboxes (-want +got):\n%s", diff)
	}
	clear(got.Scopes[0].Samples)
	if again := r.Report(1); len(again.Scopes[0].Samples) != 1 || again.Scopes[0].Changes != 10 {
		t.Errorf("got %+v, want the report to be a copy", again.Scopes)
	}
}

// With more sandboxes than are kept, the totals stay exact, the busiest stay listed, and the report counts the unlisted
// changes.
func TestReplayIsBounded(t *testing.T) {
	r := replay.New(testscopes.Load(t, testscopes.Scopes, `@id("mail") permit (principal, action == Action::"mail.read", resource);`))
	const many = 25_000
	busy := agentReads()
	for i := range many {
		rec := agentReads()
		rec.SPIFFEID += fmt.Sprint(i)
		r.Add(rec)
		if i%100 == 0 {
			r.Add(busy)
		}
	}
	got := r.Report(3)
	if got.Counts[replay.NewlyDenied] != many+many/100 || !got.AtLeast {
		t.Errorf("got %v, at least %v; want exact totals of more than is kept", got.Counts, got.AtLeast)
	}
	listed := int64(0)
	for _, group := range got.Sandboxes {
		listed += group.Changes
	}
	if got.Sandboxes[0].SPIFFEID != busy.SPIFFEID || got.Sandboxes[0].Changes != many/100 || listed+got.Unlisted.Sandboxes != got.Decisions {
		t.Errorf("got %+v and %d not listed, want the busy one first and nothing lost", got.Sandboxes, got.Unlisted.Sandboxes)
	}
}

// benchmarkCatalogue has 50 scopes and 200 policies; every tenth scope needs an approval.
func benchmarkCatalogue(b *testing.B) *scopes.Catalogue {
	b.Helper()
	var yaml, cedar strings.Builder
	yaml.WriteString("scopes:\n")
	for i := range 50 {
		authority := "read"
		if i%10 == 0 {
			authority = "write"
		}
		fmt.Fprintf(&yaml, `  - name: team%d.things%d.use
    title: Use things
    authority: %s
    params: {repo: {type: string, pattern: '[a-z0-9/-]+'}, n: {type: int, min: 0, max: 1000000}}
    resource: thing:%d/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://a.example}
`, i%5, i, authority, i)
	}
	cedar.WriteString("@id(\"writes\") forbid (principal, action in Action::\"authority:write\", resource) unless { context.approved };\n")
	for i := 1; i < 200; i++ {
		action := fmt.Sprintf(`action == Action::"team%d.things%d.use"`, i%50%5, i%50)
		if i%4 == 0 {
			action = fmt.Sprintf(`action in Action::"team%d.*"`, i%5)
		}
		fmt.Fprintf(&cedar, "@id(\"p%d\") permit (principal in Path::\"spiffe://td.example/team-%d\", %s, resource) when { context.params.repo like \"acme/*\" && context.params.n < %d };\n", i, i%20, action, i*5000)
	}
	return testscopes.Load(b, yaml.String(), cedar.String())
}

// BenchmarkReplay decides a million recorded requests per iteration, on two goroutines. In "all different" all requests
// differ, so none is answered from memory.
func BenchmarkReplay(b *testing.B) {
	const decisions, workers = 1_000_000, 2
	draft := benchmarkCatalogue(b)
	for name, kinds := range map[string]int{"all different": decisions, "ten thousand different": 10_000} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				replayers := make([]*replay.Replayer, workers)
				var wg sync.WaitGroup
				for w := range workers {
					replayers[w] = replay.New(draft)
					wg.Go(func() {
						for i := w; i < decisions; i += workers {
							replayers[w].Add(benchmarkDecision(i, i%kinds))
						}
					})
				}
				wg.Wait()
				replayers[0].Merge(replayers[1])
				if got := replayers[0].Report(10); got.Decisions != decisions || len(maps.Clone(got.Counts)) < 2 {
					b.Fatalf("got %v", got.Counts)
				}
			}
			b.ReportMetric(float64(decisions)*float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func benchmarkDecision(i, kind int) replay.Recorded {
	return replay.Recorded{
		ID: fmt.Sprintf("%012d", i), SPIFFEID: fmt.Sprintf("spiffe://td.example/team-%d/agent-%d", kind%20, kind%997),
		Scope: fmt.Sprintf("team%d.things%d.use", kind%50%5, kind%50), RequestContext: scopes.RequestContext{Task: fmt.Sprintf("task-%d", i)},
		Params: map[string]any{"repo": "acme/api", "n": json.Number(fmt.Sprint(kind))},
		Time:   testscopes.Noon.Add(time.Duration(i) * time.Millisecond), Outcome: scopes.Allow, Given: 5 * time.Minute,
	}
}

// A draft is evaluated with the groups at the time of the record only.
func TestReplayUsesTheRecordedGroups(t *testing.T) {
	draft := testscopes.Load(t, testscopes.Scopes, `@id("sre") permit (principal, action, resource) when { context has user && context.user.groups.contains("sre") };`)
	ann := func(groups ...string) *scopes.User {
		return &scopes.User{ID: "https://idp.example#ann", Groups: groups, Until: testscopes.Noon.Add(2*time.Minute + 999*time.Millisecond)}
	}
	r := replay.New(draft)
	for _, user := range []*scopes.User{nil, ann("sre"), ann(), ann("dev", "sre")} {
		rec := agentReads()
		rec.User, rec.Given = user, 2*time.Minute
		r.Add(rec)
		r.Add(rec)
	}
	want := map[replay.Shift]int64{replay.Unchanged: 4, replay.NewlyDenied: 4}
	if diff := cmp.Diff(want, r.Report(10).Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}
