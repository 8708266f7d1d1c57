package ledger

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Status returns the status of the ledger, as a reader sees it. It queries Postgres on each call, and waits for no writer.
func (l *Ledger) Status(ctx context.Context) (broker.LedgerStatus, error) {
	conn, err := l.read.Acquire(ctx)
	if err != nil {
		return broker.LedgerStatus{}, postgres.Unavailable("connecting", err)
	}
	defer conn.Release()
	var s broker.LedgerStatus
	for _, part := range []func(context.Context, *pgxpool.Conn, *broker.LedgerStatus) error{
		l.pingFor, readSizes, readCheckpoints, l.ReadLeaderships,
	} {
		if err := part(ctx, conn, &s); err != nil {
			return broker.LedgerStatus{}, postgres.Unavailable("reading the ledger's status", err)
		}
	}
	return s, nil
}

func (l *Ledger) pingFor(ctx context.Context, conn *pgxpool.Conn, s *broker.LedgerStatus) error {
	if l.now == nil {
		return conn.Ping(ctx)
	}
	began := l.now()
	err := conn.Ping(ctx)
	s.RoundTrip = l.now().Sub(began)
	return err
}

// readSizes counts as unrevoked the credentials for which the sweeper raises an alarm.
func readSizes(ctx context.Context, conn *pgxpool.Conn, s *broker.LedgerStatus) error {
	return conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), NOT pg_is_in_recovery(), (SELECT size FROM ledger_head), (
			SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
			WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
		), (
			SELECT count(*) FROM issuances WHERE status IN ('unknown', 'revoking')
				AND CASE status WHEN 'revoking' THEN status_time < now() - @revoking::interval ELSE time < now() - @unknown::interval END
		)`, pgx.NamedArgs{"revoking": broker.UnrevokedAfter, "unknown": broker.UnknownAfter}).
		Scan(&s.Version, &s.Primary, &s.Entries, &s.Bytes, &s.Unrevoked)
}

// readCheckpoints searches only the last checkpoints for cosignatures, because there are many in all.
func readCheckpoints(ctx context.Context, conn *pgxpool.Conn, s *broker.LedgerStatus) error {
	rows, err := conn.Query(ctx, `
		WITH last AS MATERIALIZED (SELECT size, time FROM checkpoints ORDER BY size DESC LIMIT 1000)
		(SELECT '' AS witness, size, time FROM last ORDER BY size DESC LIMIT 1)
		UNION ALL
		(SELECT DISTINCT ON (witness) witness, size, time FROM cosignatures
		WHERE size >= (SELECT min(size) FROM last) ORDER BY witness, size DESC)`)
	if err != nil {
		return err
	}
	var witness string
	var size int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&witness, &size, &at}, func() error {
		c := broker.Checkpoint{Size: size, Time: at.UTC()}
		if witness == "" {
			s.Checkpoint = c
			return nil
		}
		s.Cosigned = append(s.Cosigned, broker.Cosigned{Witness: witness, Checkpoint: c})
		return nil
	})
	return err
}
