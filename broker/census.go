package broker

import (
	"context"
	"time"
)

// Survey counts what there is. All methods are safe for concurrent use; errors are as for Ledger. They may read a standby,
// and so be some moments old: what has to end is for Estate to find.
type Survey interface {
	// Census counts what is alive within reach. ErrTooBroad when that takes longer than searches may.
	Census(ctx context.Context, reach Reach) (Census, error)
	// Rates counts what was recorded within reach, by time. It answers with what is known by then, soon: the rest is counted
	// meanwhile, for the next who ask.
	Rates(ctx context.Context, q RatesQuery, reach Reach) (Rates, error)
}

// Census is what is alive: credentials that are, or may be, in force, and whose time is not over.
type Census struct {
	Total Group
	// Most comes first. Of sandboxes, tasks and scopes there are the first MostGroups only.
	ByAuthority, ByKind, BySandbox, ByTask, ByScope []Group
}

// MostGroups is how many sandboxes, tasks or scopes a census names.
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

// Census counts what is alive within reach.
func (b *Broker) Census(ctx context.Context, reach Reach) (Census, error) {
	if b.cfg.Survey == nil {
		return Census{}, nil
	}
	return b.cfg.Survey.Census(ctx, reach)
}

// Holding returns up to limit of what is alive, matches and is within reach: what Revoke would end now, for who wants to see that
// first.
func (b *Broker) Holding(ctx context.Context, sel Selector, reach Reach, limit int) ([]Held, error) {
	return b.cfg.Estate.Live(ctx, sel, reach, LivePage{Limit: limit})
}
