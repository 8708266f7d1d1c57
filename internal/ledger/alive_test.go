package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
)

// atATime limits how many credentials live at once. A rate limit uses the same key, to show that this does not matter.
func atATime(per string, most int) broker.Limit {
	return broker.Limit{Limit: scopes.Limit{Per: per, Live: most}, Key: "shared"}
}

// T9: replicas count live credentials together.
func TestLiveLimitHoldsAcrossReplicas(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	rule := limitedBy(atATime(scopes.PerSandbox, 7))
	var accepted, refused atomic.Int64
	var wg sync.WaitGroup
	for n := range 100 {
		wg.Go(func() {
			rec := allowed(rule)
			if n%4 < 2 {
				rec = dynamic("database", rule)
			}
			var limited *broker.Limited
			_, err := replicas[n%2].Begin(t.Context(), rec)
			switch {
			case err == nil:
				accepted.Add(1)
			case errors.As(err, &limited) && limited.Limit.Live == 7 &&
				(time.Until(rec.Expires)-limited.RetryAfter).Abs() < time.Minute:
				refused.Add(1)
			default:
				t.Errorf("Begin: %v", err)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 7 || refused.Load() != 93 {
		t.Errorf("got %d accepted and %d refused, want 7 and 93", accepted.Load(), refused.Load())
	}
	db.Check(t)
}

func TestLiveCredentialsCountAgainstTheLimit(t *testing.T) {
	t.Parallel()
	here, sub := as(moment(), sandbox, "git.read", "t1", 0), as(moment(), sandbox+"/x", "git.read", "t1", 0)
	for _, tc := range []struct {
		name   string
		kind   string
		change func(*broker.Record)
		way    []broker.Status
		counts string // what the limit is per
	}{
		{"a JWT", "jwt", here, nil, "sandbox task trust_domain"},
		{"an intent", "database", here, nil, "sandbox task trust_domain"},
		{"a login", "database", here, []broker.Status{broker.StatusIssued}, "sandbox task trust_domain"},
		{"a lost mint", "database", here, []broker.Status{broker.StatusUnknown}, "sandbox task trust_domain"},
		{"one being revoked", "database", here, []broker.Status{broker.StatusRevoking}, "sandbox task trust_domain"},
		{"a failure", "database", here, []broker.Status{broker.StatusFailed}, ""},
		{"a revoked JWT", "jwt", here, []broker.Status{broker.StatusRevoked}, ""},
		{"a lapsed JWT", "jwt", func(rec *broker.Record) { here(rec); lapse(rec) }, nil, ""},
		{"another task's", "jwt", as(moment(), sandbox, "git.read", "t2", 0), nil, "sandbox trust_domain"},
		{"another sandbox's", "jwt", sub, nil, "trust_domain"},
		{"another scope's", "jwt", as(moment(), sandbox, "git.write", "t1", 0), nil, ""},
		{"another trust domain's", "jwt", as(moment(), "spiffe://other.test/agents/a", "git.read", "t1", 0), nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := testkit.NewDB(t)
			l := db.Ledger(t)
			bring(t, l, tc.kind, tc.way, tc.change)
			for _, per := range []string{scopes.PerSandbox, scopes.PerTask, scopes.PerTrustDomain} {
				rec := pending(func(rec *broker.Record) { here(rec); limitedBy(atATime(per, 1))(rec) })
				ok, _ := passes(t, l, rec)
				if want := !slices.Contains(strings.Fields(tc.counts), per); ok != want {
					t.Errorf("per %s: got it through: %t, want %t", per, ok, want)
				}
			}
			db.Check(t)
		})
	}
}

// Both kinds of limits hold at once. A request that one refuses does not count against the other.
func TestLiveAndRateLimitsApplyTogether(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	alive, rate := atATime(scopes.PerTask, 1), limit("shared", 2, time.Hour)
	var recs []broker.Record
	for range 5 {
		recs = append(recs, allowed(limitedBy(rate, alive)))
	}
	passed := 0
	for i, err := range batch(t, db, l, recs) {
		var limited *broker.Limited
		switch {
		case err == nil:
			passed++
			settle(t, l, to(recs[i], broker.StatusReleased))
		case !errors.As(err, &limited) || limited.Limit != alive.Limit:
			t.Errorf("got %v, want the limit of those alive", err)
		}
	}
	if passed != 1 {
		t.Errorf("got %d of one commit, want 1", passed)
	}
	rec := allowed(limitedBy(rate, alive))
	begin(t, l, rec)
	settle(t, l, to(rec, broker.StatusRevoked))
	if ok, limited := passes(t, l, allowed(limitedBy(rate, alive))); ok || limited.Limit != rate.Limit {
		t.Errorf("got %t, %+v, want the rate", ok, limited)
	}
	db.Check(t)
}

// The wait lasts until the earliest credential ends, and at least a second.
func TestLiveLimitWaitsForTheEarliestExpiry(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	rule := limitedBy(atATime(scopes.PerSandbox, 2))
	ending := func(in time.Duration) func(*broker.Record) {
		return func(rec *broker.Record) { rec.Expires = time.Now().Add(in); rule(rec) }
	}
	begin(t, l, allowed(ending(time.Hour)), allowed(ending(2*time.Minute)))
	if ok, limited := passes(t, l, allowed(rule)); ok || limited.RetryAfter > 2*time.Minute || limited.RetryAfter < time.Minute {
		t.Errorf("got %t, %+v, want about 2 min", ok, limited)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
	begin(t, l, allowed(limitedBy(limit("old", 1, time.Minute))))
	exec(t, owner, `INSERT INTO rate_limits SELECT 'k' || n, now() FROM generate_series(1, 2500) AS n`)
	later(t, owner, 2*time.Hour)
	begin(t, l, allowed(limitedBy(limit("new", 1, time.Minute))), allowed(limitedBy(limit("recent", 1, time.Minute))))
	exec(t, owner, `UPDATE rate_limits SET tat = tat - interval '50 minutes' WHERE key = 'recent'`)
	if err := l.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := owner.QueryRow(t.Context(), `SELECT string_agg(key, ' ' ORDER BY key) FROM rate_limits`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != "new recent" {
		t.Errorf("got %q left, want what still counts or did of late", left)
	}
	begin(t, l, allowed(limitedBy(limit("old", 1, time.Minute))))
}

// A record that ended by its time alone is read as expired, and listed as expired.
func TestExpiredIsDerived(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	recs := map[string]broker.Record{}
	for name, status := range map[string]struct {
		kind string
		way  []broker.Status
	}{
		"jwt": {"jwt", nil}, "ssh": {"ssh", []broker.Status{broker.StatusIssued}}, "kv": {"kv", []broker.Status{broker.StatusIssued}},
		"login": {"database", []broker.Status{broker.StatusIssued}}, "revoked": {"jwt", []broker.Status{broker.StatusRevoked}},
		"intent": {"database", nil}, "expired login": {"database", []broker.Status{broker.StatusIssued, broker.StatusExpired}},
	} {
		recs[name] = bring(t, l, status.kind, status.way, nil)
		recs["late "+name] = bring(t, l, status.kind, status.way, lapse)
	}
	recs["pending"], recs["late pending"], recs["denied"] = pending(nil), pending(lapse), denied(nil)
	begin(t, l, recs["pending"], recs["late pending"], recs["denied"])
	want := map[string]broker.Status{
		"jwt": broker.StatusIssued, "late jwt": broker.StatusExpired, "ssh": broker.StatusIssued, "late ssh": broker.StatusExpired,
		"kv": broker.StatusIssued, "late kv": broker.StatusExpired, "login": broker.StatusIssued, "late login": broker.StatusIssued,
		"revoked": broker.StatusRevoked, "late revoked": broker.StatusRevoked, "intent": broker.StatusIntent,
		"late intent": broker.StatusIntent, "expired login": broker.StatusExpired, "late expired login": broker.StatusExpired,
		"pending": broker.StatusPending, "late pending": broker.StatusExpired, "denied": broker.StatusDenied,
	}
	listed := map[string]broker.Status{}
	for _, status := range statuses {
		page, err := l.List(t.Context(), broker.Query{Status: status, Limit: 100}, everything)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Records {
			if v.Status != status || listed[v.ID] != "" {
				t.Errorf("listed as %s: got %s, and before %q", status, v.Status, listed[v.ID])
			}
			listed[v.ID] = status
		}
	}
	for name, rec := range recs {
		view := get(t, l, rec.ID)
		if view.Status != want[name] || listed[rec.ID] != want[name] {
			t.Errorf("%s: got %s, and listed as %s, want %s", name, view.Status, listed[rec.ID], want[name])
		}
		if derived := name == "late jwt" || name == "late pending"; derived && !view.StatusTime.Equal(rec.Expires) {
			t.Errorf("%s: got the status since %s, want %s", name, view.StatusTime, rec.Expires)
		}
	}
	db.Check(t)
}
