package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
)

// announceSQL appends a batch of commands and projects their effects in the same statement. No two commands in a batch
// concern the same task, quarantine, request or person. At most one concerns the catalogue, and at most one concerns
// passkeys. A vote that follows a change of the catalogue in its batch counts as overtaken. Reports of uses and calls go
// through this statement too, because the one that appends issuances has no time for them.
const announceSQL = `
WITH locked AS MATERIALIZED (
	SELECT FROM ledger_head FOR UPDATE
), item AS MATERIALIZED (
	SELECT t.n, t.kind, t.id, t.time, t.body, t.leaf_hash, convert_from(t.body, 'UTF8')::jsonb AS doc
	FROM locked, unnest(@kinds::text[], @ids::uuid[], @times::timestamptz[], @bodies::bytea[], @leaves::bytea[])
		WITH ORDINALITY AS t (kind, id, time, body, leaf_hash, n)
), lifted AS (
	DELETE FROM quarantines AS q USING item
	WHERE item.kind = 'quarantine.remove' AND q.spiffe_id = item.doc #>> '{target,spiffe_id}'
		AND (q.command = (item.doc ->> 'lifts')::uuid) IS NOT FALSE -- which entries did not always say
	RETURNING item.n
), moved AS (
	UPDATE issuances AS i
	SET status = item.doc ->> 'status', status_time = item.time,
		votes = i.votes + CASE item.kind WHEN 'approval.vote' THEN 1 ELSE (
			SELECT count(*) FROM votes AS v
			WHERE v.request = (item.doc ->> 'of')::uuid AND v.verdict = 'approve' AND v.covers = 'task') END,
		remembered = coalesce(i.remembered, (item.doc ->> 'of')::uuid),
		actor = CASE WHEN item.doc ->> 'status' IN ('rejected', 'withdrawn') THEN item.doc #>> '{actor,id}' END
	FROM item
	WHERE item.kind LIKE 'approval.%' AND i.id = item.id AND NOT is_void(item.id)
		AND NOT EXISTS (SELECT FROM item AS c WHERE c.kind = 'catalogue.applied' AND c.n < item.n) -- is_void does not see it yet
		AND (i.status, i.votes) = (item.doc ->> 'was', (item.doc ->> 'votes')::integer)
		AND (i.status = 'redeemed'
			OR clock_timestamp() < i.expires_at + CASE i.status WHEN 'approved' THEN interval '1 minute' ELSE '0' END)
	RETURNING item.n
), judged AS MATERIALIZED (
	SELECT *, count(*) FILTER (WHERE accepted) OVER (ORDER BY n) - 1 AS place
	FROM (
		SELECT item.*, CASE
			WHEN kind = 'task.end' THEN NOT EXISTS (
				SELECT FROM task_ends AS t
				WHERE t.spiffe_id = doc #>> '{target,spiffe_id}' AND t.task = doc #>> '{target,task}'
					AND (t.ended OR (doc ->> 'at')::timestamptz > time AND t.ends_at <= (doc ->> 'at')::timestamptz))
			WHEN kind = 'quarantine.add' THEN NOT EXISTS (
				SELECT FROM quarantines AS q
				WHERE (q.spiffe_id, q.actor, q.reason) = (doc #>> '{target,spiffe_id}',
					coalesce(doc #>> '{actor,spiffe_id}', doc #>> '{actor,id}'), doc ->> 'reason'))
			WHEN kind = 'quarantine.remove' THEN n IN (SELECT n FROM lifted)
			WHEN kind LIKE 'approval.%' THEN n IN (SELECT n FROM moved)
			WHEN kind = 'passkey.registered' THEN may_register(doc #>> '{actor,id}', doc ->> 'credential', doc ->> 'digest')
			WHEN kind = 'passkey.removed' THEN may_unregister(doc #>> '{actor,id}', (doc ->> 'passkey')::uuid)
			WHEN kind = 'issuance.reported' THEN may_report(id, doc #>> '{actor,spiffe_id}')
			WHEN kind = 'calls.recorded' THEN may_report_calls(id)
			WHEN kind IN ('catalogue.proposed', 'catalogue.applied', 'catalogue.rejected') THEN may_change_catalogue(kind, doc)
			ELSE true END AS accepted
		FROM item
	) AS each
), head AS (
	UPDATE ledger_head SET size = size + (SELECT count(*) FROM judged WHERE accepted)
	RETURNING size - (SELECT count(*) FROM judged WHERE accepted) AS base
), entry AS (
	INSERT INTO entries (index, id, time, kind, body, leaf_hash)
	SELECT head.base + place, id, time, kind, body, leaf_hash FROM judged, head WHERE accepted
), ended AS (
	INSERT INTO task_ends AS t (spiffe_id, task, ends_at, ended, since, command, entry_index)
	SELECT doc #>> '{target,spiffe_id}', doc #>> '{target,task}', coalesce((doc ->> 'at')::timestamptz, time),
		coalesce((doc ->> 'at')::timestamptz <= time, true), time, id, head.base + place
	FROM judged, head
	WHERE kind = 'task.end' AND accepted
	ON CONFLICT (spiffe_id, task) DO UPDATE
	SET ends_at = least(t.ends_at, excluded.ends_at), ended = t.ended OR excluded.ended,
		since = excluded.since, command = excluded.command, entry_index = excluded.entry_index
	WHERE excluded.ends_at < t.ends_at OR (excluded.ended AND NOT t.ended)
), confined AS (
	INSERT INTO quarantines (spiffe_id, since, actor, reason, command, entry_index)
	SELECT doc #>> '{target,spiffe_id}', time, coalesce(doc #>> '{actor,spiffe_id}', doc #>> '{actor,id}'), doc ->> 'reason',
		id, head.base + place
	FROM judged, head
	WHERE accepted AND kind = 'quarantine.add'
	ON CONFLICT (spiffe_id) DO NOTHING
), met AS (
	INSERT INTO people AS p (id, name, handle, groups, said_at, entry, entry_index)
	SELECT doc #>> '{person,id}', doc #>> '{person,name}', doc #>> '{person,handle}',
		ARRAY(SELECT jsonb_array_elements_text(doc #> '{person,groups}')), (doc ->> 'said_at')::timestamptz,
		id, head.base + place
	FROM judged, head
	WHERE kind = 'person.seen'
	ON CONFLICT (id) DO UPDATE
	SET name = excluded.name, handle = excluded.handle, groups = excluded.groups, said_at = excluded.said_at,
		entry = excluded.entry, entry_index = excluded.entry_index
	WHERE excluded.said_at > p.said_at
), voted AS (
	INSERT INTO votes (request, voter, verdict, covers, time, note, entry_index, credential, assertion)
	SELECT id, doc #>> '{actor,id}', doc ->> 'verdict', doc ->> 'covers', time, doc ->> 'note', head.base + place,
		doc ->> 'credential', doc ->> 'assertion'
	FROM judged, head
	WHERE accepted AND kind = 'approval.vote'
	UNION ALL
	SELECT j.id, v.voter, v.verdict, v.covers, j.time, v.note, head.base + j.place, v.credential, v.assertion
	FROM judged AS j JOIN votes AS v ON v.request = (j.doc ->> 'of')::uuid, head
	WHERE j.accepted AND j.kind = 'approval.remembered' AND v.verdict = 'approve' AND v.covers = 'task'
), registered AS (
	INSERT INTO passkeys (id, person, credential, public_key, digest, algorithm, sign_count, name, time, entry_index)
	SELECT id, doc #>> '{actor,id}', doc ->> 'credential', doc ->> 'public_key', doc ->> 'digest',
		(doc ->> 'algorithm')::integer, (doc ->> 'sign_count')::bigint, doc ->> 'name', time, head.base + place
	FROM judged, head
	WHERE accepted AND kind = 'passkey.registered'
), removed AS (
	UPDATE passkeys AS k SET removed_at = j.time, removed_index = head.base + j.place
	FROM judged AS j, head
	WHERE j.accepted AND j.kind = 'passkey.removed' AND k.id = (j.doc ->> 'passkey')::uuid
), reported AS (
	INSERT INTO uses (issuance, began, calls, last_used_at, time, entry_index)
	SELECT j.id, i.entry_index, (j.doc ->> 'calls')::bigint, (j.doc ->> 'last_used_at')::timestamptz, j.time, head.base + j.place
	FROM judged AS j JOIN issuances AS i ON i.id = j.id, head
	WHERE j.accepted AND j.kind = 'issuance.reported'
), called AS (
	INSERT INTO call_reports (id, trust_domain, spiffe_id, task, session, sequence, since, until, final, time, entry_index)
	SELECT id, doc #>> '{actor,trust_domain}', doc #>> '{actor,spiffe_id}', doc ->> 'task', (doc #>> '{report,session}')::uuid,
		(doc #>> '{report,sequence}')::bigint, (doc #>> '{report,since}')::timestamptz, (doc #>> '{report,until}')::timestamptz,
		(doc #>> '{report,final}')::boolean, time, head.base + place
	FROM judged, head
	WHERE accepted AND kind = 'calls.recorded'
), changed AS (
	INSERT INTO catalogue_changes (
		id, kind, digest, base, version, proposal, proposer, actor, reason, time, entry_index)
	SELECT id, split_part(kind, '.', 2), doc ->> 'digest', doc ->> 'base', (doc ->> 'number')::bigint,
		(doc ->> 'proposal')::uuid, doc ->> 'proposer', doc #>> '{actor,id}', doc ->> 'reason', time, head.base + place
	FROM judged, head
	WHERE accepted AND kind IN ('catalogue.proposed', 'catalogue.applied', 'catalogue.rejected')
), put_in_force AS (
	UPDATE catalogue_head SET version = (doc ->> 'number')::bigint, digest = doc ->> 'digest', change = id
	FROM judged
	WHERE accepted AND kind = 'catalogue.applied'
)
SELECT CASE WHEN accepted THEN head.base + place END AS index FROM judged, head ORDER BY n`

// commandBody is the body of the entries that record a command.
type commandBody struct {
	record.Header

	Actor  any        `json:"actor,omitempty"` // a subjectBody for a workload, an actorBody for a person
	Target targetBody `json:"target"`
	At     time.Time  `json:"at,omitzero"`
	Reason string     `json:"reason"`
	Lifts  string     `json:"lifts,omitzero"` // the command that added the quarantine
}

type targetBody struct {
	ID             string `json:"id,omitzero"`
	SPIFFEID       string `json:"spiffe_id,omitzero"`
	SPIFFEIDPrefix string `json:"spiffe_id_prefix,omitzero"`
	TrustDomain    string `json:"trust_domain,omitzero"`
	Task           string `json:"task,omitzero"`
	Scope          string `json:"scope,omitzero"`
	Catalogue      string `json:"catalogue,omitzero"`
}

// Announce implements [broker.LiveCredentials]. If a task gets two ends, it ends at the earlier time. A quarantine that is
// already in force stays as it is. A second order of it is recorded if it has another actor or another reason. Announce returns
// broker.ErrNotFound if a task has ended already or ends sooner, if an equal order of a quarantine is in force, and if a quarantine to
// lift is not in force or was not added by the named command.
func (l *Ledger) Announce(ctx context.Context, cmd broker.Command) error {
	e, err := newEntry(cmd.Kind, cmd.ID, cmd.Time)
	if err != nil {
		return err
	}
	e.command = true
	// Sandboxes and orchestrators end tasks all the time, so only a person's end of a task is urgent.
	e.urgent = cmd.Kind != broker.CommandTaskEnd || cmd.Actor != nil && cmd.Actor.Person != ""
	target, at := cmd.Target, time.Time{}
	switch cmd.Kind {
	case broker.CommandTaskEnd:
		e.alone, at = "task "+target.SPIFFEID+" "+target.Task, cmd.At
		if target != (broker.Selector{SPIFFEID: target.SPIFFEID, Task: target.Task}) || target.SPIFFEID == "" || target.Task == "" {
			return fmt.Errorf("%w: a task's end names a sandbox and a task", record.ErrUnrecordable)
		}
	case broker.CommandQuarantineAdd, broker.CommandQuarantineRemove:
		e.alone = "quarantine " + target.SPIFFEID
		if target != (broker.Selector{SPIFFEID: target.SPIFFEID}) || target.SPIFFEID == "" {
			return fmt.Errorf("%w: a quarantine names a SPIFFE ID, a path or a trust domain", record.ErrUnrecordable)
		}
	case broker.CommandRevoke:
	default:
		return fmt.Errorf("%w: no such command", record.ErrUnrecordable)
	}
	body := commandBody{
		Header: e.header(), Target: targetBody(target), Reason: cmd.Reason, Lifts: cmd.Lifts,
	}
	if !at.IsZero() {
		body.At = record.Stored(at)
	}
	if by := cmd.Actor; by != nil && by.Person != "" {
		body.Actor = actorBody{ID: by.Person, Name: by.Name}
	} else if by != nil {
		body.Actor = subjectOf(by.Workload)
	}
	return l.add(ctx, e, body)
}
