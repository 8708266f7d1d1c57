package ledger

import (
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// appendSQL appends a batch of records. It derives the projection from the entries' bodies, so the two cannot disagree. The
// database checks the rest.
const appendSQL = `
WITH locked AS MATERIALIZED (
	SELECT * FROM admit(@subjects::text[], @keys::text[], @tasks::text[], @scopes::text[], @ends::timestamptz[],
		@catalogues::text[], @limit_items::bigint[], @limit_keys::text[], @emissions::bigint[], @bursts::bigint[], @alive_per::text[])
), item AS MATERIALIZED (
	SELECT t.n, t.kind, t.id, t.time, t.body, t.leaf_hash, convert_from(t.body, 'UTF8')::jsonb AS doc,
		t.kind NOT IN ('request.denied', 'request.pending', 'issuance.intent', 'call.refused') AS outcome,
		CASE WHEN locked.verdicts[t.n] IS NOT NULL THEN locked.verdicts[t.n]
			WHEN t.approves IS NOT NULL AND NOT redeemable(t.approves, t.subject,
				convert_from(t.body, 'UTF8')::jsonb #>> '{decision,code}') THEN 'unapproved'
			WHEN t.kind = 'request.pending' AND crowded(t.subject,
				count(*) FILTER (WHERE t.kind = 'request.pending') OVER (PARTITION BY t.subject ORDER BY t.n) - 1)
				THEN 'crowded' END AS verdict,
		locked.reached[t.n] AS reached, locked.waits[t.n] AS wait, locked.current_term, t.approves
	FROM locked, unnest(@kinds::text[], @ids::uuid[], @times::timestamptz[], @bodies::bytea[], @leaves::bytea[],
		@approves::uuid[], @judged::text[]) WITH ORDINALITY AS t (kind, id, time, body, leaf_hash, approves, subject, n)
), redeemed AS (
	UPDATE issuances AS i
	SET status = 'redeemed', status_time = item.time, redeemed_by = item.id, redemptions = i.redemptions + 1
	FROM item WHERE i.id = item.approves AND item.verdict IS NULL
), moved AS (
	UPDATE issuances AS i
	SET status = m.status, status_detail = m.detail, status_time = m.time, actor = coalesce(m.actor, i.actor),
		idempotency_key = CASE WHEN m.status NOT IN ('failed', 'unknown', 'compensated') THEN i.idempotency_key END,
		vault_accessor = coalesce(i.vault_accessor, m.accessor), vault_lease = coalesce(i.vault_lease, m.lease),
		credential_name = coalesce(i.credential_name, m.name), secret_digest = coalesce(i.secret_digest, m.digest)
	FROM (
		SELECT DISTINCT ON (id) n, id, time, current_term, doc ->> 'status' AS status, doc ->> 'detail' AS detail,
			doc ->> 'actor' AS actor, (doc ->> 'term')::bigint AS term, doc #>> '{minted,accessor}' AS accessor,
			doc #>> '{minted,lease}' AS lease, doc #>> '{minted,name}' AS name,
			decode(doc #>> '{minted,digest}', 'hex') AS digest
		FROM item WHERE outcome ORDER BY id, n
	) AS m
	WHERE i.id = m.id AND may_move(i.status, m.status, i.credential_kind, i.leased, i.static)
		AND (m.status <> 'used' OR i.one_shot) AND (m.term IS NULL OR m.term = m.current_term)
	RETURNING m.n
), judged AS MATERIALIZED (
	SELECT *, count(*) FILTER (WHERE accepted) OVER (ORDER BY n) - 1 AS place
	FROM (
		SELECT item.*, CASE WHEN outcome THEN n IN (SELECT n FROM moved) ELSE verdict IS NULL END AS accepted
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
		status, status_time, expires_at, approval_group, approval_quorum, break_glass,
		credential_kind, audience, key_id, claims_digest, request_digest, idempotency_key,
		vault_path, leased, static, one_shot, canonical, approves, jkt, parent, status_list, status_index,
		on_behalf_of, on_behalf_groups)
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
		doc #>> '{decision,approval,break_glass}',
		doc #>> '{intent,kind}', doc #>> '{intent,audience}', doc #>> '{intent,key_id}',
		decode(doc #>> '{intent,claims_digest}', 'hex'), decode(doc #>> '{request,digest}', 'hex'),
		doc #>> '{request,idempotency_key}', nullif(doc #>> '{intent,grant,path}', ''),
		coalesce((doc #>> '{intent,grant,leased}')::boolean, false),
		coalesce((doc #>> '{intent,grant,static}')::boolean, false),
		coalesce((doc #>> '{intent,one_shot}')::boolean, false),
		doc #>> '{decision,approval,canonical}', approves, doc #>> '{request,jkt}',
		(doc ->> 'parent')::uuid, (doc #>> '{intent,status_list,id}')::uuid,
		(doc #>> '{intent,status_list,index}')::integer, doc #>> '{on_behalf_of,id}',
		CASE WHEN doc ? 'on_behalf_of' THEN ARRAY(SELECT jsonb_array_elements_text(doc #> '{on_behalf_of,groups}')) END
	FROM judged, head
	WHERE accepted AND NOT outcome AND kind <> 'call.refused'
)
SELECT CASE WHEN accepted THEN head.base + place END AS index,
	CASE WHEN outcome THEN (SELECT i.status FROM issuances AS i WHERE i.id = judged.id) END AS status,
	verdict, reached, wait
FROM judged, head
ORDER BY n`

// contents returns the arguments that hold the entries themselves.
func contents(batch []*job) pgx.NamedArgs {
	var (
		kinds          []string
		ids            []pgtype.UUID
		times          []time.Time
		bodies, leaves [][]byte
	)
	for _, j := range batch {
		e := &j.entry
		kinds, ids, times = append(kinds, e.kind), append(ids, e.id), append(times, e.time)
		bodies, leaves = append(bodies, e.body), append(leaves, e.leaf[:])
	}
	return pgx.NamedArgs{"kinds": kinds, "ids": ids, "times": times, "bodies": bodies, "leaves": leaves}
}

// arguments returns the contents of the entries, and the values that decide whether they are admitted.
func arguments(batch []*job) pgx.NamedArgs {
	var (
		subjects, keys, tasks, scopes, per, catalogues []*string
		ends                                           []*time.Time
		items, emissions, bursts                       []int64
		limits                                         []string
		approves                                       []pgtype.UUID
		judged                                         []*string
	)
	for i, j := range batch {
		e := &j.entry
		subjects, keys, ends = append(subjects, e.subject), append(keys, e.key), append(ends, e.ends)
		tasks, scopes, catalogues = append(tasks, e.task), append(scopes, e.scope), append(catalogues, e.catalogue)
		approves, judged = append(approves, e.approves), append(judged, e.subject)
		for _, l := range e.limits {
			items, limits = append(items, int64(i+1)), append(limits, l.Key)
			if l.Live > 0 {
				per, emissions, bursts = append(per, &l.Per), append(emissions, 0), append(bursts, int64(l.Live))
				continue
			}
			per = append(per, nil)
			emissions, bursts = append(emissions, l.Emission().Microseconds()), append(bursts, int64(l.Count))
		}
	}
	args := contents(batch)
	maps.Copy(args, pgx.NamedArgs{
		"subjects": subjects, "keys": keys, "tasks": tasks, "scopes": scopes, "ends": ends, "catalogues": catalogues,
		"limit_items": items, "limit_keys": limits, "emissions": emissions, "bursts": bursts, "alive_per": per,
		"approves": approves, "judged": judged,
	})
	return args
}
