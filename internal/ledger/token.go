package ledger

import (
	"context"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/tokencache"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// unended is the condition that an issuance i with time left was not ended. A command counts from its commit, before it is
// carried out.
const unended = `(i.status = 'issued'
	AND NOT EXISTS (
		SELECT FROM task_ends AS e
		WHERE e.spiffe_id = i.spiffe_id AND e.task = i.task AND (e.ended OR e.ends_at <= now()))
	-- The ID itself, each path above it, and its trust domain. Mostly there is no quarantine at all.
	AND NOT (EXISTS (SELECT FROM quarantines) AND EXISTS (
		SELECT FROM generate_series(3, cardinality(string_to_array(i.spiffe_id, '/'))) AS parts, quarantines AS q
		WHERE q.spiffe_id = array_to_string((string_to_array(i.spiffe_id, '/'))[:parts], '/'))))`

// link is a row about an issuance that a token comes from.
type link struct {
	tokencache.Link
	Active    bool
	Size      int64  // of the ledger at that time
	Catalogue string // in force at that time
}

// TokenState implements [broker.Tokens]. An exchanged token is in force while all tokens that it comes from are. A server
// that does not hold what was committed here, because another one has taken over, may not know of an end either.
func (l *Ledger) TokenState(ctx context.Context, id string, claims [32]byte) (broker.TokenState, error) {
	parsed, err := record.ParseID(id)
	if err != nil {
		return broker.TokenState{}, nil //nolint:nilerr // nobody was ever issued such a token
	}
	if err := l.CheckRollback(); err != nil {
		return broker.TokenState{}, err
	}
	cache, asked := l.remember()
	tip := l.tip.Load() // before the query: others append during it
	// The token, and then the tokens that it was exchanged from.
	rows, err := l.tokens.Query(ctx, `
		WITH RECURSIVE chain AS (
			SELECT id, parent, spiffe_id, task, credential_kind, status, expires_at
			FROM issuances WHERE id = @id AND claims_digest = @claims
			UNION ALL
			SELECT p.id, p.parent, p.spiffe_id, p.task, p.credential_kind, p.status, p.expires_at
			FROM chain JOIN issuances AS p ON p.id = chain.parent
		)
		SELECT i.id, i.spiffe_id, i.task, i.credential_kind = 'jwt' AND i.expires_at > now() AND `+unended+` AS active,
			least(i.expires_at, (SELECT e.ends_at FROM task_ends AS e WHERE e.spiffe_id = i.spiffe_id AND e.task = i.task)) - now() AS left,
			(SELECT size FROM ledger_head) AS size, coalesce((SELECT digest FROM catalogue_head), '') AS catalogue
		FROM chain AS i`,
		pgx.NamedArgs{"id": [16]byte(parsed), "claims": claims[:]})
	chain, err := postgres.Collect(rows, err, pgx.RowToStructByName[link])
	if err != nil || len(chain) == 0 {
		return broker.TokenState{}, postgres.Unavailable("reading where a token stands", err)
	}
	if slices.ContainsFunc(chain, func(l link) bool { return !l.Active }) {
		// Use the current cache. If it was created during the query, it may hold answers from before the end.
		if cache := l.cache.Load(); cache != nil {
			cache.Ended(id, chain[0].Size)
		}
		return broker.TokenState{}, nil
	}
	if err := tip.within(chain[0].Size); err != nil {
		return broker.TokenState{}, postgres.Unavailable("reading where a token stands", err)
	}
	if cache != nil {
		links := make([]tokencache.Link, len(chain))
		for i := range chain {
			links[i] = chain[i].Link
		}
		cache.Keep(id, claims, chain[0].Size, asked, links)
	}
	return broker.TokenState{Active: true, Catalogue: chain[0].Catalogue}, nil
}

// AliveAmong implements [broker.Tokens]. It trusts the same servers as TokenState.
func (l *Ledger) AliveAmong(ctx context.Context, holder string, ids []string) ([]string, error) {
	var known [][16]byte
	for _, id := range ids {
		if parsed, err := record.ParseID(id); err == nil { // nobody was ever issued a credential with another id
			known = append(known, parsed)
		}
	}
	if err := l.CheckRollback(); err != nil {
		return nil, err
	}
	tip := l.tip.Load()
	rows, err := l.tokens.Query(ctx, `
		WITH RECURSIVE chain AS (
			SELECT id AS asked, id, parent, spiffe_id, task, status, expires_at
			FROM issuances WHERE id = ANY (@ids::uuid[]) AND spiffe_id = @holder
			UNION ALL
			SELECT chain.asked, p.id, p.parent, p.spiffe_id, p.task, p.status, p.expires_at
			FROM chain JOIN issuances AS p ON p.id = chain.parent
		)
		-- One row at least, so that a server that has lost the records shows its size.
		SELECT i.asked AS id, coalesce(bool_and(i.expires_at > now() AND `+unended+`), false) AS alive, head.size
		FROM ledger_head AS head LEFT JOIN chain AS i ON true GROUP BY i.asked, head.size`,
		pgx.NamedArgs{"ids": known, "holder": holder})
	type answer struct {
		ID    *uuid.UUID
		Alive bool
		Size  int64
	}
	answers, err := postgres.Collect(rows, err, pgx.RowToStructByName[answer])
	if err != nil {
		return nil, postgres.Unavailable("reading which credentials are in force", err)
	}
	var alive []string
	for _, one := range answers {
		if err := tip.within(one.Size); err != nil {
			return nil, postgres.Unavailable("reading which credentials are in force", err)
		}
		if one.Alive {
			alive = append(alive, one.ID.String())
		}
	}
	return alive, nil
}

// EndedIn implements [broker.Tokens]. It includes tokens until a minute after their time, because services whose clocks are
// behind accept them until then.
func (l *Ledger) EndedIn(ctx context.Context, list string) ([]int, error) {
	parsed, err := record.ParseID(list)
	if err != nil {
		return nil, broker.ErrNotFound
	}
	if err := l.CheckRollback(); err != nil {
		return nil, err
	}
	tip := l.tip.Load()
	rows, err := l.tokens.Query(ctx, `
		WITH RECURSIVE chain AS (
			SELECT status_index AS place, parent, spiffe_id, task, status
			FROM issuances WHERE status_list = @list AND expires_at > now() - interval '1 minute'
			UNION ALL
			SELECT chain.place, p.parent, p.spiffe_id, p.task, p.status
			FROM chain CROSS JOIN LATERAL (
				SELECT * FROM issuances AS of WHERE of.id = chain.parent LIMIT 1 -- one by one: most have none
			) AS p
			WHERE chain.parent IS NOT NULL
		)
		SELECT place, bool_and(`+unended+`) AS active, (SELECT size FROM ledger_head) AS size
		FROM chain AS i GROUP BY place ORDER BY place`,
		pgx.NamedArgs{"list": [16]byte(parsed)})
	if err != nil {
		return nil, postgres.Unavailable("reading a status list", err)
	}
	var (
		ended  []int
		place  int
		active bool
		size   int64
	)
	tag, err := pgx.ForEachRow(rows, []any{&place, &active, &size}, func() error {
		if !active {
			ended = append(ended, place)
		}
		return tip.within(size)
	})
	switch {
	case err != nil:
		return nil, postgres.Unavailable("reading a status list", err)
	case tag.RowsAffected() == 0:
		return nil, broker.ErrNotFound
	}
	return ended, nil
}

var _ broker.DPoPReplayCache = (*Ledger)(nil)

// UseProof implements [broker.DPoPReplayCache].
func (l *Ledger) UseProof(ctx context.Context, p dpop.Proof) error {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	tag, err := l.dpopProofs.Exec(ctx, `
		INSERT INTO dpop_seen (digest, until) VALUES ($1, $2) ON CONFLICT DO NOTHING`, p.Digest[:], p.Until)
	switch {
	case err != nil:
		return postgres.Unavailable("remembering a proof", err)
	case tag.RowsAffected() == 0:
		return dpop.ErrReplayed
	}
	return nil
}
