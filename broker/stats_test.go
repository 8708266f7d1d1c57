package broker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// slowUsage takes a second to record a report, and counts the reports.
type slowUsage struct {
	broker.Usage
	reports map[string]int
	mu      sync.Mutex
}

func (u *slowUsage) Report(ctx context.Context, use broker.Use) (broker.Use, error) {
	u.mu.Lock()
	u.reports[use.Issuance]++
	u.mu.Unlock()
	time.Sleep(time.Second)
	return use, ctx.Err()
}

// ownedLedger has every record.
type ownedLedger struct{ broker.Ledger }

func (ownedLedger) Get(_ context.Context, id string, _ broker.Reach) (*broker.View, error) {
	return &broker.View{ID: id, Status: broker.StatusIssued, Expires: time.Now().Add(time.Hour)}, nil
}

// Reports on one credential at the same time are recorded once, also if the first caller disconnects. Reports on other credentials do
// not wait for them.
func TestReportsAtOnceAreRecordedOnce(t *testing.T) {
	f := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		usage := &slowUsage{reports: map[string]int{}}
		f.cfg.Usage, f.cfg.Ledger = usage, ownedLedger{}
		f.useTokens(t, noTokens{})
		first, disconnect := context.WithCancel(t.Context())
		disconnect()
		began := time.Now()
		var all sync.WaitGroup
		report := func(ctx context.Context, id string) {
			all.Go(func() {
				said, err := f.ReportUse(ctx, f.who, broker.Use{Issuance: id, Calls: 7})
				if err != nil || said.Calls != 7 {
					t.Errorf("got %+v, %v", said, err)
				}
			})
		}
		report(first, "a")
		synctest.Wait()
		for range 100 {
			report(t.Context(), "a")
		}
		report(t.Context(), "b")
		all.Wait()
		if usage.reports["a"] != 1 || usage.reports["b"] != 1 {
			t.Errorf("got %v, want one report each", usage.reports)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
	})
}
