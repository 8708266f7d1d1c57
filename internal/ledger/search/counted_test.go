package search_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

var counted = flag.Int64("counted", 100_000, "issuances to count among, of which ten thousand are alive")

// longestLook bounds the median query, on a machine that does other things too.
const longestLook = 200 * time.Millisecond

// Queries for live credentials, recent records and the ledger's status are fast and delay no one, however much was recorded
// before.
func TestLiveQueriesAreFast(t *testing.T) {
	const pace = 360 * time.Millisecond // so that ten thousand credentials are live
	db := testkit.NewDB(t)
	quiet := func(string, ...any) {}
	if err := devstack.FillAt(t.Context(), pace, db.AdminURL, 0, *counted, quiet); err != nil {
		t.Fatal(err)
	}
	if err := devstack.FillEntries(t.Context(), db.AdminURL, 0, *counted, quiet); err != nil {
		t.Fatal(err)
	}
	l := db.Ledger(t)
	reach := broker.Reach{TrustDomains: []string{"acme.test", "other.test"}}
	path := broker.Reach{Within: []string{"spiffe://acme.test/team-7"}}
	hour := func() broker.RatesQuery {
		now := time.Now()
		return broker.RatesQuery{Since: now.Add(-time.Hour), Until: now, Step: time.Minute}
	}
	alive, began := liveCounts(t, l, reach).Total.Count, time.Now()
	if got := issued(rates(t, l, hour(), reach)); alive < 9000 || got < 9000 {
		t.Fatalf("got %d alive and %d issued in an hour: too few to tell", alive, got)
	}
	fmt.Printf("%d issuances, %d alive; an hour is counted after %s\n", *counted, alive, time.Since(began).Round(time.Millisecond))
	for _, look := range []struct {
		at string
		do func() error
	}{
		{"the live counts", func() error { _, err := l.LiveCounts(t.Context(), reach); return err }},
		{"the live counts of a path", func() error { _, err := l.LiveCounts(t.Context(), path); return err }},
		{"the rates of an hour", func() error { _, err := l.Rates(t.Context(), hour(), reach); return err }},
		{"the rates of a path", func() error { _, err := l.Rates(t.Context(), hour(), path); return err }},
		{"the status", func() error { _, err := l.Status(t.Context()); return err }},
	} {
		var took []time.Duration
		for range 21 {
			began := time.Now()
			if err := look.do(); err != nil {
				t.Errorf("%s: %v", look.at, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		fmt.Printf("%s takes %.1f ms, %.1f ms at most\n", look.at, float64(took[10].Microseconds())/1000, float64(took[20].Microseconds())/1000)
		if took[10] > longestLook {
			t.Errorf("%s takes %s, want %s at most", look.at, took[10], longestLook)
		}
	}
}
