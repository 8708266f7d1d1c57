// Package retention drops old entries of the ledger, and records that. What is left still verifies.
//
// The package must never drop an entry that something depends on which stays, or whose hash is not kept. It drops a whole
// partition, with the entry that records it, or nothing.
package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotOwner means that the login does not own the tables. Only their owner drops entries.
var ErrNotOwner = errors.New("the login does not own the ledger's tables")

// Pruner drops old entries as the owner of the database, one partition after another. What it leaves still verifies: the
// hashes of all entries, and the entries that something else depends on which is not dropped.
type Pruner struct{ conn *pgx.Conn }

// Open connects with the owner's URL. It returns ErrNotOwner if the login is not the owner.
func Open(ctx context.Context, databaseURL string, options ...migrations.URLOption) (*Pruner, error) {
	pc, err := migrations.ParseURL(databaseURL, options...)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, pc.ConnConfig)
	if err != nil {
		return nil, postgres.Unavailable("connecting", err)
	}
	var owner bool
	if err = migrations.CheckServer(ctx, conn); err == nil {
		err = migrations.Check(ctx, conn)
	}
	if err == nil {
		err = conn.QueryRow(ctx, `
			SELECT pg_has_role(c.relowner, 'MEMBER') FROM pg_class AS c WHERE c.oid = 'entries'::regclass`).Scan(&owner)
	}
	switch {
	case err != nil:
		err = postgres.Unavailable("checking the schema", err)
	case !owner:
		err = ErrNotOwner
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return &Pruner{conn}, nil
}

// Close disconnects.
func (r *Pruner) Close(ctx context.Context) { _ = r.conn.Close(ctx) }

// Partition is a range of entries that are kept or dropped together.
type Partition struct {
	First  int64 `json:"first"`
	Beyond int64 `json:"beyond"` // the index after its last entry
	// Stays says why the partition cannot be dropped. It is empty if it can.
	Stays string `json:"stays,omitempty"`
}

// Old returns the partitions that can be dropped because all their entries are older than before, oldest first, and then the
// first partition that stays. It leaves out what was dropped earlier. A partition can be dropped only if none before it
// stays.
func (r *Pruner) Old(ctx context.Context, before time.Time) ([]Partition, error) {
	rows, err := r.conn.Query(ctx, `
		SELECT p.first, p.beyond, '' AS stays FROM entry_partitions AS p
		WHERE p.first >= `+prunedSQL+` ORDER BY p.first`)
	all, err := postgres.Collect(rows, err, pgx.RowToStructByName[Partition])
	if err != nil {
		return nil, postgres.Unavailable("listing partitions", err)
	}
	for i := range all {
		if all[i].Stays, err = r.judge(ctx, all[i], before); err != nil {
			return nil, postgres.Unavailable("looking at a partition", err)
		}
		if all[i].Stays != "" {
			return all[:i+1], nil
		}
	}
	return all, nil
}

// prunedSQL is the index before which entries were already dropped.
const prunedSQL = `coalesce((
	SELECT (convert_from(body, 'UTF8')::jsonb ->> 'beyond')::bigint FROM entries WHERE kind = 'ledger.pruned'
	ORDER BY index DESC LIMIT 1), 0)`

// judge returns why a partition stays. It checks cheap reasons first.
func (r *Pruner) judge(ctx context.Context, p Partition, before time.Time) (stays string, err error) {
	args := pgx.NamedArgs{"first": p.First, "beyond": p.Beyond, "before": before}
	for _, reason := range []struct{ says, sql string }{
		{"its last entry may still come", `SELECT NOT EXISTS (SELECT FROM entries WHERE index = @beyond::bigint - 1)`},
		{"not all of its entries are that old", `SELECT EXISTS (SELECT FROM entries WHERE index = @beyond::bigint - 1 AND time >= @before)`},
		{"no checkpoint covers it yet", `SELECT NOT EXISTS (SELECT FROM checkpoints WHERE size >= @beyond)`},
		// A redeemed request may be redeemed once more, and a leased credential is alive until Vault says otherwise.
		{"some of its requests are not over", `
			SELECT EXISTS (
				SELECT FROM issuances
				WHERE entry_index >= @first AND entry_index < @beyond AND (status IN ('intent', 'unknown', 'revoking')
					OR status IN ('issued', 'pending', 'approved', 'redeemed') AND (leased AND status = 'issued'
						OR expires_at > now() - interval '10 minutes')))`},
		{"not all of its entries are that old", `
			SELECT EXISTS (SELECT FROM entries WHERE index >= @first AND index < @beyond AND time >= @before)`},
		{"the hashes of its entries are not all kept, or are others", `
			SELECT (@beyond::bigint - @first::bigint) / 256 <> count(*) FROM tree_tiles AS t
			WHERE t.level = 0 AND t.number >= @first::bigint / 256 AND t.number < @beyond::bigint / 256 AND t.hashes = (
				SELECT string_agg(e.leaf_hash, ''::bytea ORDER BY e.index) FROM entries AS e
				WHERE e.index >= t.number * 256 AND e.index < t.number * 256 + 256)`},
	} {
		var so bool
		if err := r.conn.QueryRow(ctx, reason.sql, args).Scan(&so); err != nil || so {
			return reason.says, err
		}
	}
	return "", nil
}

// Dropped is the result of dropping a partition.
type Dropped struct {
	Partition
	Entries int64 `json:"entries"` // that were dropped, including those of earlier partitions that had been kept until now
	Left    int64 `json:"left"`    // that remain, of all up to the partition's end
	Index   int64 `json:"index"`   // of the entry that records the drop
}

// Drop drops the first of the partitions that Old has returned, if it can be dropped. It waits for readers while others go
// on appending. It calls report, which may be nil, with each step. Drop does everything, with an entry that records it, or
// nothing.
func (r *Pruner) Drop(ctx context.Context, p Partition, before time.Time, report func(line string)) (Dropped, error) {
	if p.Stays != "" {
		return Dropped{}, fmt.Errorf("entries %d to %d stay: %s", p.First, p.Beyond-1, p.Stays)
	}
	if report == nil {
		report = func(string) {}
	}
	done := Dropped{Partition: p}
	err := pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		return (&pruning{Dropped: &done, tx: tx, before: before, report: report}).run(ctx)
	})
	if errors.Is(err, ErrMoved) || errors.Is(err, ErrReadOn) {
		return Dropped{}, err
	}
	return done, postgres.Unavailable("dropping entries", err)
}

var (
	// ErrMoved means that something changed that a prune was about to drop. Nothing was dropped.
	ErrMoved = errors.New("something has happened to what was to be dropped: try again")
	// ErrReadOn means that a prune waited too long for a reader of the entries. Nothing was dropped.
	ErrReadOn = errors.New("somebody reads the ledger for long: try again")
)

const (
	// Appends wait while a prune waits for readers. So a prune waits for a short time only, and tries often.
	swapPatience = "300ms"
	swapEvery    = time.Second
	swapTries    = 300
)

// kindPruned is the kind of the entry that records dropped entries.
const kindPruned = "ledger.pruned"

// pruning drops one partition in one transaction. Everything slow comes before the short time in which it blocks appends.
type pruning struct {
	*Dropped
	tx     pgx.Tx
	before time.Time
	report func(line string)
	size   int64  // of the ledger when it began
	sum    string // SHA-256 of the indexes of what is left
}

func (p *pruning) run(ctx context.Context) error {
	for _, step := range []struct {
		says string
		do   func(context.Context) error
	}{
		{"looking for what stays", p.choose},
		{"dropping records", p.forget},
		{"writing what stays", p.keep},
		{"waiting for readers", p.lock},
		{"dropping entries", p.swap},
	} {
		p.report(fmt.Sprintf("entries %d to %d: %s", p.First, p.Beyond-1, step.says))
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruning) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := p.tx.Exec(ctx, sql, pgx.NamedArgs{"beyond": p.Beyond}); err != nil {
			return err
		}
	}
	return nil
}

// choose lists what goes. A request goes whole or not at all: it stays if one of its entries comes after the range. With it
// stay the requests that it was approved by or exchanged from.
func (p *pruning) choose(ctx context.Context) error {
	err := p.exec(ctx, `SET LOCAL work_mem = '256MB'`,
		`SELECT pg_advisory_xact_lock(hashtextextended('brevet/prune/' || current_schema(), 0))`,
		`CREATE TEMP TABLE going (id uuid PRIMARY KEY) ON COMMIT DROP`,
		`CREATE TEMP TABLE ended (spiffe_id text COLLATE "C", task text COLLATE "C", PRIMARY KEY (spiffe_id, task)) ON COMMIT DROP`)
	if err != nil {
		return err
	}
	var next bool
	err = p.tx.QueryRow(ctx, `
		SELECT h.size, `+prunedSQL+` = @first AND EXISTS (SELECT FROM entry_partitions WHERE first = @first AND beyond = @beyond)
		FROM ledger_head AS h`, pgx.NamedArgs{"first": p.First, "beyond": p.Beyond}).Scan(&p.size, &next)
	switch {
	case err != nil:
		return err
	case !next:
		return ErrMoved
	}
	return p.exec(ctx, `
		INSERT INTO going
		WITH RECURSIVE stays AS (
			SELECT f.id FROM (
				SELECT i.id FROM entries AS e JOIN issuances AS i ON i.id = e.id WHERE e.index >= @beyond AND i.entry_index < @beyond
				UNION SELECT approves FROM issuances WHERE entry_index >= @beyond AND approves IS NOT NULL
				UNION SELECT remembered FROM issuances WHERE entry_index >= @beyond AND remembered IS NOT NULL
				UNION SELECT parent FROM issuances WHERE entry_index >= @beyond AND parent IS NOT NULL
			) AS f
			UNION
			SELECT t.id FROM stays AS s, LATERAL (
				SELECT approves AS id FROM issuances WHERE id = s.id AND approves IS NOT NULL
				UNION ALL SELECT remembered FROM issuances WHERE id = s.id AND remembered IS NOT NULL
				UNION ALL SELECT parent FROM issuances WHERE id = s.id AND parent IS NOT NULL
				UNION ALL SELECT id FROM issuances WHERE approves = s.id
			) AS t
		)
		SELECT id FROM issuances WHERE entry_index < @beyond EXCEPT SELECT id FROM stays`,
		`ANALYZE going`)
}

// forget deletes the records of what goes, the reports of calls, and the ends of tasks that no later entry mentions.
func (p *pruning) forget(ctx context.Context) error {
	return p.exec(ctx, `SET LOCAL brevet.pruning = 'on'`, `
		DELETE FROM votes WHERE request IN (SELECT id FROM going)`, `
		DELETE FROM uses WHERE issuance IN (SELECT id FROM going)`, `
		DELETE FROM call_reports WHERE entry_index < @beyond`, `
		DELETE FROM webhook_notices WHERE entry_index < @beyond`, `
		DELETE FROM issuances WHERE id IN (SELECT id FROM going)`, `
		WITH later AS MATERIALIZED (
			SELECT o.target ->> 'spiffe_id' AS spiffe_id, o.target ->> 'task' AS task
			FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb -> 'target' AS target) AS o
			WHERE e.kind = 'task.end' AND e.index >= @beyond
		), gone AS (
			DELETE FROM task_ends AS t
			WHERE t.entry_index < @beyond AND t.ended
				AND NOT EXISTS (SELECT FROM later AS l WHERE (l.spiffe_id, l.task) = (t.spiffe_id, t.task))
			RETURNING t.spiffe_id, t.task
		)
		INSERT INTO ended SELECT * FROM gone`, `SET LOCAL brevet.pruning = 'off'`)
}

func (p *pruning) table() string { return fmt.Sprintf("entries_to_%d", p.Beyond) }

// keep writes what stays, of this partition and of earlier ones, into a partition that replaces them. All entries about
// catalogues, people, quarantines and earlier prunes stay.
func (p *pruning) keep(ctx context.Context) error {
	err := p.exec(ctx, `CREATE TABLE `+p.table()+` (LIKE entries INCLUDING ALL)`, `
		INSERT INTO `+p.table()+`
		SELECT e.* FROM entries AS e
		WHERE e.index < @beyond AND e.kind NOT IN ('call.refused', 'credentials.revoke', 'calls.recorded')
			AND NOT EXISTS (SELECT FROM going AS g WHERE g.id = e.id)
			AND (e.kind <> 'task.end' OR EXISTS (
				SELECT FROM task_ends AS t
				WHERE t.spiffe_id = convert_from(e.body, 'UTF8')::jsonb #>> '{target,spiffe_id}'
					AND t.task = convert_from(e.body, 'UTF8')::jsonb #>> '{target,task}'))`,
		`SELECT guard_partition('`+p.table()+`')`)
	if err != nil {
		return err
	}
	var had int64
	err = p.tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM entries WHERE index < @beyond), count(*),
			encode(sha256(coalesce(string_agg(int8send(index), ''::bytea ORDER BY index), '')), 'hex')
		FROM `+p.table(), pgx.NamedArgs{"beyond": p.Beyond}).Scan(&had, &p.Left, &p.sum)
	p.Entries = had - p.Left
	return err
}

// lock blocks all access to the entries and to the head. It locks them in the same order as an append.
func (p *pruning) lock(ctx context.Context) error {
	for range swapTries {
		err := pgx.BeginFunc(ctx, p.tx, func(inner pgx.Tx) error {
			for _, sql := range []string{
				`SET LOCAL lock_timeout = '` + swapPatience + `'`, `LOCK TABLE entries IN ACCESS EXCLUSIVE MODE`,
				`SELECT FROM ledger_head FOR UPDATE`, `SET LOCAL lock_timeout = 0`,
			} {
				if _, err := inner.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		})
		var refused *pgconn.PgError
		if err == nil || !errors.As(err, &refused) || refused.Code != "55P03" && refused.Code != "40P01" {
			return err
		}
		wait.For(ctx, swapEvery)
	}
	return ErrReadOn
}

// swap appends the entry that records the prune, and replaces the old partitions with what stays.
func (p *pruning) swap(ctx context.Context) error {
	var moved bool
	err := p.tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM entries AS e JOIN going AS g ON g.id = e.id WHERE e.index >= @size)
			OR EXISTS (
				SELECT FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb -> 'target' AS target) AS o, ended AS t
				WHERE e.kind = 'task.end' AND e.index >= @size
					AND (t.spiffe_id, t.task) = (o.target ->> 'spiffe_id', o.target ->> 'task'))`,
		pgx.NamedArgs{"size": p.size}).Scan(&moved)
	if err == nil && moved {
		return ErrMoved
	}
	if err == nil {
		err = p.tell(ctx)
	}
	if err != nil {
		return err
	}
	rows, err := p.tx.Query(ctx, `SELECT name FROM entry_partitions WHERE beyond <= @beyond`, pgx.NamedArgs{"beyond": p.Beyond})
	names, err := postgres.Collect(rows, err, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		was := pgx.Identifier{name}.Sanitize()
		if err := p.exec(ctx, `ALTER TABLE entries DETACH PARTITION `+was, `DROP TABLE `+was); err != nil {
			return err
		}
	}
	return p.exec(ctx, fmt.Sprintf(`ALTER TABLE entries ATTACH PARTITION %s FOR VALUES FROM (0) TO (%d)`, p.table(), p.Beyond))
}

// prunedBody is the body of the entry that records dropped entries. It identifies what is left of all entries before Beyond
// by the SHA-256 of their indexes, of eight bytes each, the most significant one first.
type prunedBody struct {
	record.Header

	By     string    `json:"actor"`
	Before time.Time `json:"before"`
	First  int64     `json:"first"`
	Beyond int64     `json:"beyond"`
	Left   leftBody  `json:"left"`
}

type leftBody struct {
	Count  int64  `json:"count"`
	SHA256 string `json:"sha256"`
}

// tell appends the entry that records the prune.
func (p *pruning) tell(ctx context.Context) error {
	id := uuid.Must(uuid.NewV7()) // it cannot fail, because crypto/rand cannot
	body := prunedBody{
		Header: record.Header{Version: record.BodyVersion, Kind: kindPruned, ID: id.String()}, Before: record.Stored(p.before), First: p.First, Beyond: p.Beyond,
		Left: leftBody{p.Left, p.sum},
	}
	if err := p.tx.QueryRow(ctx, `SELECT clock_timestamp(), session_user`).Scan(&body.Time, &body.By); err != nil {
		return err
	}
	body.Time = record.Stored(body.Time)
	encoded, leaf, err := record.Encode(body)
	if err != nil {
		return err
	}
	return p.tx.QueryRow(ctx, `
		WITH head AS (UPDATE ledger_head SET size = size + 1 RETURNING size - 1 AS index)
		INSERT INTO entries (index, id, time, kind, body, leaf_hash)
		SELECT head.index, @id, @time, @kind, @body, @leaf FROM head RETURNING index`,
		pgx.NamedArgs{"id": [16]byte(id), "time": body.Time, "kind": body.Kind, "body": encoded, "leaf": leaf[:]}).Scan(&p.Index)
}
