package search_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/search"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// rates calls Rates until everything is counted.
func rates(t *testing.T, l *ledger.Ledger, q broker.RatesQuery, reach broker.Reach) broker.Rates {
	t.Helper()
	var got broker.Rates
	until(t, fmt.Sprintf("rates since %s for %+v", q.Since, reach), func() bool {
		var err error
		if got, err = l.Rates(t.Context(), q, reach); errors.Is(err, broker.ErrTooBroad) {
			return false // something delayed it
		} else if err != nil {
			t.Fatal(err)
		}
		return !got.From.IsZero() && !got.Until.Before(q.Until) && !got.From.After(got.Steps[0].Start)
	})
	return got
}

// happened is what an entry counts as, with its sandbox and time.
type happened struct {
	id string
	at time.Time
	as broker.Rate
}

// expected returns the steps that Rates should return, counted one by one.
func expected(q broker.RatesQuery, reach broker.Reach, all []happened) []broker.Rate {
	var want []broker.Rate
	for _, start := range q.Starts() {
		r := broker.Rate{Start: start}
		for _, h := range all {
			if inside(reach, h.id) && !h.at.Before(start) && h.at.Before(start.Add(q.Step)) {
				r.Issued, r.Denied = r.Issued+h.as.Issued, r.Denied+h.as.Denied
				r.Pending, r.Ended = r.Pending+h.as.Pending, r.Ended+h.as.Ended
			}
		}
		want = append(want, r)
	}
	return want
}

// scatter appends something of a random sandbox at about that time. A later entry may be up to a minute earlier.
func scatter(t *testing.T, l *ledger.Ledger, random *rand.Rand, about time.Time) []happened {
	t.Helper()
	id := places[random.IntN(len(places))] + "/s"
	at := about.Add(-time.Duration(random.Int64N(int64(30 * time.Second))))
	then := func(rec *broker.Record) {
		rec.Subject.ID, rec.Time, rec.Request.Task = spiffeid.RequireFromString(id), at, fmt.Sprint("task-", random.Int())
	}
	switch random.IntN(5) {
	case 0:
		begin(t, l, denied(then))
		return []happened{{id, at, broker.Rate{Denied: 1}}}
	case 1:
		begin(t, l, dynamic("database", then))
		return []happened{{id, at, broker.Rate{Issued: 1}}}
	case 2:
		rec := bring(t, l, "jwt", nil, then)
		out := to(rec, broker.StatusRevoked)
		out.Time = at.Add(time.Duration(random.Int64N(int64(30 * time.Second))))
		settle(t, l, out)
		return []happened{{id, at, broker.Rate{Issued: 1}}, {id, out.Time, broker.Rate{Ended: 1}}}
	case 3:
		rec := bring(t, l, "one-shot", []broker.Status{broker.StatusUsed}, then)
		return []happened{{id, at, broker.Rate{Issued: 1}}, {id, to(rec, broker.StatusUsed).Time, broker.Rate{Ended: 1}}}
	}
	rec := bring(t, l, "database", []broker.Status{broker.StatusIssued, broker.StatusRevoking, broker.StatusReleased}, then)
	return []happened{{id, at, broker.Rate{Issued: 1}}, {id, to(rec, broker.StatusReleased).Time, broker.Rate{Ended: 1}}}
}

// However far a tally has counted, each entry counts once, for every caller that reaches it and at its own time.
func TestRatesCountEachEntryOnce(t *testing.T) {
	start := moment()
	search.TallyInChunks(t, 7, 40)
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	now := start.Add(time.Minute)
	random := rand.New(rand.NewPCG(7, 7))
	reaches := []broker.Reach{
		{All: true},
		{TrustDomains: []string{"acme.test"}},
		{Within: []string{"spiffe://acme.test/a", "spiffe://other.test"}},
		{Subject: "spiffe://acme.test/a/b/s"},
		{TrustDomains: []string{"nowhere.test"}},
	}
	queries := []broker.RatesQuery{
		{Since: now.Add(-time.Hour), Until: now, Step: time.Minute},
		{Since: now.Add(-4 * time.Hour), Until: now, Step: 30 * time.Minute},
		{Since: now.Add(-10 * time.Minute), Until: now, Step: 2 * time.Minute},
	}
	var all []happened
	begin(t, l, pending(as(moment(), "spiffe://acme.test/a/b/s", "git.read", "t", -200)))
	all = append(all, happened{"spiffe://acme.test/a/b/s", start.Add(-200 * time.Minute), broker.Rate{Pending: 1}})
	// Each call asks for a moment later than all calls before. So what was known at an earlier call is not enough for a
	// later one.
	var passed time.Duration
	later := func(q broker.RatesQuery) broker.RatesQuery {
		passed += time.Millisecond
		q.Since, q.Until = q.Since.Add(passed), q.Until.Add(passed)
		return q
	}
	about := start.Add(-3 * time.Hour)
	for round := range 12 {
		for range random.IntN(40) { // sometimes more than a tally catches up on
			about = about.Add(time.Duration(random.Int64N(int64(40 * time.Second))))
			all = append(all, scatter(t, l, random, about)...)
		}
		for i, reach := range reaches {
			if i > 0 && random.IntN(3) == 0 && round < 11 {
				continue // so it is behind the next time
			}
			q := later(queries[random.IntN(len(queries))])
			if diff := cmp.Diff(expected(q, reach, all), rates(t, l, q, reach).Steps); diff != "" {
				t.Fatalf("round %d, %+v since %s (-want +got):\n%s", round, reach, q.Since, diff)
			}
		}
	}
	for _, reach := range slices.Concat(reaches, []broker.Reach{{}}) {
		for _, q := range queries {
			q = later(q)
			if diff := cmp.Diff(expected(q, reach, all), rates(t, l, q, reach).Steps); diff != "" {
				t.Errorf("%+v since %s (-want +got):\n%s", reach, q.Since, diff)
			}
		}
	}
}

func issued(in broker.Rates) (sum int64) {
	for _, s := range in.Steps {
		sum += s.Issued
	}
	return sum
}

// Rates says what is not counted yet, and does not wait for it.
func TestRatesWaitForNobody(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	begin(t, l, allowed(nil), denied(nil))
	now := start.Add(time.Minute)
	q := broker.RatesQuery{Since: now.Add(-time.Hour), Until: now, Step: time.Minute}
	owner := testkit.Connect(t, db.AdminURL)
	exec(t, owner, `BEGIN; LOCK TABLE issuances`)
	got, err := l.Rates(t.Context(), q, everything)
	if err != nil || len(got.Steps) != 60 || got.From.Before(got.Until) || issued(got) != 0 {
		t.Errorf("while nothing can be counted: got %d steps from %s until %s, %v", len(got.Steps), got.From, got.Until, err)
	}
	exec(t, owner, `ROLLBACK`)
	if got := rates(t, l, q, everything); issued(got) != 1 {
		t.Errorf("got %+v, want what was recorded", got)
	}
	q.Until = q.Until.Add(time.Minute)
	exec(t, owner, `BEGIN; LOCK TABLE ledger_head`)
	got, err = l.Rates(t.Context(), q, everything)
	if err != nil || got.Until.Equal(q.Until) || got.Until.IsZero() || got.From.After(got.Steps[0].Start) || issued(got) != 1 {
		t.Errorf("while the head cannot be read: got %+v, %v", got, err)
	}
	exec(t, owner, `ROLLBACK`)
	_ = rates(t, l, q, everything)
}

// If there are more reaches than are kept, each still gets its own counts.
func TestRatesOfManyReaches(t *testing.T) {
	t.Parallel()
	start := moment()
	l := testkit.NewDB(t).Ledger(t)
	begin(t, l, allowed(nil))
	now := start.Add(time.Minute)
	q := broker.RatesQuery{Since: now.Add(-5 * time.Minute), Until: now, Step: time.Minute}
	for i := range 150 {
		reach := broker.Reach{Within: []string{fmt.Sprintf("%s/%d", sandbox, i)}}
		var want int64
		if i%10 == 0 {
			reach, want = broker.Reach{Within: []string{sandbox, fmt.Sprintf("spiffe://acme.test/%d", i)}}, 1
		}
		if got := issued(rates(t, l, q, reach)); got != want {
			t.Errorf("%+v: got %d, want %d", reach, got, want)
		}
	}
	if n := l.Tallies(); n > 64 {
		t.Errorf("got %d tallies, want 64 at most", n)
	}
}
