package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/jackc/pgx/v5"
)

// Sessions are read and written on the connections of proofs: those look at nothing but the primary, and wait for nobody.

// Session returns what a session of the console holds, else [broker.ErrNotFound]: also once it has ended.
func (l *Ledger) Session(ctx context.Context, id [32]byte) ([]byte, error) {
	var data []byte
	err := l.proofs.QueryRow(ctx, `SELECT data FROM sessions WHERE id = $1 AND ends > now()`, id[:]).Scan(&data)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, broker.ErrNotFound
	}
	return data, unavailable("reading a session", err)
}

// KeepSession has a session hold data, of 64 KiB at most, until it ends.
func (l *Ledger) KeepSession(ctx context.Context, id [32]byte, data []byte, ends time.Time) error {
	_, err := l.proofs.Exec(ctx, `
		INSERT INTO sessions (id, data, ends) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET data = excluded.data, ends = excluded.ends`, id[:], data, ends)
	return unavailable("keeping a session", err)
}

// DropSession forgets a session, if it is there.
func (l *Ledger) DropSession(ctx context.Context, id [32]byte) error {
	_, err := l.proofs.Exec(ctx, `DELETE FROM sessions WHERE id = $1`, id[:])
	return unavailable("dropping a session", err)
}
