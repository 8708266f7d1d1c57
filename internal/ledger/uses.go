package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

const kindReported = "issuance.reported"

// usageChunk is how many entry indexes one statement counts. That takes some tenths of a second, which is less than a search
// may take. So searches find a connection between two statements.
var usageChunk int64 = 1 << 16

// usageWithin bounds all statements of one count together.
const usageWithin = 20 * time.Second

// useBody is the body of the entries that report how often a credential was used.
type useBody struct {
	Version    int         `json:"version"`
	Kind       string      `json:"kind"`
	ID         string      `json:"id"`
	Time       time.Time   `json:"time"`
	Actor      subjectBody `json:"actor"`
	Calls      int64       `json:"calls"`
	LastUsedAt time.Time   `json:"last_used_at,omitzero"`
}

// Report implements [broker.Usage]. It reads before it appends, so a report that is repeated or made up costs no commit.
func (l *Ledger) Report(ctx context.Context, use broker.Use) (broker.Use, error) {
	use.Time, use.LastUsed = record.Stored(use.Time), record.Stored(use.LastUsed)
	e, err := useEntry(use)
	if err != nil {
		return broker.Use{}, err
	}
	for range 2 {
		said, found, err := l.reported(ctx, use)
		if err != nil || found {
			return said, err
		}
		if _, err = l.append(ctx, e); !errors.Is(err, broker.ErrOvertaken) {
			return use, err
		}
	}
	return broker.Use{}, broker.ErrNotFound // the issuance is being pruned
}

func useEntry(use broker.Use) (entry, error) {
	e, err := newEntry(kindReported, use.Issuance, use.Time)
	if err != nil {
		return entry{}, err
	}
	e.command, e.overtakes, e.alone = true, true, use.Issuance
	return e.with(useBody{
		Version: record.BodyVersion, Kind: kindReported, ID: use.Issuance, Time: use.Time, Actor: subjectOf(use.Holder.Workload),
		Calls: use.Calls, LastUsedAt: use.LastUsed,
	})
}

// reported returns what the holder has reported before. It returns broker.ErrNotFound if there is no report and the holder
// may not make one.
func (l *Ledger) reported(ctx context.Context, use broker.Use) (said broker.Use, found bool, err error) {
	var may bool
	var calls *int64
	var at, last *time.Time
	err = l.read.QueryRow(ctx, `
		SELECT reportable(@id, @holder), u.calls, u.time, u.last_used_at
		FROM (VALUES (@id::uuid)) AS asked (id) LEFT JOIN (
			SELECT u.* FROM uses AS u JOIN issuances AS i ON i.id = u.issuance WHERE i.spiffe_id = @holder) AS u ON u.issuance = asked.id`,
		pgx.NamedArgs{"id": use.Issuance, "holder": use.Holder.ID()}).Scan(&may, &calls, &at, &last)
	switch {
	case err != nil:
		return said, false, postgres.Unavailable("reading what was reported", err)
	case calls != nil:
		use.Calls, use.Time, use.LastUsed = *calls, at.UTC(), instantOf(last)
		return use, true, nil
	case !may:
		return said, false, broker.ErrNotFound
	}
	return said, false, nil
}

func instantOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// scopeRow is the counts of one scope in a chunk.
type scopeRow struct {
	Scope                                         string
	Asked, Granted, Denied, Reported, Used, Calls int64
	LastUsedAt                                    *time.Time
}

// ScopeUsage implements [broker.Usage]. It leaves out names of scopes that did not exist, because callers make them up.
func (l *Ledger) ScopeUsage(ctx context.Context, q broker.UsageQuery, reach broker.Reach) ([]broker.ScopeUsage, error) {
	if reachesNothing(reach) || record.Unmatchable(q.TrustDomain) {
		return nil, nil
	}
	counting, cancel := context.WithTimeout(ctx, usageWithin)
	defer cancel()
	// Only one count runs at any time, so that searches find connections.
	select {
	case l.counting <- struct{}{}:
		defer func() { <-l.counting }()
	case <-counting.Done():
		if err := ctx.Err(); err != nil {
			return nil, postgres.Unavailable("waiting for a count of uses", err)
		}
		return nil, fmt.Errorf("waiting for another count of uses: %w", broker.ErrTooBroad)
	}
	all, err := l.countScopes(counting, newSearch(broker.Query{TrustDomain: q.TrustDomain, Since: q.Since, Until: q.Until}, reach))
	if err != nil && counting.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("counting uses: %w", broker.ErrTooBroad)
	}
	return all, err
}

func (l *Ledger) countScopes(ctx context.Context, s *search) ([]broker.ScopeUsage, error) {
	if err := s.bound(ctx, l.audit); err != nil {
		return nil, searching("bounding a count of uses", err)
	}
	where := strings.Join(append(s.conditions(), within(s.reach, "trust_domain", s.args)), " AND ")
	sums := map[string]broker.ScopeUsage{}
	for first := s.from; first < s.until; first += usageChunk {
		s.args["first"], s.args["beyond"] = first, min(first+usageChunk, s.until)
		rows, err := l.audit.Query(ctx, `
			SELECT scope, count(*) FILTER (WHERE approves IS NULL) AS asked,
				count(*) FILTER (WHERE status IN ('issued', 'revoking', 'revoked', 'released', 'expired', 'used')) AS granted,
				count(*) FILTER (WHERE status IN ('denied', 'rejected')) AS denied,
				count(calls) AS reported, count(*) FILTER (WHERE calls > 0) AS used, coalesce(sum(calls), 0)::bigint AS calls,
				max(last_used_at) AS last_used_at
			FROM issuances LEFT JOIN (
				SELECT began, calls, last_used_at FROM uses WHERE began >= @first AND began < @beyond) AS u ON began = entry_index
			WHERE entry_index >= @first AND entry_index < @beyond AND authority <> '' AND `+where+`
			GROUP BY scope`, s.args)
		if err != nil {
			return nil, searching("counting uses", err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[scopeRow])
		if err != nil {
			return nil, searching("counting uses", err)
		}
		for _, row := range found {
			sums[row.Scope] = row.add(sums[row.Scope])
		}
	}
	return slices.Collect(maps.Values(sums)), nil
}

// add adds the counts of a chunk to those of the chunks before.
func (r scopeRow) add(to broker.ScopeUsage) broker.ScopeUsage {
	to.Scope = r.Scope
	to.Asked, to.Granted, to.Denied = to.Asked+r.Asked, to.Granted+r.Granted, to.Denied+r.Denied
	to.Reported, to.Used, to.Calls = to.Reported+r.Reported, to.Used+r.Used, to.Calls+r.Calls
	if last := instantOf(r.LastUsedAt); last.After(to.LastUsed) {
		to.LastUsed = last
	}
	return to
}
