package search_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

func liveCounts(t *testing.T, l *ledger.Ledger, reach broker.Reach) broker.LiveCounts {
	t.Helper()
	c, err := l.LiveCounts(t.Context(), reach)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each live credential counts once in each group, with the latest end, and nothing else counts.
func TestLiveCounts(t *testing.T) {
	t.Parallel()
	start := moment()
	l := testkit.NewDB(t).Ledger(t)
	const other = "spiffe://other.test/agents/a"
	soon, late := start.Add(15*time.Minute).Truncate(time.Second), start.Add(3*time.Hour).Truncate(time.Second)
	until := func(end time.Time, change func(*broker.Record)) func(*broker.Record) {
		return func(rec *broker.Record) {
			if change != nil {
				change(rec)
			}
			rec.Expires = end
		}
	}
	pays := func(rec *broker.Record) {
		rec.Request.Scope, rec.Request.Task = "pay", "t2"
		rec.Decision.Scope = &scopes.Scope{Name: "pay", Authority: scopes.Payment}
	}
	const issued, revoking = broker.StatusIssued, broker.StatusRevoking
	bring(t, l, "jwt", nil, until(soon, nil))
	bring(t, l, "jwt", nil, until(late, nil))
	bring(t, l, "jwt", nil, until(soon, pays))
	bring(t, l, "jwt", nil, until(soon, as(moment(), other, "git.read", "task-1", 0)))
	bring(t, l, "database", nil, until(soon, nil))
	bring(t, l, "database", []broker.Status{issued}, until(soon, nil))
	bring(t, l, "database", []broker.Status{broker.StatusUnknown}, until(soon, nil))
	bring(t, l, "database", []broker.Status{issued, revoking}, until(soon, nil))
	// These are over.
	bring(t, l, "jwt", nil, lapse)
	bring(t, l, "jwt", nil, func(rec *broker.Record) { // usually within this hour
		rec.Time, rec.Expires = start.Add(-time.Minute), start.Truncate(time.Second)
	})
	bring(t, l, "jwt", []broker.Status{broker.StatusRevoked}, until(late, nil))
	bring(t, l, "one-shot", []broker.Status{broker.StatusUsed}, until(late, nil))
	bring(t, l, "database", []broker.Status{issued}, lapse)
	bring(t, l, "database", []broker.Status{broker.StatusUnknown}, lapse)
	bring(t, l, "database", []broker.Status{broker.StatusFailed}, nil)
	begin(t, l, denied(nil), pending(nil))

	group := func(name string, count int64, ends time.Time) broker.Group {
		return broker.Group{Name: name, Count: count, Ends: ends}
	}
	task := func(name, whose string, count int64, ends time.Time) broker.Group {
		return broker.Group{Name: name, SPIFFEID: whose, Count: count, Ends: ends}
	}
	want := broker.LiveCounts{
		Total:       group("", 8, late),
		ByAuthority: []broker.Group{group("read", 7, late), group("payment", 1, soon)},
		ByKind:      []broker.Group{group("database", 4, soon), group("jwt", 4, late)},
		BySandbox:   []broker.Group{group(sandbox, 7, late), group(other, 1, soon)},
		ByTask:      []broker.Group{task("task-1", sandbox, 6, late), task("t2", sandbox, 1, soon), task("task-1", other, 1, soon)},
		ByScope:     []broker.Group{group("git.read", 7, late), group("pay", 1, soon)},
	}
	if diff := cmp.Diff(want, liveCounts(t, l, everything)); diff != "" {
		t.Errorf("everything (-want +got):\n%s", diff)
	}
	one := []broker.Group{group("git.read", 1, soon)}
	if got := liveCounts(t, l, broker.Reach{TrustDomains: []string{"other.test"}}); got.Total.Count != 1 || !slices.Equal(got.ByScope, one) {
		t.Errorf("another trust domain: got %+v", got)
	}
	if diff := cmp.Diff(broker.LiveCounts{}, liveCounts(t, l, broker.Reach{})); diff != "" {
		t.Errorf("no reach (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(broker.LiveCounts{}, liveCounts(t, l, broker.Reach{Within: []string{sandbox + "b"}})); diff != "" {
		t.Errorf("a reach with nothing in it (-want +got):\n%s", diff)
	}
}

// LiveCounts names the largest groups and counts all credentials.
func TestLiveCountsNameTheLargestGroups(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	if err := devstack.FillAt(t.Context(), time.Second, db.AdminURL, 0, 20000, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	got := liveCounts(t, db.Ledger(t), broker.Reach{TrustDomains: []string{"acme.test"}})
	if got.Total.Count < 1000 {
		t.Fatalf("got %d alive: too few to tell", got.Total.Count)
	}
	for name, list := range map[string][]broker.Group{"sandbox": got.BySandbox, "task": got.ByTask, "scope": got.ByScope} {
		if len(list) != broker.MaxGroups {
			t.Errorf("by %s: got %d, want %d", name, len(list), broker.MaxGroups)
		}
		if !slices.IsSortedFunc(list, func(x, y broker.Group) int { return int(y.Count - x.Count) }) {
			t.Errorf("by %s: got %+v, want the largest first", name, list)
		}
		for _, g := range list {
			whose := g.SPIFFEID
			if name == "sandbox" {
				whose = g.Name
			}
			if name != "scope" && !strings.HasPrefix(whose, "spiffe://acme.test/") {
				t.Errorf("by %s: got %+v of another trust domain", name, g)
			}
		}
	}
	for name, list := range map[string][]broker.Group{"authority": got.ByAuthority, "kind": got.ByKind} {
		var sum int64
		for _, g := range list {
			sum += g.Count
		}
		if sum != got.Total.Count {
			t.Errorf("by %s: got %s, want all %d", name, fmt.Sprint(list), got.Total.Count)
		}
	}
}
