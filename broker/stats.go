package broker

import (
	"context"
	"time"
)

// Stats counts credentials and decisions. All methods are safe for concurrent use. Errors are as for Ledger. Stats may read a
// standby, so its results may be slightly old. To find what has to end, use LiveCredentials.
type Stats interface {
	// LiveCounts counts the live credentials within reach. It returns ErrTooBroad if that takes longer than a search may.
	LiveCounts(ctx context.Context, reach Reach) (LiveCounts, error)
	// Rates counts what was recorded within reach, by time. It returns soon, with what is counted by then. The rest is counted in
	// the background for later calls.
	Rates(ctx context.Context, q RatesQuery, reach Reach) (Rates, error)
}

// LiveCounts counts live credentials: those that are, or may be, in force and have not expired.
type LiveCounts struct {
	Total Group
	// The largest groups come first. BySandbox, ByTask and ByScope hold at most MostGroups.
	ByAuthority, ByKind, BySandbox, ByTask, ByScope []Group
}

// MostGroups is the maximum number of sandboxes, tasks or scopes that [Stats] returns.
const MostGroups = 20

// Group counts credentials that have something in common.
type Group struct {
	// Name is the authority, kind, SPIFFE ID, task or scope; empty for the total.
	Name string
	// SPIFFEID is the sandbox that a task belongs to: two sandboxes may use the same task name.
	SPIFFEID string
	Count    int64
	// Ends is when the last of them expires. It is zero if there is none.
	Ends time.Time
}

// LiveCounts counts the live credentials within reach.
func (b *Broker) LiveCounts(ctx context.Context, reach Reach) (LiveCounts, error) {
	return b.cfg.Stats.LiveCounts(ctx, reach)
}

// Holding returns up to limit matching live credentials within reach: those that Revoke would end now. Callers use it to preview
// a revocation.
func (b *Broker) Holding(ctx context.Context, sel Selector, reach Reach, limit int) ([]LiveCredential, error) {
	return b.cfg.Live.Live(ctx, sel, reach, LivePage{Limit: limit})
}
