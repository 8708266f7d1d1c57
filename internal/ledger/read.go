package ledger

import (
	"context"
	"errors"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Get implements [broker.Ledger].
func (l *Ledger) Get(ctx context.Context, id string, reach broker.Reach) (*broker.View, error) {
	parsed, err := record.ParseID(id)
	if err != nil || record.ReachesNothing(reach) {
		return nil, broker.ErrNotFound
	}
	args := pgx.NamedArgs{"id": [16]byte(parsed)}
	rows, err := l.read.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE id = @id AND `+record.Within(reach, "trust_domain", args), args)
	if err != nil {
		return nil, postgres.Unavailable("reading a record", err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[record.Row])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, broker.ErrNotFound
	}
	if err != nil {
		return nil, postgres.Unavailable("reading a record", err)
	}
	return found.View()
}

// claim is a sandbox's use of an idempotency key.
type claim struct{ subject, key string }

// readEarlier returns the records that made the claims. It reads on the writer's connection, because readers may have all of
// theirs in use.
func readEarlier(ctx context.Context, conn *pgxpool.Conn, claims []claim) (map[claim]*broker.View, error) {
	var subjects, keys []string
	for _, c := range claims {
		subjects, keys = append(subjects, c.subject), append(keys, c.key)
	}
	rows, err := conn.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE (spiffe_id, idempotency_key) IN (SELECT * FROM unnest(@subjects::text[], @keys::text[]))`,
		pgx.NamedArgs{"subjects": subjects, "keys": keys})
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[record.Row])
	if err != nil {
		return nil, err
	}
	earlier := make(map[claim]*broker.View, len(found))
	for i := range found {
		view, err := found[i].View()
		if err != nil {
			return nil, err
		}
		earlier[claim{found[i].SPIFFEID, found[i].IdempotencyKey}] = view
	}
	return earlier, nil
}
