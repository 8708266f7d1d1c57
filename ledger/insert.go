package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// appendSQL appends a batch. The projection is taken from the entries' bodies, so it cannot say anything else than
// they do; the database checks the rest.
const appendSQL = `
WITH locked AS MATERIALIZED (
	SELECT * FROM admit(@subjects::text[], @keys::text[],
		@limit_items::bigint[], @limit_keys::text[], @emissions::bigint[], @bursts::bigint[])
), item AS MATERIALIZED (
	SELECT t.n, t.kind, t.id, t.time, t.body, t.leaf_hash, convert_from(t.body, 'UTF8')::jsonb AS doc,
		locked.repeated[t.n] AS repeated, locked.reached[t.n] AS reached, locked.waits[t.n] AS wait
	FROM locked, unnest(@kinds::text[], @ids::uuid[], @times::timestamptz[], @bodies::bytea[], @leaves::bytea[])
		WITH ORDINALITY AS t (kind, id, time, body, leaf_hash, n)
), moved AS (
	UPDATE issuances AS i
	SET status = m.status, status_detail = m.detail, status_time = m.time, idempotency_key = NULL
	FROM (
		SELECT DISTINCT ON (id) n, id, time, doc ->> 'status' AS status, doc ->> 'detail' AS detail
		FROM item WHERE kind = 'issuance.failed' ORDER BY id, n
	) AS m
	WHERE i.id = m.id AND (i.status, m.status) IN (('issued', 'failed'))
	RETURNING m.n
), judged AS MATERIALIZED (
	SELECT *, count(*) FILTER (WHERE accepted) OVER (ORDER BY n) - 1 AS place
	FROM (
		SELECT item.*, CASE kind
			WHEN 'call.refused' THEN true
			WHEN 'issuance.failed' THEN n IN (SELECT n FROM moved)
			ELSE NOT repeated AND reached IS NULL END AS accepted
		FROM item
	) AS each
), head AS (
	UPDATE ledger_head SET size = size + (SELECT count(*) FROM judged WHERE accepted)
	RETURNING size - (SELECT count(*) FROM judged WHERE accepted) AS base
), entry AS (
	INSERT INTO entries (index, id, time, kind, body, leaf_hash)
	SELECT head.base + place, id, time, kind, body, leaf_hash FROM judged, head WHERE accepted
), projected AS (
	INSERT INTO issuances (
		id, entry_index, time, trust_domain, spiffe_id, svid_kind, thumbprint, task, scope, authority, resource,
		params, reason, ttl_asked, ttl, decision, decision_code, explanation, policies, clamps, catalogue,
		status, status_time, expires_at, approval_group, approval_quorum,
		credential_kind, audience, key_id, claims_digest, request_digest, idempotency_key)
	SELECT
		id, head.base + place, time, doc #>> '{subject,trust_domain}', doc #>> '{subject,spiffe_id}',
		doc #>> '{subject,svid}', doc #>> '{subject,thumbprint}', doc #>> '{request,task}',
		doc #>> '{request,scope}', doc #>> '{decision,authority}', doc #>> '{decision,resource}',
		coalesce(doc #> '{decision,params}', doc #> '{request,params}'), doc #>> '{request,reason}',
		(doc #>> '{request,ttl}')::bigint, (doc #>> '{decision,ttl}')::bigint, doc #>> '{decision,outcome}',
		doc #>> '{decision,code}', doc #>> '{decision,explanation}',
		ARRAY(SELECT jsonb_array_elements_text(doc #> '{decision,policies}')),
		ARRAY(SELECT c ->> 'bound' FROM jsonb_array_elements(doc #> '{decision,clamps}') AS c),
		doc #>> '{decision,catalogue}', doc ->> 'status', time, (doc ->> 'expires')::timestamptz,
		doc #>> '{decision,approval,group}', (doc #>> '{decision,approval,quorum}')::integer,
		doc #>> '{intent,kind}', doc #>> '{intent,audience}', doc #>> '{intent,key_id}',
		decode(doc #>> '{intent,claims_digest}', 'hex'), decode(doc #>> '{request,digest}', 'hex'),
		doc #>> '{request,idempotency_key}'
	FROM judged, head
	WHERE accepted AND kind IN ('request.denied', 'request.pending', 'issuance.intent')
)
SELECT CASE WHEN accepted THEN head.base + place END AS index,
	CASE WHEN kind = 'issuance.failed' THEN (SELECT i.status FROM issuances AS i WHERE i.id = judged.id) END AS status,
	reached, wait
FROM judged, head
ORDER BY n`

type appended struct {
	Index   *int64  // of the entry; nil when none was appended
	Status  *string // for an outcome: the record's status until now
	Reached *string // the key of the limit that the item is over
	Wait    *int64  // microseconds until it would pass
}

// insert appends the batch: one round trip, so that the lock on the head never waits for the network. Rows come
// back in the batch's order.
func insert(ctx context.Context, conn *pgxpool.Conn, batch []*job) ([]appended, error) {
	rows, err := conn.Query(ctx, appendSQL, arguments(batch))
	if err != nil {
		return nil, err
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByName[appended])
	switch {
	case err != nil:
		return nil, err
	case conn.Conn().PgConn().CustomData()[warning] != nil:
		return nil, errors.Join(errWarned, conn.Conn().Close(ctx))
	case len(got) != len(batch):
		return nil, fmt.Errorf("postgres answered %d of %d records", len(got), len(batch))
	}
	return got, nil
}

func arguments(batch []*job) pgx.NamedArgs {
	var (
		kinds                 []string
		ids                   []pgtype.UUID
		times                 []time.Time
		bodies, leaves        [][]byte
		subjects, keys        []*string
		of, emissions, bursts []int64
		limits                []string
	)
	for i, j := range batch {
		e := &j.entry
		kinds, ids, times = append(kinds, e.kind), append(ids, e.id), append(times, e.time)
		bodies, leaves = append(bodies, e.body), append(leaves, e.leaf[:])
		subjects, keys = append(subjects, e.subject), append(keys, e.key)
		for _, l := range e.limits {
			of, limits = append(of, int64(i+1)), append(limits, l.Key)
			emissions, bursts = append(emissions, l.Emission().Microseconds()), append(bursts, int64(l.Count))
		}
	}
	return pgx.NamedArgs{
		"kinds": kinds, "ids": ids, "times": times, "bodies": bodies, "leaves": leaves, "subjects": subjects, "keys": keys,
		"limit_items": of, "limit_keys": limits, "emissions": emissions, "bursts": bursts,
	}
}
