package search

import (
	"context"
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

// usageChunk is how many entry indexes one statement counts. That takes some tenths of a second, which is less than a search
// may take. So searches find a connection between two statements.
var usageChunk int64 = 1 << 16

// usageWithin bounds all statements of one count together.
const usageWithin = 20 * time.Second

// scopeRow is the counts of one scope in a chunk.
type scopeRow struct {
	Scope                                         string
	Asked, Granted, Denied, Reported, Used, Calls int64
	LastUsedAt                                    *time.Time
}

// ScopeUsage is that of [broker.Usage]. It leaves out names of scopes that did not exist, because callers make them up.
func (r *Searcher) ScopeUsage(ctx context.Context, q broker.UsageQuery, reach broker.Reach) ([]broker.ScopeUsage, error) {
	if record.ReachesNothing(reach) || record.Unmatchable(q.TrustDomain) {
		return nil, nil
	}
	counting, cancel := context.WithTimeout(ctx, usageWithin)
	defer cancel()
	// Only one count runs at any time, so that searches find connections.
	select {
	case r.counting <- struct{}{}:
		defer func() { <-r.counting }()
	case <-counting.Done():
		if err := ctx.Err(); err != nil {
			return nil, postgres.Unavailable("waiting for a count of uses", err)
		}
		return nil, fmt.Errorf("waiting for another count of uses: %w", broker.ErrTooBroad)
	}
	all, err := r.countScopes(counting, newSearch(broker.Query{TrustDomain: q.TrustDomain, Since: q.Since, Until: q.Until}, reach))
	if err != nil && counting.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("counting uses: %w", broker.ErrTooBroad)
	}
	return all, err
}

func (r *Searcher) countScopes(ctx context.Context, s *search) ([]broker.ScopeUsage, error) {
	if err := s.bound(ctx, r.audit); err != nil {
		return nil, searching("bounding a count of uses", err)
	}
	where := strings.Join(append(s.conditions(), record.Within(s.reach, "trust_domain", s.args)), " AND ")
	sums := map[string]broker.ScopeUsage{}
	for first := s.from; first < s.until; first += usageChunk {
		s.args["first"], s.args["beyond"] = first, min(first+usageChunk, s.until)
		rows, err := r.audit.Query(ctx, `
			SELECT scope, count(*) FILTER (WHERE approves IS NULL) AS asked,
				count(*) FILTER (WHERE status IN ('issued', 'revoking', 'revoked', 'released', 'expired', 'used')) AS granted,
				count(*) FILTER (WHERE status IN ('denied', 'rejected')) AS denied,
				count(calls) AS reported, count(*) FILTER (WHERE calls > 0) AS used, coalesce(sum(calls), 0)::bigint AS calls,
				max(last_used_at) AS last_used_at
			FROM issuances LEFT JOIN (
				SELECT began, calls, last_used_at FROM uses WHERE began >= @first AND began < @beyond) AS u ON began = entry_index
			WHERE entry_index >= @first AND entry_index < @beyond AND authority <> '' AND `+where+`
			GROUP BY scope`, s.args)
		found, err := postgres.Collect(rows, err, pgx.RowToStructByName[scopeRow])
		if err != nil {
			return nil, searching("counting uses", err)
		}
		for _, row := range found {
			to := sums[row.Scope]
			to.Scope = row.Scope
			to.Asked, to.Granted, to.Denied = to.Asked+row.Asked, to.Granted+row.Granted, to.Denied+row.Denied
			to.Reported, to.Used, to.Calls = to.Reported+row.Reported, to.Used+row.Used, to.Calls+row.Calls
			if last := record.Instant(row.LastUsedAt); last.After(to.LastUsed) {
				to.LastUsed = last
			}
			sums[row.Scope] = to
		}
	}
	return slices.Collect(maps.Values(sums)), nil
}

// group is a row of the query of LiveCounts.
type group struct {
	By, Name, SPIFFEID string
	Count              int64
	Ends               *time.Time
}

// LiveCounts is that of [broker.Stats]. It finds live credentials like Live, by the hour of their ends, and counts them once
// for all groups. The cost grows with the number of live credentials, and not with the number of all that were ever issued.
func (r *Searcher) LiveCounts(ctx context.Context, reach broker.Reach) (broker.LiveCounts, error) {
	if record.ReachesNothing(reach) {
		return broker.LiveCounts{}, nil
	}
	args := pgx.NamedArgs{"most": broker.MaxGroups}
	rows, err := r.poolFor(reach).Query(ctx, `
		WITH alive AS MATERIALIZED (
			SELECT authority, credential_kind, spiffe_id, task, scope, expires_at FROM issuances
			WHERE status IN ('intent', 'issued', 'unknown', 'revoking') AND expires_at > now()
				AND date_bin('1 hour', expires_at, '2000-01-01 00:00:00Z') >= date_bin('1 hour', now(), '2000-01-01 00:00:00Z')
				AND `+record.Within(reach, "trust_domain", args)+`
		)
		SELECT 'total' AS by, '' AS name, '' AS spiffe_id, count(*) AS count, max(expires_at) AS ends FROM alive
		UNION ALL (SELECT 'authority', authority, '', count(*), max(expires_at) FROM alive GROUP BY 2 ORDER BY 4 DESC, 2)
		UNION ALL (SELECT 'kind', credential_kind, '', count(*), max(expires_at) FROM alive GROUP BY 2 ORDER BY 4 DESC, 2)
		UNION ALL (SELECT 'sandbox', spiffe_id, '', count(*), max(expires_at) FROM alive GROUP BY 2 ORDER BY 4 DESC, 2 LIMIT @most)
		UNION ALL (SELECT 'task', task, spiffe_id, count(*), max(expires_at) FROM alive GROUP BY 2, 3 ORDER BY 4 DESC, 2, 3 LIMIT @most)
		UNION ALL (SELECT 'scope', scope, '', count(*), max(expires_at) FROM alive GROUP BY 2 ORDER BY 4 DESC, 2 LIMIT @most)`, args)
	found, err := postgres.Collect(rows, err, pgx.RowToStructByPos[group])
	if err != nil {
		return broker.LiveCounts{}, searching("counting what is alive", err)
	}
	var c broker.LiveCounts
	lists := map[string]*[]broker.Group{
		"authority": &c.ByAuthority, "kind": &c.ByKind, "sandbox": &c.BySandbox, "task": &c.ByTask, "scope": &c.ByScope,
	}
	for _, row := range found {
		g := broker.Group{Name: row.Name, SPIFFEID: row.SPIFFEID, Count: row.Count, Ends: record.Instant(row.Ends)}
		if list, ok := lists[row.By]; ok {
			*list = append(*list, g)
			continue
		}
		c.Total = g
	}
	return c, nil
}
