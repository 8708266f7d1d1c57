package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var _ broker.Outbox = (*Outbox)(nil)

const (
	// outboxConns are few: notices may wait, and nothing waits for them.
	outboxConns = 2
	// outboxBatch is how many entries one statement reads.
	outboxBatch = 1000
)

// Outbox implements [broker.Outbox] next to a Ledger, on separate connections. Notices follow from the entries. For each
// webhook, Outbox reads the entries from the webhook's position on. One commit stores the new position and the notices
// found.
type Outbox struct {
	pool   *pgxpool.Pool
	holder uuid.UUID
}

// OpenOutbox connects to the schema that a Ledger with the same cfg uses. MaxConns and FlushTimeout are not used.
func OpenOutbox(ctx context.Context, cfg Config) (*Outbox, error) {
	pool, err := openPool(ctx, cfg, outboxConns, func(pc *pgxpool.Config) {
		pc.AfterConnect = postgres.CheckDurable
		pc.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
		pc.ConnConfig.RuntimeParams["statement_timeout"] = "5s"
		pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_custom_plan"
	})
	if err != nil {
		return nil, err
	}
	return &Outbox{pool: pool, holder: uuid.New()}, nil
}

// Close disconnects.
func (o *Outbox) Close() { o.pool.Close() }

// Subscribe implements [broker.Outbox].
func (o *Outbox) Subscribe(ctx context.Context, name string) error {
	_, err := o.pool.Exec(ctx, `
		INSERT INTO webhooks (name, next) SELECT @name, size FROM ledger_head
		ON CONFLICT (name) DO NOTHING`, pgx.NamedArgs{"name": name})
	return postgres.Unavailable("subscribing a webhook", err)
}

// Next implements [broker.Outbox].
func (o *Outbox) Next(ctx context.Context, sub broker.Subscription) (*broker.Notice, error) {
	for {
		seen, err := o.collect(ctx, sub)
		if err != nil || seen < 0 {
			return nil, err
		}
		if seen == outboxBatch {
			continue
		}
		n, moot, err := o.pick(ctx, sub.Name)
		if err != nil || n == nil {
			return nil, err
		}
		if !moot {
			return n, nil
		}
		if err := o.MarkDelivered(ctx, sub.Name, *n); err != nil {
			return nil, err
		}
	}
}

// collectSQL reads on from a webhook's position, unless another Outbox holds the webhook.
const collectSQL = `
WITH held AS MATERIALIZED (
	SELECT name, next FROM webhooks
	WHERE name = @name AND (holder = @holder OR held_until <= now())
	FOR UPDATE SKIP LOCKED
), batch AS MATERIALIZED (
	SELECT e.index, e.id, e.kind, e.time,
		CASE WHEN e.kind IN ('approval.vote', 'approval.remembered', 'approval.withdrawn')
			THEN convert_from(e.body, 'UTF8')::jsonb END AS doc
	FROM held, entries AS e
	WHERE e.index >= held.next
	ORDER BY e.index
	LIMIT @batch
), noted AS (
	INSERT INTO webhook_notices (webhook, entry_index, kind, due)
	SELECT @name, b.index, n.kind, n.due
	FROM batch AS b JOIN issuances AS i ON i.id = b.id, LATERAL (VALUES
		('approval.waiting', now(), b.kind = 'request.pending'),
		('approval.decided', CASE WHEN voided_by(i.status, b.index, i.expires_at) IS NULL THEN i.expires_at ELSE now() END,
			b.kind = 'request.pending'),
		('approval.decided', now(), b.doc ->> 'status' <> b.doc ->> 'was'),
		('approval.break_glass', now(), b.doc ->> 'verdict' = 'break_glass'),
		('credential.unrevoked', b.time + interval '10 seconds', b.kind = 'issuance.revoking')) AS n (kind, due, so)
	WHERE n.so AND n.kind = ANY (@kinds::text[]) AND b.time > now() - interval '1 day'
		AND EXISTS (
			SELECT FROM unnest(@within::text[]) AS w (id)
			WHERE w.id IN (@everywhere, i.spiffe_id) OR starts_with(i.spiffe_id, w.id || '/'))
	ON CONFLICT DO NOTHING
), voided AS (
	INSERT INTO webhook_notices (webhook, entry_index, kind, due)
	SELECT @name, i.entry_index, 'approval.decided', now()
	FROM batch AS b JOIN catalogue_changes AS c ON c.id = b.id, issuances AS i
	WHERE b.kind = 'catalogue.applied' AND 'approval.decided' = ANY (@kinds::text[]) AND b.time > now() - interval '1 day'
		AND i.status IN ('pending', 'approved') AND i.expires_at > b.time - interval '1 minute'
		AND voided_by(i.status, i.entry_index, i.expires_at) = c.version
		AND NOT EXISTS (SELECT FROM batch AS begun WHERE begun.index = i.entry_index)
		AND EXISTS (
			SELECT FROM unnest(@within::text[]) AS w (id)
			WHERE w.id IN (@everywhere, i.spiffe_id) OR starts_with(i.spiffe_id, w.id || '/'))
	ON CONFLICT (webhook, entry_index, kind) DO UPDATE SET due = now()
)
UPDATE webhooks AS w
SET holder = @holder, held_until = now() + @lease::interval, next = coalesce((SELECT max(index) + 1 FROM batch), w.next)
FROM held WHERE w.name = held.name
RETURNING (SELECT count(*) FROM batch)`

// collect stores the notices that follow from further entries, and returns how many entries there were, or -1 if another
// Outbox holds the webhook. No entry records that a request has expired while it waited: collect stores that notice when the
// wait begins, and pick checks it when the wait ends. The same goes for a revocation that takes too long. If a change of the
// catalogue makes the request void, that notice is due at once.
func (o *Outbox) collect(ctx context.Context, sub broker.Subscription) (seen int, err error) {
	var kinds []string
	for _, k := range sub.Kinds {
		kinds = append(kinds, string(k))
	}
	err = o.pool.QueryRow(ctx, collectSQL, pgx.NamedArgs{
		"name": sub.Name, "holder": [16]byte(o.holder), "batch": outboxBatch, "kinds": kinds,
		"within": append([]string{}, sub.Within...), "everywhere": people.Everywhere, "lease": broker.NoticeLease,
	}).Scan(&seen)
	if errors.Is(err, pgx.ErrNoRows) {
		return -1, nil
	}
	return seen, postgres.Unavailable("collecting notices", err)
}

// pickSQL takes the first notice that is due, and reads its contents.
const pickSQL = `
UPDATE webhook_notices AS n SET attempts = n.attempts + 1, due = now() + @lease::interval
FROM (
	SELECT webhook, entry_index, kind FROM webhook_notices
	WHERE webhook = @name AND due <= now()
	ORDER BY entry_index, kind DESC
	LIMIT 1
	FOR UPDATE SKIP LOCKED
) AS f, entries AS e, issuances AS i, LATERAL (SELECT voided_by(i.status, i.entry_index, i.expires_at)) AS voided (version)
WHERE (n.webhook, n.entry_index, n.kind) = (f.webhook, f.entry_index, f.kind) AND e.index = n.entry_index AND i.id = e.id
RETURNING 'msg_' || encode(substr(sha256(convert_to(n.kind, 'UTF8') || e.leaf_hash), 1, 16), 'hex') AS id, n.kind,
	i.id::text AS request, CASE
		WHEN n.kind = 'credential.unrevoked' THEN i.status
		WHEN n.kind = 'approval.waiting' THEN 'pending'
		WHEN e.kind = 'request.pending' THEN CASE WHEN voided.version IS NULL THEN 'expired' ELSE 'void' END
		ELSE convert_from(e.body, 'UTF8')::jsonb ->> 'status' END AS status,
	CASE WHEN e.kind = 'request.pending' AND n.kind = 'approval.decided' THEN coalesce((
		SELECT c.time FROM catalogue_changes AS c WHERE c.kind = 'applied' AND c.version = voided.version), i.expires_at) ELSE e.time END AS time,
	i.spiffe_id, i.scope, i.authority, i.resource, i.task,
	coalesce(CASE n.kind WHEN 'approval.break_glass' THEN i.break_glass ELSE i.approval_group END, '') AS approval_group,
	coalesce(CASE n.kind WHEN 'approval.break_glass' THEN @stand_in ELSE i.approval_quorum END, 0) AS approval_quorum, n.attempts, i.expires_at, n.entry_index,
	CASE
		WHEN n.kind = 'credential.unrevoked' THEN i.status <> 'revoking'
		WHEN n.kind = 'approval.waiting' THEN i.remembered IS NOT NULL OR n.attempts > 1 AND (
			i.status <> 'pending' OR i.expires_at <= now() OR voided.version IS NOT NULL)
		WHEN e.kind = 'request.pending' THEN i.status <> 'pending' AND voided.version IS NULL
		ELSE false END AS moot`

// picked is a row of pickSQL.
type picked struct {
	ID, Kind, Request, Status  string
	Time                       time.Time
	SPIFFEID                   string `db:"spiffe_id"`
	Scope, Authority, Resource string
	Task, ApprovalGroup        string
	ApprovalQuorum, Attempts   int
	ExpiresAt                  *time.Time
	EntryIndex                 int64
	Moot                       bool
}

// pick returns the oldest notice that is due, and whether it is moot. A notice is moot if its request no longer waits or
// never had to, if a person has ended a wait that it reports as expired, or if the revocation that it reports as late has
// ended.
func (o *Outbox) pick(ctx context.Context, name string) (n *broker.Notice, moot bool, err error) {
	rows, err := o.pool.Query(ctx, pickSQL, pgx.NamedArgs{
		"name": name, "lease": broker.NoticeLease, "stand_in": scopes.BreakGlassQuorum,
	})
	p, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[picked])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, postgres.Unavailable("picking a notice", err)
	}
	return &broker.Notice{
		ID: p.ID, Kind: broker.NoticeKind(p.Kind), Time: p.Time.UTC(), Request: p.Request, Status: broker.Status(p.Status),
		SPIFFEID: p.SPIFFEID, Scope: p.Scope, Authority: p.Authority, Resource: p.Resource, Task: p.Task,
		Group: p.ApprovalGroup, Quorum: p.ApprovalQuorum, Attempts: p.Attempts, Index: p.EntryIndex, Expires: record.Instant(p.ExpiresAt),
	}, p.Moot, nil
}

// MarkDelivered implements [broker.Outbox].
func (o *Outbox) MarkDelivered(ctx context.Context, name string, n broker.Notice) error {
	_, err := o.pool.Exec(ctx, `
		DELETE FROM webhook_notices WHERE (webhook, entry_index, kind) = (@name, @index, @kind)`,
		pgx.NamedArgs{"name": name, "index": n.Index, "kind": string(n.Kind)})
	return postgres.Unavailable("ending a notice", err)
}

// PutOff implements [broker.Outbox].
func (o *Outbox) PutOff(ctx context.Context, name string, n broker.Notice, after time.Duration) error {
	_, err := o.pool.Exec(ctx, `
		UPDATE webhook_notices SET due = now() + @after::interval WHERE (webhook, entry_index, kind) = (@name, @index, @kind)`,
		pgx.NamedArgs{"name": name, "index": n.Index, "kind": string(n.Kind), "after": after})
	return postgres.Unavailable("putting off a notice", err)
}

// Release implements [broker.Outbox].
func (o *Outbox) Release(ctx context.Context, name string) error {
	_, err := o.pool.Exec(ctx, `UPDATE webhooks SET held_until = now() WHERE name = @name AND holder = @holder`,
		pgx.NamedArgs{"name": name, "holder": [16]byte(o.holder)})
	return postgres.Unavailable("releasing a webhook", err)
}
