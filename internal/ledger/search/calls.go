package search

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

// callsSQL sums the rows of all reports. The largest sum of bytes is what JSON can hold exactly.
const callsSQL = `
	), said AS (
		SELECT coalesce(c.host, '') AS host, coalesce(c.method, '') AS method, coalesce(c.path, '') AS path, coalesce(c.scope, '') AS scope,
			coalesce(c.refused, '') AS refused, coalesce(c.other, false) AS other, c.count, c.first, c.last, c.statuses, c.bytes_in, c.bytes_out
		FROM report JOIN entries AS e ON e.index = report.entry_index,
			jsonb_to_recordset(convert_from(e.body, 'UTF8')::jsonb #> '{report,calls}') AS c (host text, method text, path text, scope text,
				refused text, other boolean, count bigint, first timestamptz, last timestamptz, statuses jsonb, bytes_in bigint, bytes_out bigint)
	), summed AS (
		SELECT host, method, path, scope, refused, other, sum(count) AS count, min(first) AS first, max(last) AS last,
			sum((statuses ->> '1xx')::bigint) AS s1, sum((statuses ->> '2xx')::bigint) AS s2, sum((statuses ->> '3xx')::bigint) AS s3,
			sum((statuses ->> '4xx')::bigint) AS s4, sum((statuses ->> '5xx')::bigint) AS s5, sum((statuses ->> 'none')::bigint) AS none,
			sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out
		FROM said
		GROUP BY host, method, path, scope, refused, other
	), ranked AS (
		SELECT *, CASE WHEN other THEN @most + 1 ELSE row_number() OVER (
			ORDER BY other, first, host COLLATE "C", method COLLATE "C", path COLLATE "C", scope COLLATE "C", refused COLLATE "C") END AS place
		FROM summed
	), listed AS (
		SELECT * FROM ranked WHERE place <= @most
		UNION ALL
		SELECT '', '', '', '', '', true, sum(count), min(first), max(last), sum(s1), sum(s2), sum(s3), sum(s4), sum(s5), sum(none),
			sum(bytes_in), sum(bytes_out), @most + 1
		FROM ranked WHERE place > @most HAVING count(*) > 0
	)
	SELECT host, method, path, scope, refused, other, least(count, @exact)::bigint AS count, first, last,
		least(coalesce(s1, 0), @exact)::bigint AS s1, least(coalesce(s2, 0), @exact)::bigint AS s2, least(coalesce(s3, 0), @exact)::bigint AS s3,
		least(coalesce(s4, 0), @exact)::bigint AS s4, least(coalesce(s5, 0), @exact)::bigint AS s5, least(coalesce(none, 0), @exact)::bigint AS none,
		least(coalesce(bytes_in, 0), @exact)::bigint AS bytes_in, least(coalesce(bytes_out, 0), @exact)::bigint AS bytes_out
	FROM listed ORDER BY place`

// sessionsSQL says how much of each session is reported.
const sessionsSQL = `
	), gap AS (
		SELECT session, after, sequence AS before, row_number() OVER (PARTITION BY session ORDER BY sequence) AS n
		FROM (SELECT session, sequence, lag(sequence, 1, 0::bigint) OVER (PARTITION BY session ORDER BY sequence) AS after FROM report) AS r
		WHERE sequence > after + 1
	), missing AS (
		SELECT session, (array_agg(number ORDER BY number))[1:@missing] AS numbers
		FROM gap, generate_series(after + 1, least(before - 1, after + @missing)) AS number
		WHERE n <= @missing
		GROUP BY session
	), session AS (
		SELECT session, count(*) AS reports, min(since) AS since, max(until) AS until,
			(array_agg(final ORDER BY sequence DESC))[1] AS closed, max(sequence) = count(*) AS whole
		FROM report GROUP BY session
	)
	SELECT session::text AS session, reports, since, until, closed, coalesce(numbers, '{}') AS missing,
		count(*) OVER () AS total, bool_and(closed AND whole) OVER () AS complete
	FROM session LEFT JOIN missing USING (session)
	ORDER BY closed AND whole, since, session
	LIMIT @most`

type callRow struct {
	Host, Method, Path, Scope, Refused string
	Other                              bool
	Count                              int64
	First, Last                        time.Time
	S1, S2, S3, S4, S5, None           int64
	BytesIn, BytesOut                  int64
}

type sessionRow struct {
	Session      string
	Reports      int64
	Since, Until time.Time
	Closed       bool
	Missing      []int64
	Total        int64
	Complete     bool
}

// TaskCalls is that of [broker.Usage].
func (r *Searcher) TaskCalls(ctx context.Context, spiffeID, task string, reach broker.Reach) (broker.TaskCalls, error) {
	if record.ReachesNothing(reach) || record.Unmatchable(spiffeID, task) {
		return broker.TaskCalls{}, broker.ErrNotFound
	}
	counting, cancel := context.WithTimeout(ctx, usageWithin)
	defer cancel()
	// This and a count of uses take turns, so that searches find connections.
	select {
	case r.counting <- struct{}{}:
		defer func() { <-r.counting }()
	case <-counting.Done():
		if err := ctx.Err(); err != nil {
			return broker.TaskCalls{}, postgres.Unavailable("waiting for a count of calls", err)
		}
		return broker.TaskCalls{}, fmt.Errorf("waiting for another count: %w", broker.ErrTooBroad)
	}
	args := pgx.NamedArgs{
		"spiffe_id": spiffeID, "task": task, "trust_domain": domainOf(spiffeID), "exact": int64(1)<<53 - 1,
		"most": int64(broker.MaxCallRows), "missing": int64(broker.MaxMissing),
	}
	report := `WITH report AS MATERIALIZED (
		SELECT session, sequence, since, until, final, entry_index FROM call_reports
		WHERE spiffe_id = @spiffe_id AND task = @task AND trust_domain = @trust_domain AND ` + record.Within(reach, "trust_domain", args)
	var out broker.TaskCalls
	// One snapshot, or a report between the two statements would be in only one of them.
	err := pgx.BeginTxFunc(counting, r.audit, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(counting, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, usageWithin.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(counting, report+sessionsSQL, args)
		sessions, err := postgres.Collect(rows, err, pgx.RowToStructByName[sessionRow])
		if err != nil {
			return err
		}
		if len(sessions) == 0 {
			return broker.ErrNotFound
		}
		for _, s := range sessions {
			out.Sessions = append(out.Sessions, broker.CallSession{
				Session: s.Session, Reports: s.Reports, Since: s.Since.UTC(), Until: s.Until.UTC(), Closed: s.Closed, Missing: s.Missing,
			})
			out.SessionCount, out.Complete = s.Total, s.Complete
		}
		rows, err = tx.Query(counting, report+callsSQL, args)
		out.Calls, err = postgres.Collect(rows, err, func(row pgx.CollectableRow) (broker.CallRow, error) {
			c, err := pgx.RowToStructByName[callRow](row)
			return c.call(), err
		})
		return err
	})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return broker.TaskCalls{}, broker.ErrNotFound
	case err != nil && counting.Err() != nil && ctx.Err() == nil:
		return broker.TaskCalls{}, fmt.Errorf("counting calls: %w", broker.ErrTooBroad)
	case err != nil:
		return broker.TaskCalls{}, searching("counting calls", err)
	}
	return out, nil
}

func (c callRow) call() broker.CallRow {
	statuses := map[string]int64{"1xx": c.S1, "2xx": c.S2, "3xx": c.S3, "4xx": c.S4, "5xx": c.S5, "none": c.None}
	for class, n := range statuses {
		if n == 0 {
			delete(statuses, class)
		}
	}
	return broker.CallRow{
		Host: c.Host, Method: c.Method, Path: c.Path, Scope: c.Scope, Refused: c.Refused, Other: c.Other, Count: c.Count,
		First: c.First.UTC(), Last: c.Last.UTC(), Statuses: statuses, BytesIn: c.BytesIn, BytesOut: c.BytesOut,
	}
}
