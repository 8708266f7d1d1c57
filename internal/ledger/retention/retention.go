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
	"github.com/brevet-dev/brevet/migrations"
	"github.com/jackc/pgx/v5"
)

// ErrNotOwner means that the login does not own the tables. Only their owner drops entries.
var ErrNotOwner = errors.New("the login does not own the ledger's tables")

// Pruner drops old entries as the owner of the database, one partition after another. What it leaves still verifies: the
// hashes of all entries, and the entries that something else depends on which is not dropped.
type Pruner struct{ conn *pgx.Conn }

// Open connects with the owner's URL. It returns ErrNotOwner if the login is not the owner.
func Open(ctx context.Context, databaseURL string) (*Pruner, error) {
	pc, err := migrations.ParseURL(databaseURL)
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
	if err != nil {
		return nil, postgres.Unavailable("listing partitions", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Partition])
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
