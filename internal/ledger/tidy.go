package ledger

import (
	"context"
	"errors"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
)

// Prune implements [broker.Election].
func (l *Ledger) Prune(ctx context.Context) error {
	return errors.Join(
		l.prune(ctx, "pruning the limits", `
			DELETE FROM rate_limits WHERE key = ANY (ARRAY(
				SELECT key FROM rate_limits WHERE tat < now() - interval '1 hour' LIMIT $1 FOR UPDATE SKIP LOCKED))`),
		l.prune(ctx, "pruning the proofs", `
			DELETE FROM dpop_seen WHERE digest = ANY (ARRAY(
				SELECT digest FROM dpop_seen WHERE until < now() - interval '1 minute' ORDER BY until LIMIT $1))`),
		l.prune(ctx, "pruning the sessions", `
			DELETE FROM sessions WHERE id = ANY (ARRAY(SELECT id FROM sessions WHERE ends < now() ORDER BY ends LIMIT $1))`),
	)
}

// prune deletes few rows with each statement, because a caller that counts against one of them waits.
func (l *Ledger) prune(ctx context.Context, doing, statement string) error {
	const few = 1000
	for {
		tag, err := l.write.Exec(ctx, statement, few)
		if err != nil || tag.RowsAffected() < few {
			return postgres.Unavailable(doing, err)
		}
	}
}

// Tidy implements [broker.Election].
func (l *Ledger) Tidy(ctx context.Context) error {
	_, err := l.write.Exec(ctx, `SELECT tidy_terms()`)
	return postgres.Unavailable("tidying the terms", err)
}
