package devstack

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

//go:embed fill.sql
var fillSQL string

// Fill writes the issuances with entry indexes from first up to beyond, for measurements of a ledger of that size. They
// belong to two trust domains, acme.test and other.test. The last one is dated now, and each earlier one three seconds
// before the next. The url must be the schema owner's. Fill drops the indexes of issuances and creates them again at the
// end, as a restore does; nothing else may use the schema during that time. The issuances have no entries, so only
// searches work on such a ledger until FillEntries adds them. Fill reports its progress to progress.
func Fill(ctx context.Context, url string, first, beyond int64, progress func(format string, args ...any)) error {
	return FillAt(ctx, 3*time.Second, url, first, beyond, progress)
}

// FillAt is like Fill with another interval between issuances: a short one leaves many of them live.
func FillAt(ctx context.Context, pace time.Duration, url string, first, beyond int64, progress func(format string, args ...any)) error {
	conn, err := filler(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, `
		SELECT indexname, indexdef FROM pg_indexes
		WHERE schemaname = current_schema() AND tablename = 'issuances' AND indexname <> 'issuances_pkey'`)
	if err != nil {
		return err
	}
	indexes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Definition string }])
	if err != nil {
		return err
	}
	for _, i := range indexes {
		if err := do(ctx, conn, "DROP INDEX "+i.Name); err != nil {
			return err
		}
	}
	if err := inChunks(ctx, url, fillSQL, pgx.NamedArgs{"all": beyond, "pace": pace}, first, beyond, progress); err != nil {
		return err
	}
	if err := do(ctx, conn, `
		INSERT INTO people (id, name, handle, groups, said_at, entry, entry_index)
		SELECT 'https://idp.test#p' || n, 'P', 'p', '{}', now(), gen_random_uuid(), 0 FROM generate_series(0, 199) AS n
		ON CONFLICT DO NOTHING`, `
		INSERT INTO votes (request, voter, verdict, covers, time, note, entry_index)
		SELECT id, 'https://idp.test#p' || entry_index % 200, CASE status WHEN 'approved' THEN 'approve' ELSE 'deny' END, 'request', time, '', entry_index
		FROM issuances WHERE votes > 0
		ON CONFLICT DO NOTHING`,
		fmt.Sprintf(`UPDATE ledger_head SET size = %d`, beyond)); err != nil {
		return err
	}
	for n, i := range indexes {
		if err := do(ctx, conn, i.Definition); err != nil {
			return err
		}
		progress("%d of %d indexes made", n+1, len(indexes))
	}
	// A real database of this size has enough memory for its tables. Load them, so that tests do not time the disk.
	return do(ctx, conn, `VACUUM ANALYZE issuances`, `VACUUM ANALYZE votes`, `CREATE EXTENSION IF NOT EXISTS pg_prewarm`, `
		SELECT pg_prewarm(oid, 'read') FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')`)
}

// FillEntries writes an entry for each issuance from first up to beyond, so that the ledger can append after them. The
// ledger's checkpoints have to catch up first.
func FillEntries(ctx context.Context, url string, first, beyond int64, progress func(format string, args ...any)) error {
	conn, err := filler(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for last := int64(0); ; {
		if err := conn.QueryRow(ctx, `SELECT max(beyond) FROM entry_partitions`).Scan(&last); err != nil {
			return err
		}
		if last > beyond {
			break
		}
		if err := do(ctx, conn, `SELECT add_partition(1 << 22)`); err != nil {
			return err
		}
	}
	err = inChunks(ctx, url, `
		INSERT INTO entries (index, id, time, kind, body, leaf_hash)
		SELECT entry_index, id, time, 'issuance.intent', body, sha256('\x00'::bytea || body)
		FROM issuances, LATERAL (SELECT convert_to(jsonb_build_object('kind', 'issuance.intent', 'id', id, 'reason', reason)::text, 'UTF8') AS body) AS b
		WHERE entry_index >= @first AND entry_index < @beyond`, pgx.NamedArgs{}, first, beyond, progress)
	if err != nil {
		return err
	}
	return do(ctx, conn, `VACUUM ANALYZE entries`)
}

// filler opens a connection that skips triggers and foreign keys.
func filler(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	err = do(ctx, conn, `SET session_replication_role = replica`, `SET synchronous_commit = off`, `SET maintenance_work_mem = '512MB'`)
	if err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

func do(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("filling the ledger: %w: %.60s", err, sql)
		}
	}
	return nil
}

// inChunks runs a statement once for each chunk of the indexes, over several connections.
func inChunks(ctx context.Context, url, sql string, args pgx.NamedArgs, first, beyond int64, progress func(format string, args ...any)) error {
	const chunk, connections = 50000, 3
	var next, done atomic.Int64
	next.Store(first)
	group, ctx := errgroup.WithContext(ctx)
	for range connections {
		group.Go(func() error {
			conn, err := filler(ctx, url)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			for from := next.Add(chunk) - chunk; from < beyond; from = next.Add(chunk) - chunk {
				to := min(from+chunk, beyond)
				part := maps.Clone(args)
				part["first"], part["beyond"] = from, to
				if _, err := conn.Exec(ctx, sql, part); err != nil {
					return fmt.Errorf("filling the ledger: %w", err)
				}
				progress("%d of %d written", done.Add(to-from), beyond-first)
			}
			return nil
		})
	}
	return group.Wait()
}
