package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/jackc/pgx/v5"
)

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
