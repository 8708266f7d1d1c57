package search_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/search"
	"github.com/brevet-dev/brevet/internal/testkit"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Requests, grants and uses are counted by scope, within reach and between two times, wherever they lie.
func TestUsageByScope(t *testing.T) {
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	search.CountInChunksOf(t, 3)
	of := func(scope string) func(*broker.Record) { return func(rec *broker.Record) { rec.Request.Scope = scope } }
	elsewhere := allowed(func(rec *broker.Record) { rec.Subject.ID = spiffeid.RequireFromString("spiffe://other.test/agents/a") })
	unknown := denied(func(rec *broker.Record) { rec.Request.Scope, rec.Decision.Scope = "made.up", nil })
	early := allowed(ago(time.Hour, 30*time.Minute))
	twice, never, unsaid := allowed(nil), allowed(nil), allowed(nil)
	failed, asked := allowed(of("git.write")), pending(of("git.write"))
	begin(t, l, early, twice, never, unsaid, denied(nil), unknown, elsewhere, failed, asked, denied(of("git.write")))
	settle(t, l, to(failed, broker.StatusFailed))
	for _, use := range []broker.Use{used(early, 5), used(twice, 2), used(never, 0), used(elsewhere, 9)} {
		if _, err := l.Report(t.Context(), use); err != nil {
			t.Fatal(err)
		}
	}
	acme := broker.Reach{TrustDomains: []string{"acme.test"}}
	read := broker.ScopeUsage{Scope: "git.read", Asked: 4, Granted: 3, Denied: 1, Reported: 2, Used: 1, Calls: 2, LastUsed: used(twice, 2).LastUsed.Truncate(time.Microsecond)}
	write := broker.ScopeUsage{Scope: "git.write", Asked: 3, Denied: 1}
	all := read
	all.Asked, all.Granted, all.Reported, all.Used, all.Calls = 6, 5, 4, 3, 16
	foreign := broker.ScopeUsage{Scope: "git.read", Asked: 1, Granted: 1, Reported: 1, Used: 1, Calls: 9, LastUsed: read.LastUsed}
	for name, tc := range map[string]struct {
		q     broker.UsageQuery
		reach broker.Reach
		want  []broker.ScopeUsage
	}{
		"of late":       {broker.UsageQuery{Since: start.Add(-time.Minute)}, acme, []broker.ScopeUsage{read, write}},
		"everywhere":    {broker.UsageQuery{}, everything, []broker.ScopeUsage{all, write}},
		"one domain":    {broker.UsageQuery{TrustDomain: "other.test"}, everything, []broker.ScopeUsage{foreign}},
		"out of reach":  {broker.UsageQuery{TrustDomain: "other.test"}, acme, nil},
		"a path":        {broker.UsageQuery{}, broker.Reach{Within: []string{"spiffe://other.test/agents"}}, []broker.ScopeUsage{foreign}},
		"nobody's path": {broker.UsageQuery{}, broker.Reach{Within: []string{"spiffe://other.test/agent"}}, nil},
		"long ago":      {broker.UsageQuery{Until: start.Add(-24 * time.Hour)}, everything, nil},
		"nothing":       {broker.UsageQuery{}, broker.Reach{}, nil},
	} {
		got, err := l.ScopeUsage(t.Context(), tc.q, tc.reach)
		slices.SortFunc(got, func(x, y broker.ScopeUsage) int { return cmp.Compare(x.Scope, y.Scope) })
		if diff := gocmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	var calls int64
	err := testkit.Connect(t, db.AuditorURL).QueryRow(t.Context(), `
		SELECT sum(reported_calls) FROM audit_usage
		WHERE scope = 'git.read' AND (asked, granted, denied, reported, reported_used) IN ((5, 4, 1, 3, 2), (4, 3, 1, 2, 1), (1, 1, 0, 1, 1))`).Scan(&calls)
	if err != nil || calls != 16 {
		t.Errorf("the view has %d calls, %v, want 16", calls, err)
	}
	db.Check(t)
}
