package ledger

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// liveColumns are the columns of liveRow. cause is why a record has to end, if its end has not begun.
const liveColumns = `
	id, spiffe_id, task, scope, credential_kind, status, coalesce(cause, status_detail, '') AS status_detail,
	coalesce(actor, '') AS actor, status_time, expires_at, leased, static,
	coalesce(vault_accessor, '') AS vault_accessor, coalesce(vault_lease, '') AS vault_lease`

type liveRow struct {
	ID                          uuid.UUID
	SPIFFEID                    string `db:"spiffe_id"`
	Task, Scope, CredentialKind string
	Status, StatusDetail, Actor string
	StatusTime, ExpiresAt       time.Time
	Leased, Static              bool
	VaultAccessor, VaultLease   string
}

// ofOne are the conditions of a selector that few of all records meet.
const ofOne = `(@id::uuid IS NULL OR id = @id) AND (@spiffe_id::text = '' OR spiffe_id = @spiffe_id)`

// ofMany are the conditions that a range of SPIFFE IDs meets: all IDs of a trust domain lie between "spiffe://name/" and
// "spiffe://name0".
var ofMany = `(@prefix::text = '' OR ` + record.Below("prefix") + `)
	AND (@trust_domain::text = ''
		OR (spiffe_id >= 'spiffe://' || @trust_domain || '/' AND spiffe_id < 'spiffe://' || @trust_domain || '0'))`

// Live implements [broker.LiveCredentials].
func (l *Ledger) Live(ctx context.Context, sel broker.Selector, reach broker.Reach, page broker.LivePage) ([]broker.LiveCredential, error) {
	if page.Limit < 1 {
		return nil, record.ErrPageSize
	}
	id, isID := record.OptionalID(sel.ID)
	after, isPlace := record.OptionalID(page.After)
	if !isID || !isPlace || record.ReachesNothing(reach) ||
		record.Unmatchable(sel.SPIFFEID, sel.SPIFFEIDPrefix, sel.TrustDomain, sel.Task, sel.Scope, sel.Catalogue) {
		return nil, nil
	}
	args := pgx.NamedArgs{
		"after": after, "leased": page.Leased, "id": id,
		"spiffe_id": sel.SPIFFEID, "prefix": strings.TrimSuffix(sel.SPIFFEIDPrefix, "/"), "trust_domain": sel.TrustDomain,
		"task": sel.Task, "scope": sel.Scope, "catalogue": sel.Catalogue, "before": page.Before, "limit": page.Limit,
	}
	// The query has three parts, so that each has an index: credentials with time left, unfinished ones, and ones that Vault
	// may not have ended. These are few among all records that are over, which Postgres cannot know. OFFSET keeps it from
	// searching all records by scope or trust domain.
	rows, err := l.live.Query(ctx, `
		SELECT `+liveColumns+`
		FROM (
			(SELECT *, NULL AS cause FROM issuances
			WHERE status IN ('intent', 'issued', 'unknown', 'revoking') AND expires_at > now()
				AND date_bin('1 hour', expires_at, '2000-01-01 00:00:00Z') >= date_bin('1 hour', now(), '2000-01-01 00:00:00Z')
				AND `+ofOne+` AND `+ofMany+` AND (@after::uuid IS NULL OR id > @after) OFFSET 0)
			UNION ALL
			SELECT *, NULL AS cause FROM issuances WHERE status IN ('intent', 'unknown', 'revoking') AND expires_at <= now()
			UNION ALL
			(SELECT *, NULL AS cause FROM issuances WHERE status = 'issued' AND leased AND expires_at <= now() AND `+ofOne+` OFFSET 0)
		) AS alive
		WHERE `+record.Within(reach, "trust_domain", args)+`
			AND (@after::uuid IS NULL OR id > @after)
			AND (NOT @leased::boolean OR leased)
			AND (@id::uuid IS NULL OR id = @id)
			AND (@spiffe_id::text = '' OR spiffe_id = @spiffe_id)
			AND (@prefix::text = '' OR `+record.Below("prefix")+`)
			AND (@trust_domain::text = '' OR trust_domain = @trust_domain)
			AND (@task::text = '' OR task = @task)
			AND (@scope::text = '' OR scope = @scope)
			AND (@catalogue::text = '' OR catalogue = @catalogue)
			AND (@before::bigint = 0 OR entry_index < @before)
		ORDER BY id
		LIMIT @limit`, args)
	return collectLive(rows, err, "listing what is alive")
}

// orderGrace is how long a command stands before the sweeper carries it out. The replica that took the command is doing so
// already, and more likely alive than not.
const orderGrace = 2 * time.Second

// unexecuted selects the credentials that a command in force should have ended, each once. It goes from the commands, of
// which few are new, to the records through issuances_alive, hour by hour of their ends. No credential lives longer than 24
// hours, so an ended task or a denial of an approved request does not matter longer either. Each quarantine can yield up to
// the limit, because a record that was moved does not come again.
const unexecuted = `
	WITH alive_in AS MATERIALIZED (
		SELECT array_agg(date_bin('1 hour', now(), '2000-01-01 00:00:00Z') + n * interval '1 hour') AS hours
		FROM generate_series(0, 26) AS n
	), by_task AS MATERIALIZED (
		SELECT i.* FROM task_ends AS e JOIN issuances AS i ON i.spiffe_id = e.spiffe_id AND i.task = e.task
		WHERE e.ended AND e.since < now() - @grace::interval AND e.since > greatest(@orders, now() - interval '25 hours')
			AND i.status = 'issued' AND NOT i.static AND i.expires_at > now()
			AND date_bin('1 hour', i.expires_at, '2000-01-01 00:00:00Z') = ANY ((SELECT hours FROM alive_in)::timestamptz[])
		LIMIT @limit
	), by_quarantine AS MATERIALIZED (
		SELECT i.* FROM quarantines AS q CROSS JOIN LATERAL (
			(SELECT * FROM issuances AS same
			WHERE same.spiffe_id = q.spiffe_id
				AND same.status = 'issued' AND NOT same.static AND same.expires_at > now()
				AND date_bin('1 hour', same.expires_at, '2000-01-01 00:00:00Z') = ANY ((SELECT hours FROM alive_in)::timestamptz[])
			LIMIT @limit)
			UNION ALL
			(SELECT * FROM issuances AS below
			WHERE below.spiffe_id >= q.spiffe_id || '/' AND below.spiffe_id < q.spiffe_id || '0'
				AND below.status = 'issued' AND NOT below.static AND below.expires_at > now()
				AND date_bin('1 hour', below.expires_at, '2000-01-01 00:00:00Z') = ANY ((SELECT hours FROM alive_in)::timestamptz[])
			LIMIT @limit)
		) AS i
		WHERE q.since < now() - @grace::interval AND q.since > @orders
	), by_no AS MATERIALIZED (
		SELECT i.* FROM votes AS v CROSS JOIN LATERAL (
			SELECT v.request AS id UNION ALL SELECT r.id FROM issuances AS r WHERE r.remembered = v.request
		) AS refused JOIN issuances AS i ON i.approves = refused.id
		WHERE v.verdict = 'deny' AND v.time < now() - @grace::interval AND v.time > greatest(@orders, now() - interval '25 hours')
			AND i.approves IS NOT NULL AND i.status = 'issued' AND NOT i.static AND i.expires_at > now()
		LIMIT @limit
	), by_parent AS MATERIALIZED (
		SELECT i.* FROM issuances AS i JOIN issuances AS p ON p.id = i.parent
		WHERE i.parent IS NOT NULL AND i.status = 'issued' AND i.expires_at > now()
			AND p.status <> 'issued' AND p.status_time < now() - @grace::interval
		LIMIT @limit
	)
	SELECT DISTINCT ON (id) * FROM (
		SELECT *, @task_ended::text AS cause FROM by_task UNION ALL SELECT *, @quarantined FROM by_quarantine
		UNION ALL SELECT *, @revoked FROM by_no UNION ALL SELECT *, @parent_ended FROM by_parent
	) AS each_way ORDER BY id, cause DESC`

// Overdue implements [broker.LiveCredentials]. If there are more records than the limit, it returns a random choice. So
// records that make no progress for a long time cannot keep the others waiting. Tokens of GitHub come last, because a GitHub that does not
// answer can make many of them wait for an hour.
func (l *Ledger) Overdue(ctx context.Context, due broker.Overdue) ([]broker.LiveCredential, error) {
	rows, err := l.live.Query(ctx, `
		SELECT `+liveColumns+`
		FROM (
			SELECT i.*, NULL AS cause FROM issuances AS i WHERE status = 'intent' AND status_time < @unfinished
			UNION ALL
			SELECT i.*, NULL FROM issuances AS i WHERE status IN ('unknown', 'revoking')
			UNION ALL
			SELECT i.*, NULL FROM issuances AS i WHERE status = 'issued' AND leased AND expires_at < @expired
				AND (expires_at < @overdue OR credential_kind = @at_once)
			UNION ALL
			(SELECT * FROM (`+unexecuted+`) AS each)
		) AS alive
		ORDER BY coalesce(credential_kind, '') = @at_once, random()
		LIMIT @limit`, pgx.NamedArgs{
		"unfinished": due.Unfinished, "overdue": due.Overdue, "expired": due.Expired, "at_once": scopes.KindGitHub, "limit": due.Limit,
		"orders": due.Orders, "grace": orderGrace, "task_ended": broker.CauseTaskEnded, "quarantined": broker.CauseQuarantined,
		"revoked": broker.CauseRevoked, "parent_ended": broker.CauseParentEnded,
	})
	return collectLive(rows, err, "listing what is due")
}

// Deadlines implements [broker.LiveCredentials].
func (l *Ledger) Deadlines(ctx context.Context, limit int) ([]broker.Task, error) {
	rows, err := l.live.Query(ctx, `
		SELECT spiffe_id, task FROM task_ends WHERE NOT ended AND ends_at <= now() ORDER BY ends_at LIMIT @limit`,
		pgx.NamedArgs{"limit": limit})
	tasks, err := postgres.Collect(rows, err, pgx.RowToStructByPos[broker.Task])
	return tasks, postgres.Unavailable("listing deadlines", err)
}

// RequestsOfEndedTasks implements [broker.LiveCredentials].
func (l *Ledger) RequestsOfEndedTasks(ctx context.Context, task broker.Task, limit int) ([]broker.EndedTaskRequest, error) {
	if record.Unmatchable(task.SPIFFEID, task.Task) {
		return nil, nil
	}
	rows, err := l.live.Query(ctx, `
		SELECT i.id::text, i.status, i.votes, coalesce(ordered.actor ->> 'id', ordered.actor ->> 'spiffe_id', '')
		FROM issuances AS i JOIN task_ends AS t ON t.spiffe_id = i.spiffe_id AND t.task = i.task
			LEFT JOIN entries AS e ON e.index = t.entry_index,
			LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb -> 'actor') AS ordered (actor)
		WHERE t.ended AND i.status IN ('pending', 'approved') AND i.expires_at > now() AND i.entry_index > `+record.InForceSince+`
			AND (@spiffe_id::text = '' OR i.spiffe_id = @spiffe_id AND i.task = @task)
		LIMIT @limit`,
		pgx.NamedArgs{"spiffe_id": task.SPIFFEID, "task": task.Task, "limit": limit})
	found, err := postgres.Collect(rows, err, pgx.RowToStructByPos[broker.EndedTaskRequest])
	return found, postgres.Unavailable("listing requests of ended tasks", err)
}

// TaskEnded implements [broker.LiveCredentials].
func (l *Ledger) TaskEnded(ctx context.Context, task broker.Task, by time.Time) (command string, err error) {
	if record.Unmatchable(task.SPIFFEID, task.Task) {
		return "", broker.ErrNotFound
	}
	args := pgx.NamedArgs{"spiffe_id": task.SPIFFEID, "task": task.Task, "by": nil}
	if !by.IsZero() {
		args["by"] = by
	}
	rows, err := l.live.Query(ctx, `
		SELECT command::text FROM task_ends
		WHERE spiffe_id = @spiffe_id AND task = @task AND (ended OR ends_at <= @by::timestamptz)`, args)
	command, err = postgres.CollectOne(rows, err, pgx.RowTo[string])
	if errors.Is(err, pgx.ErrNoRows) {
		return "", broker.ErrNotFound
	}
	return command, postgres.Unavailable("reading the end of a task", err)
}

// Quarantines implements [broker.LiveCredentials]. The reach of a sandbox holds only the quarantine of exactly that sandbox.
// The reach of a path holds the quarantines at or below the path, but not that of the whole trust domain.
func (l *Ledger) Quarantines(ctx context.Context, reach broker.Reach) ([]broker.Quarantine, error) {
	if record.ReachesNothing(reach) {
		return nil, nil
	}
	args := pgx.NamedArgs{}
	rows, err := l.live.Query(ctx, `
		SELECT spiffe_id, since, coalesce(actor, ''), reason, command::text, entry_index FROM quarantines
		WHERE `+record.Within(reach, "split_part(spiffe_id, '/', 3)", args)+`
		ORDER BY spiffe_id`, args)
	found, err := postgres.Collect(rows, err, pgx.RowToStructByPos[broker.Quarantine])
	for i := range found {
		found[i].Since = found[i].Since.UTC()
	}
	return found, postgres.Unavailable("listing quarantines", err)
}

func collectLive(rows pgx.Rows, err error, doing string) ([]broker.LiveCredential, error) {
	found, err := postgres.Collect(rows, err, pgx.RowToStructByName[liveRow])
	if err != nil {
		return nil, postgres.Unavailable(doing, err)
	}
	all := make([]broker.LiveCredential, len(found))
	for i, h := range found {
		all[i] = broker.LiveCredential{
			ID: h.ID.String(), Subject: h.SPIFFEID, Task: h.Task, Scope: h.Scope, Kind: h.CredentialKind,
			Status: broker.Status(h.Status), Detail: h.StatusDetail, Actor: h.Actor,
			StatusTime: h.StatusTime.UTC(), Expires: h.ExpiresAt.UTC(), Leased: h.Leased, Static: h.Static,
			VaultLease: broker.VaultLease{Accessor: h.VaultAccessor, Lease: h.VaultLease},
		}
	}
	return all, nil
}
