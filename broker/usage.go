package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
)

// MostCalls is the highest number of uses that can be reported for one credential.
const MostCalls = 1_000_000_000

// Use is a holder's report on a credential. Nobody else can check it, but a false report concerns only the holder.
type Use struct {
	Issuance string
	Holder   Actor
	Time     time.Time // of the report
	Calls    int64     // 0 to MostCalls
	// LastUsed is zero when Calls is.
	LastUsed time.Time
}

// UsageQuery selects what to count. Since is inclusive, Until exclusive. Zero fields do not narrow.
type UsageQuery struct {
	TrustDomain  string
	Since, Until time.Time
}

// ScopeUsage sums up the requests for a scope.
type ScopeUsage struct {
	Scope string
	// Asked counts requests, Granted counts issued credentials, and Denied counts what policy, limits or people denied.
	Asked, Granted, Denied int64
	// Reported counts the credentials with a report, Used those of them that were used, and Calls all their uses.
	Reported, Used, Calls int64
	LastUsed              time.Time // zero if never used
}

// ReportUse records how often a credential was used, as its holder reports. Only the first report counts. ReportUse returns the
// recorded report. It returns ErrNotFound if the credential is not the caller's, was never issued, or ended more than an hour
// ago.
func (b *Broker) ReportUse(ctx context.Context, who attest.Identity, use Use) (Use, error) {
	view, err := b.cfg.Ledger.Get(ctx, use.Issuance, Reach{Subject: who.ID().String()})
	if err != nil {
		return Use{}, err
	}
	use.Holder, use.Time = WorkloadActor(who), b.cfg.Now().UTC()
	use.LastUsed = lastUse(*view, use)
	return b.cfg.Usage.Report(ctx, use)
}

// lastUse limits the reported time to the lifetime of the credential, whatever the holder's clock says.
func lastUse(of View, use Use) time.Time {
	if use.Calls == 0 {
		return time.Time{}
	}
	latest := use.Time
	if of.Expires.Before(latest) {
		latest = of.Expires
	}
	if slices.Contains([]Status{StatusRevoked, StatusReleased, StatusUsed, StatusExpired}, of.Status) && of.StatusTime.Before(latest) {
		latest = of.StatusTime
	}
	last := use.LastUsed
	if last.IsZero() || last.After(latest) {
		last = latest
	}
	if last.Before(of.Time) {
		last = of.Time
	}
	return last
}

// Usage returns the outcomes of requests within reach, by scope. Scopes with the smallest share of used credentials come first.
// Scopes without reports come last.
func (b *Broker) Usage(ctx context.Context, q UsageQuery, reach Reach) ([]ScopeUsage, error) {
	all, err := b.cfg.Usage.ScopeUsage(ctx, q, reach)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y ScopeUsage) int {
		return cmp.Or(cmp.Compare(x.share(), y.share()), cmp.Compare(y.Granted, x.Granted), cmp.Compare(x.Scope, y.Scope))
	})
	return all, nil
}

// share returns the fraction of reported credentials that were used. It returns 2 if nothing was reported.
func (u ScopeUsage) share() float64 {
	if u.Reported == 0 {
		return 2
	}
	return float64(u.Used) / float64(u.Reported)
}
