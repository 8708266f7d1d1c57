package search

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

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
	args := pgx.NamedArgs{"most": broker.MostGroups}
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
	if err != nil {
		return broker.LiveCounts{}, searching("counting what is alive", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[group])
	if err != nil {
		return broker.LiveCounts{}, searching("counting what is alive", err)
	}
	return liveCountsOf(found), nil
}

func liveCountsOf(rows []group) broker.LiveCounts {
	var c broker.LiveCounts
	lists := map[string]*[]broker.Group{
		"authority": &c.ByAuthority, "kind": &c.ByKind, "sandbox": &c.BySandbox, "task": &c.ByTask, "scope": &c.ByScope,
	}
	for _, row := range rows {
		g := broker.Group{Name: row.Name, SPIFFEID: row.SPIFFEID, Count: row.Count, Ends: record.Instant(row.Ends)}
		if list, ok := lists[row.By]; ok {
			*list = append(*list, g)
			continue
		}
		c.Total = g
	}
	return c
}
