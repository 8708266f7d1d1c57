package broker

import (
	"context"
	"time"
)

// Stats counts what there is. All methods are safe for concurrent use; errors are as for Ledger. They may read a standby,
// and so be some moments old: what has to end is for LiveCredentials to find.
type Stats interface {
	// LiveCounts counts what is alive within reach. ErrTooBroad when that takes longer than searches may.
	LiveCounts(ctx context.Context, reach Reach) (LiveCounts, error)
	// Rates counts what was recorded within reach, by time. It answers with what is known by then, soon: the rest is counted
	// meanwhile, for the next who ask.
	Rates(ctx context.Context, q RatesQuery, reach Reach) (Rates, error)
}

// LiveCounts is what is alive: credentials that are, or may be, in force, and whose time is not over.
type LiveCounts struct {
	Total Group
	// Most comes first. Of sandboxes, tasks and scopes there are the first MostGroups only.
	ByAuthority, ByKind, BySandbox, ByTask, ByScope []Group
}

// MostGroups is how many sandboxes, tasks or scopes [Stats] names.
const MostGroups = 20

// Group is how many credentials have something in common.
type Group struct {
	// Name is the authority, kind, SPIFFE ID, task or scope; empty for the total.
	Name string
	// SPIFFEID is whose a task is: two sandboxes may call theirs the same.
	SPIFFEID string
	Count    int64
	// Ends is when the last of them ends; zero when there is none.
	Ends time.Time
}

// LiveCounts counts what is alive within reach.
func (b *Broker) LiveCounts(ctx context.Context, reach Reach) (LiveCounts, error) {
	if b.cfg.Stats == nil {
		return LiveCounts{}, nil
	}
	return b.cfg.Stats.LiveCounts(ctx, reach)
}

// Holding returns up to limit of what is alive, matches and is within reach: what Revoke would end now, for who wants to see that
// first.
func (b *Broker) Holding(ctx context.Context, sel Selector, reach Reach, limit int) ([]LiveCredential, error) {
	return b.cfg.Live.Live(ctx, sel, reach, LivePage{Limit: limit})
}
