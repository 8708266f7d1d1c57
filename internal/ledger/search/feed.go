package search

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

// timelineSQL reads the entries that concern the requests in about: their own entries, the end of their task, and the
// commands that name one of them, or the task with its sandbox. A broader command may be about another sandbox's task of
// that name, and not everyone may read it. For a task, the reports of its calls replace %s.
const timelineSQL = `
	), told AS (
		SELECT e.* FROM entries AS e WHERE e.id IN (SELECT id FROM about)
		UNION
		SELECT e.* FROM task_ends AS t JOIN entries AS e ON e.index = t.entry_index
		WHERE (t.spiffe_id, t.task) IN (SELECT spiffe_id, task FROM about)
		UNION
		SELECT e.* FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb -> 'target' AS target) AS o
		WHERE e.kind = 'credentials.revoke' AND e.index > (SELECT min(entry_index) FROM about) AND EXISTS (
			SELECT FROM about AS a
			WHERE a.id::text = o.target ->> 'id'
				OR a.spiffe_id = o.target ->> 'spiffe_id' AND a.task = o.target ->> 'task')
		%s
	)
	SELECT e.index, e.time, e.kind, e.id::text AS id, coalesce(doc ->> 'status', '') AS status,
		coalesce(doc ->> 'detail', '') AS detail, coalesce(doc #>> '{request,scope}', '') AS scope,
		coalesce(doc #>> '{decision,resource}', '') AS resource, coalesce(doc #>> '{decision,code}', '') AS code,
		coalesce(doc #>> '{decision,explanation}', '') AS explanation,
		coalesce(doc #>> '{actor,id}', doc #>> '{actor,spiffe_id}', CASE jsonb_typeof(doc -> 'actor') WHEN 'string' THEN
			doc ->> 'actor' END, '') AS actor,
		coalesce(doc #>> '{actor,name}', '') AS actor_name, coalesce(doc ->> 'verdict', '') AS verdict,
		coalesce(doc ->> 'covers', '') AS covers, coalesce(doc ->> 'note', '') AS note,
		coalesce(doc ->> 'reason', doc #>> '{request,reason}', '') AS reason, (doc ->> 'at')::timestamptz AS at,
		CASE e.kind WHEN 'issuance.reported' THEN (doc ->> 'calls')::bigint WHEN 'calls.recorded' THEN (
			SELECT coalesce(sum((c ->> 'count')::bigint), 0)::bigint FROM jsonb_array_elements(doc #> '{report,calls}') AS c) END AS calls,
		CASE e.kind WHEN 'calls.recorded' THEN (
			SELECT coalesce(sum((c ->> 'count')::bigint), 0)::bigint FROM jsonb_array_elements(doc #> '{report,calls}') AS c
			WHERE c ? 'refused') END AS refused
	FROM told AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb AS doc) AS body
	WHERE e.index >= @from
	ORDER BY e.index
	LIMIT @limit`

type happening struct {
	Index                              int64
	Time                               time.Time
	Kind, ID, Status, Detail           string
	Scope, Resource, Code, Explanation string
	Actor, ActorName                   string
	Verdict, Covers, Note, Reason      string
	At                                 *time.Time
	Calls, Refused                     *int64
}

// Timeline is that of [broker.EventFeed].
func (r *Searcher) Timeline(ctx context.Context, of broker.TimelineQuery, reach broker.Reach) ([]broker.TimelineEvent, error) {
	id, isID := record.OptionalID(of.ID)
	if of.Limit < 1 || of.Limit > record.MaxPage {
		return nil, record.ErrPageSize
	}
	if record.ReachesNothing(reach) || !isID || record.Unmatchable(of.SPIFFEID, of.Task) {
		return nil, broker.ErrNotFound
	}
	args := pgx.NamedArgs{
		"id": id, "spiffe_id": of.SPIFFEID, "task": of.Task, "trust_domain": domainOf(of.SPIFFEID), "from": of.From, "limit": of.Limit,
	}
	within := record.Within(reach, "trust_domain", args)
	about := `spiffe_id = @spiffe_id AND task = @task AND trust_domain = @trust_domain`
	// The reports of calls are large, so no more of them are read than fit the page.
	calls := `UNION ALL (
		SELECT e.* FROM call_reports JOIN entries AS e ON e.index = entry_index
		WHERE ` + about + ` AND ` + within + ` AND entry_index >= @from ORDER BY entry_index LIMIT @limit)`
	if of.ID != "" {
		calls = ""
		about = `id IN (SELECT unnest(ARRAY[id, approves, redeemed_by, remembered]) FROM issuances WHERE id = @id)`
	}
	rows, err := r.poolFor(reach).Query(ctx, `
		WITH about AS MATERIALIZED (
			SELECT id, entry_index, spiffe_id, task FROM issuances
			WHERE `+about+` AND `+within+fmt.Sprintf(timelineSQL, calls), args)
	all, err := postgres.Collect(rows, err, func(r pgx.CollectableRow) (broker.TimelineEvent, error) {
		h, err := pgx.RowToStructByName[happening](r)
		return broker.TimelineEvent{
			Index: h.Index, Time: h.Time.UTC(), Kind: h.Kind, ID: h.ID, Status: broker.Status(h.Status), Detail: h.Detail,
			Scope: h.Scope, Resource: h.Resource, Code: h.Code, Explanation: h.Explanation, Actor: h.Actor, ActorName: h.ActorName,
			Verdict: h.Verdict, Covers: h.Covers, Note: h.Note, Reason: h.Reason, Calls: h.Calls, Refused: h.Refused, At: record.Instant(h.At),
		}, err
	})
	switch {
	case err != nil:
		return nil, searching("reading a time line", err)
	case len(all) == 0 && of.From == 0:
		return nil, broker.ErrNotFound
	}
	return all, nil
}

// maxChanges is how many entries one answer covers.
const maxChanges = 1000

// Changes is that of [broker.EventFeed].
func (r *Searcher) Changes(ctx context.Context, q broker.Query, reach broker.Reach, from int64) (broker.Changes, error) {
	pool := r.poolFor(reach)
	var size int64
	if err := pool.QueryRow(ctx, `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		return broker.Changes{}, searching("reading the head", err)
	}
	if from < 0 || from > size {
		return broker.Changes{Next: size}, nil
	}
	out := broker.Changes{Next: min(size, from+maxChanges)}
	out.Further = out.Next < size
	if from == out.Next || record.ReachesNothing(reach) || unmatchable(q) {
		return out, nil
	}
	// A sandbox has few requests that wait. All those of a deployment would not fit an answer.
	voided := ""
	if reach.Subject != "" {
		voided = `UNION ALL
			SELECT i.id, c.entry_index FROM catalogue_changes AS c, issuances AS i
			WHERE c.kind = 'applied' AND c.entry_index >= @first AND c.entry_index < @beyond AND i.spiffe_id = @self
				AND i.status IN ('pending', 'approved') AND i.expires_at > c.time - interval '1 minute'
				AND voided_by(i.status, i.entry_index, i.expires_at) = c.version`
	}
	s := newSearch(q, reach)
	s.args["self"] = reach.Subject
	s.args["first"], s.args["beyond"] = from, out.Next
	rows, err := pool.Query(ctx, `
		SELECT `+record.Columns+` FROM (
			SELECT i.*, c.last FROM (
				SELECT id, max(index) AS last FROM (
					SELECT id, index FROM entries WHERE index >= @first AND index < @beyond AND kind <> 'issuance.reported'
					`+voided+`) AS e
				GROUP BY id) AS c
			JOIN issuances AS i ON i.id = c.id
		) AS issuances
		WHERE `+strings.Join(append(s.conditions(), record.Within(reach, "trust_domain", s.args)), " AND ")+`
		ORDER BY last`, s.args)
	out.Records, err = postgres.Collect(rows, err, func(r pgx.CollectableRow) (broker.View, error) {
		found, err := pgx.RowToStructByName[record.Row](r)
		if err != nil {
			return broker.View{}, err
		}
		v, err := found.View()
		if err != nil {
			return broker.View{}, err
		}
		return *v, nil
	})
	if err != nil {
		return broker.Changes{}, searching("reading what changed", err)
	}
	return out, nil
}
