package ledger

import (
	"context"
	"errors"
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
		return broker.LedgerStatus{}, l.disk.explain(postgres.Unavailable("connecting", err))
	}
	defer conn.Release()
	s := broker.LedgerStatus{Full: l.disk.full.Load()}
	for _, part := range []func(context.Context, *pgxpool.Conn, *broker.LedgerStatus) error{
		l.pingFor, readSizes, readCheckpoints, l.ReadLeaderships,
	} {
		if err := part(ctx, conn, &s); err != nil {
			return broker.LedgerStatus{}, l.disk.explain(postgres.Unavailable("reading the ledger's status", err))
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

// readSizes counts as unrevoked the credentials for which the sweeper raises an alarm. A lost credential that nobody can revoke is not
// one of them until it has expired.
func readSizes(ctx context.Context, conn *pgxpool.Conn, s *broker.LedgerStatus) error {
	return conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), NOT pg_is_in_recovery(), (SELECT size FROM ledger_head), (
			SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
			WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
		), (
			SELECT count(*) FROM issuances WHERE status IN ('unknown', 'revoking')
				AND NOT (status = 'unknown' AND credential_kind = 'vault' AND NOT leased AND NOT static AND expires_at > now()
					AND (vault_accessor IS NOT NULL OR status_detail = 'unfinished'))
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

// Bootstrap returns when the bootstrap admin's time ends or has ended, and whether it still runs, by the database's clock.
// If the time is over, Bootstrap ends it for good, since a clock may go back. It never reads from a standby, which may not
// know of the end yet.
func (l *Ledger) Bootstrap(ctx context.Context) (end time.Time, on bool, err error) {
	var kept bool
	err = l.live.QueryRow(ctx, `
		SELECT least(d.hour, d.bootstrap_ended_at), d.bootstrap_ended_at IS NULL AND clock_timestamp() < d.hour, d.bootstrap_ended_at IS NOT NULL
		FROM (SELECT created_at + interval '1 hour' AS hour, bootstrap_ended_at FROM deployment) AS d`).Scan(&end, &on, &kept)
	if err != nil {
		return time.Time{}, false, postgres.Unavailable("reading the bootstrap admin's time", err)
	}
	if !on && !kept {
		err = l.EndBootstrap(ctx)
	}
	return end.UTC(), on, err
}

// EndBootstrap ends the bootstrap admin's time for good. It does nothing if that has been done.
func (l *Ledger) EndBootstrap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.flushTimeout)
	defer cancel()
	_, err := l.write.Exec(ctx, `UPDATE deployment SET bootstrap_ended_at = clock_timestamp() WHERE bootstrap_ended_at IS NULL`)
	return postgres.Unavailable("ending the bootstrap admin's time", err)
}

// Session returns the data of a console session. It returns [broker.ErrNotFound] if there is no such session, or if it has
// ended.
func (l *Ledger) Session(ctx context.Context, id [32]byte) ([]byte, error) {
	var data []byte
	err := l.sessions.QueryRow(ctx, `SELECT data FROM sessions WHERE id = $1 AND ends > now() AND data <> ''`, id[:]).Scan(&data)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, broker.ErrNotFound
	}
	return data, postgres.Unavailable("reading a session", err)
}

// KeepSession stores the data of a session, at most 64 KiB, until the session ends. A dropped session stays dropped, even if
// a call that keeps it was under way.
func (l *Ledger) KeepSession(ctx context.Context, id [32]byte, data []byte, ends time.Time) error {
	_, err := l.sessions.Exec(ctx, `
		INSERT INTO sessions (id, data, ends) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET data = excluded.data, ends = excluded.ends WHERE sessions.data <> ''`, id[:], data, ends)
	return postgres.Unavailable("keeping a session", err)
}

// DropSession ends a session, if it exists.
func (l *Ledger) DropSession(ctx context.Context, id [32]byte) error {
	_, err := l.sessions.Exec(ctx, `UPDATE sessions SET data = '' WHERE id = $1`, id[:])
	return postgres.Unavailable("dropping a session", err)
}
