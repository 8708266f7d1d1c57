package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
)

// Stats counts credentials and decisions. It may read a standby, so its results may be slightly old. To find what has to end, use
// LiveCredentials.
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
	// The largest groups come first. BySandbox, ByTask and ByScope hold at most MaxGroups.
	ByAuthority, ByKind, BySandbox, ByTask, ByScope []Group
}

// MaxGroups is the maximum number of sandboxes, tasks or scopes that [Stats] returns.
const MaxGroups = 20

// Group counts credentials that have something in common.
type Group struct {
	Name     string // the authority, kind, SPIFFE ID, task or scope; empty for the total
	SPIFFEID string // the sandbox that a task belongs to: two sandboxes may use the same task name
	Count    int64
	Ends     time.Time // when the last of them expires; zero if there is none
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

// LongestRates is the longest period that rates cover.
const LongestRates = 24 * time.Hour

// RatesQuery selects the period and the step of rates.
type RatesQuery struct {
	Since, Until time.Time     // at most LongestRates apart
	Step         time.Duration // a whole number of minutes
}

// Rates counts what was recorded, step by step.
type Rates struct {
	Step time.Duration
	// Steps are in order of time, without gaps. The last step is not over yet.
	Steps []Rate
	// From and Until delimit the period that is fully counted. Steps that begin before From are incomplete and may still grow.
	// Both are zero as long as nothing is counted.
	From, Until time.Time
}

// Rate counts what was recorded in one step.
type Rate struct {
	Start time.Time
	// Issued counts allowed requests, whatever became of them. Pending counts requests for approval. Ended counts credentials
	// that ended early: revoked, released or used.
	Issued, Denied, Pending, Ended int64
}

// Rates counts what was recorded within reach since a time. It covers at most LongestRates, in steps of whole minutes.
func (b *Broker) Rates(ctx context.Context, since time.Time, step time.Duration, reach Reach) (Rates, error) {
	q := RatesQuery{Since: since, Until: b.cfg.Now().UTC(), Step: max(step.Truncate(time.Minute), time.Minute)}
	if earliest := q.Until.Add(-LongestRates); q.Since.Before(earliest) {
		q.Since = earliest
	}
	return b.cfg.Stats.Rates(ctx, q, reach)
}

// Starts returns the start times of the steps, oldest first. The last step contains Until. The number of steps is the time from
// Since to Until divided by Step, rounded up.
func (q RatesQuery) Starts() []time.Time {
	var all []time.Time
	last := q.Until.Truncate(q.Step)
	for n := int64((q.Until.Sub(q.Since) + q.Step - 1) / q.Step); n > 0; n-- {
		all = append(all, last.Add(-time.Duration(n-1)*q.Step))
	}
	return all
}

// ZeroRates returns rates whose counts are all zero.
func (q RatesQuery) ZeroRates() Rates {
	r := Rates{Step: q.Step, From: q.Since, Until: q.Until}
	for _, start := range q.Starts() {
		r.Steps = append(r.Steps, Rate{Start: start})
	}
	return r
}

// Use is a holder's report on a credential. Nobody else can check it, but a false report concerns only the holder.
type Use struct {
	Issuance string
	Holder   Actor
	Time     time.Time // of the report
	Calls    int64     // 0 to 1,000,000,000
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
	// Reported counts credentials with a usage report. Used counts those that were used at least once. Calls is the total of
	// all reported uses.
	Reported, Used, Calls int64
	LastUsed              time.Time // zero if never used
}

// ReportUse records how often a credential was used, as its holder reports. Only the first report counts. ReportUse returns the
// recorded report. It returns ErrNotFound if the credential is not the caller's, was never issued, or ended more than an hour
// ago. Reports on one credential at the same time share one result: each would close a batch of the ledger, and all but one would
// change nothing.
func (b *Broker) ReportUse(ctx context.Context, who attest.Identity, use Use) (Use, error) {
	said, err, _ := b.useReports.Do(who.ID().String()+" "+use.Issuance, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout) // a caller that disconnects must not fail the others
		defer cancel()
		return b.reportUse(ctx, who, use)
	})
	return said.(Use), err //nolint:forcetypeassert // reportUse returns one
}

// reportTimeout bounds the recording of a report.
const reportTimeout = 10 * time.Second

func (b *Broker) reportUse(ctx context.Context, who attest.Identity, use Use) (Use, error) {
	view, err := b.cfg.Ledger.Get(ctx, use.Issuance, Reach{Subject: who.ID().String()})
	if err != nil {
		return Use{}, err
	}
	use.Holder, use.Time = WorkloadActor(who), b.cfg.Now().UTC()
	// The reported time lies within the lifetime of the credential, whatever the holder's clock says.
	latest := use.Time
	if view.Expires.Before(latest) {
		latest = view.Expires
	}
	if slices.Contains([]Status{StatusRevoked, StatusReleased, StatusUsed, StatusExpired}, view.Status) && view.StatusTime.Before(latest) {
		latest = view.StatusTime
	}
	if use.LastUsed.IsZero() || use.LastUsed.After(latest) {
		use.LastUsed = latest
	}
	if use.LastUsed.Before(view.Time) {
		use.LastUsed = view.Time
	}
	if use.Calls == 0 {
		use.LastUsed = time.Time{}
	}
	return b.cfg.Usage.Report(ctx, use)
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

// LedgerStatus is the state of the ledger's store, for display. No decision depends on it.
type LedgerStatus struct {
	RoundTrip time.Duration // of a ping; zero if not measured
	Version   string        // of the server
	Primary   bool          // the server accepts writes
	Entries   int64         // in the ledger
	Bytes     int64         // of all tables and indexes on disk
	Unrevoked int64         // credentials that should be dead but may not be
	Full      bool          // the server's disk is full, as far as this replica knows
	// Sweeper is the leadership for the sweep. Witnesses is the leadership for sending checkpoints to witnesses.
	Sweeper, Witnesses Leadership
	// Checkpoint is the latest one. It is zero if there is none.
	Checkpoint Checkpoint
	// Cosigned lists the latest checkpoint that each witness has cosigned, ordered by name. It leaves out witnesses that cosigned
	// none of the last thousand checkpoints.
	Cosigned []Cosigned
}

// Leadership is the state of a duty that one replica performs for all.
type Leadership struct {
	// Held means that some replica leads. Here means that it is this one.
	Held, Here bool
	// Term counts the elections. It is zero for a leadership without terms.
	Term int64
}

// Checkpoint is the size and the time of a signed checkpoint.
type Checkpoint struct {
	Size int64
	Time time.Time
}

// Cosigned is a checkpoint that a witness has cosigned. Its Time is when the ledger stored the cosignature.
type Cosigned struct {
	Witness string
	Checkpoint
}

// A credential counts as unrevoked if its revocation takes longer than UnrevokedAfter, or if the response to its mint has been
// missing for longer than UnknownAfter.
const (
	UnrevokedAfter = alarmAfter
	UnknownAfter   = abandoned + alarmAfter
)

// VaultStatus is the state of Vault and of the broker's login.
type VaultStatus struct {
	RoundTrip time.Duration // of the seal-status call
	Version   string
	Sealed    bool
	Login     time.Duration // how long the broker's token lives without renewal; zero means forever
	Worked    time.Time     // when Vault last did what the broker asked for
}

// SigningKey is one version of a signing key.
type SigningKey struct {
	Key
	Created time.Time
	// Steady is when the key may start to sign: by then every verifier has fetched it.
	Steady time.Time
	// Signs means that the key signs now. Published means that verifiers can fetch it.
	Signs, Published bool
}
