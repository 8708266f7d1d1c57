package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
)

// MostCalls is how many uses of one credential can be reported.
const MostCalls = 1_000_000_000

// Use is what the holder of a credential says of it: nobody else saw it. Who lies here lies about themselves.
type Use struct {
	Issuance string
	Holder   Actor
	Time     time.Time // of the report
	Calls    int64     // 0 to MostCalls
	// LastUsed is zero when Calls is.
	LastUsed time.Time
}

// UsageQuery narrows what is counted. Since is inclusive, Until exclusive; zero fields do not narrow.
type UsageQuery struct {
	TrustDomain  string
	Since, Until time.Time
}

// ScopeUsage is what became of the requests for a scope.
type ScopeUsage struct {
	Scope string
	// Asked counts requests, Granted credentials, and Denied what policy, limits or people did not let pass.
	Asked, Granted, Denied int64
	// Reported is how many of the credentials their holders have said something of, and Used how many of those were used.
	Reported, Used, Calls int64
	LastUsed              time.Time // zero for never
}

// ReportUse records how often a credential was used, as its holder says, once: a repeat changes nothing. It returns what
// stands. ErrNotFound when it is not the holder's, was never issued, or has ended more than an hour ago.
func (b *Broker) ReportUse(ctx context.Context, who attest.Identity, use Use) (Use, error) {
	if b.cfg.Usage == nil {
		return Use{}, ErrNotFound
	}
	view, err := b.cfg.Ledger.Get(ctx, use.Issuance, Reach{Subject: who.ID().String()})
	if err != nil {
		return Use{}, err
	}
	use.Holder, use.Time = WorkloadActor(who), b.cfg.Now().UTC()
	use.LastUsed = lastUse(*view, use)
	return b.cfg.Usage.Report(ctx, use)
}

// lastUse is within the time that the credential had, whatever their clock says.
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

// Usage tells what became of what was asked for within reach, by scope. First comes what was used least of what holders have
// said something of; what nobody has said anything of is last.
func (b *Broker) Usage(ctx context.Context, q UsageQuery, reach Reach) ([]ScopeUsage, error) {
	if b.cfg.Usage == nil {
		return nil, nil
	}
	all, err := b.cfg.Usage.ScopeUsage(ctx, q, reach)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y ScopeUsage) int {
		return cmp.Or(cmp.Compare(x.share(), y.share()), cmp.Compare(y.Granted, x.Granted), cmp.Compare(x.Scope, y.Scope))
	})
	return all, nil
}

// share is how much of what holders have said something of was used, and 2 where they have not.
func (u ScopeUsage) share() float64 {
	if u.Reported == 0 {
		return 2
	}
	return float64(u.Used) / float64(u.Reported)
}
