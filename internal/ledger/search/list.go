package search

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// List is that of [broker.Ledger]. Entries are numbered from 0, so a page that ends on the record with index 0 is the last
// one, and a Next of zero always means the end. A record appears in the list only after those before it. So a reader who
// pages while others write sees neither gaps nor duplicates.
func (r *Searcher) List(ctx context.Context, q broker.Query, reach broker.Reach) (broker.Page, error) {
	if q.Limit < 1 || q.Limit > record.MaxPage {
		return broker.Page{}, record.ErrPageSize
	}
	if record.ReachesNothing(reach) || unmatchable(q) {
		return broker.Page{}, nil
	}
	s := newSearch(q, reach)
	pool := r.poolFor(reach)
	if err := s.bound(ctx, pool); err != nil {
		return broker.Page{}, searching("bounding a search", err)
	}
	sql := s.sql()
	if sql == "" {
		return s.turned(broker.Page{}), nil
	}
	rows, err := pool.Query(ctx, sql, s.args)
	if err != nil {
		return broker.Page{}, searching("listing records", err)
	}
	page, err := record.PageOf(rows, q.Limit)
	if err != nil {
		return broker.Page{}, searching("listing records", err)
	}
	return s.turned(page), nil
}

// turned puts a page that was read towards newer records into the order of the other pages, and sets its Next and Prev.
func (s *search) turned(page broker.Page) broker.Page {
	further := page.Next != 0
	if s.q.From == 0 {
		if s.q.Before != 0 {
			page.Prev = s.q.Before
			if len(page.Records) > 0 {
				page.Prev = page.Records[0].Index + 1
			}
		}
		return page
	}
	slices.Reverse(page.Records)
	page.Next, page.Prev = s.q.From, 0
	if n := len(page.Records); n > 0 {
		page.Next = page.Records[n-1].Index
		if further {
			page.Prev = page.Records[0].Index + 1
		}
	}
	return page
}

// search is a query of the list that is being made into SQL.
type search struct {
	q     broker.Query
	reach broker.Reach
	args  pgx.NamedArgs
	// pieces are the parts of the reach that the search concerns.
	pieces []piece
	// from and until bound the indexes to search: at least from, and below until.
	from, until int64
}

func newSearch(q broker.Query, reach broker.Reach) *search {
	q.SPIFFEIDPrefix = strings.TrimSuffix(q.SPIFFEIDPrefix, "/")
	return &search{q: q, reach: reach, pieces: piecesOf(q, reach), args: pgx.NamedArgs{
		"limit":     q.Limit + 1, // one more than requested, which shows whether there is another page
		"spiffe_id": q.SPIFFEID, "prefix": q.SPIFFEIDPrefix, "trust_domain": q.TrustDomain, "scope": q.Scope, "task": q.Task,
		"decision": q.Decision, "status": string(q.Status), "since": orNull(q.Since), "until": orNull(q.Until),
		"words": q.Words, "params": paramsPath("$", q.Params), "approver": q.Approver, "credential": q.Credential, "name": q.Name,
		"group": q.Group, "decision_code": q.DecisionCode, "authority": q.Authority, "resource": q.Resource,
		"catalogue": q.Catalogue, "key_id": q.KeyID, "on_behalf_of": q.User,
	}}
}

// boundSQL bounds the indexes that a search has to read. It leaves out everything beyond the head, and at both ends the
// blocks of 8192 entries that lie entirely before or after the requested time. The records that one catalogue decided, or
// one key signed, lie together.
const boundSQL = `
	SELECT greatest(@from::bigint, t.lowest, c.lowest, k.lowest), least(@before::bigint, h.size, t.beyond, c.beyond, k.beyond)
	FROM ledger_head AS h, LATERAL (
		SELECT CASE WHEN @since::timestamptz IS NOT NULL THEN coalesce((
				SELECT b << 13 FROM generate_series(0, h.size >> 13) AS b
				WHERE (SELECT time FROM issuances WHERE entry_index >> 13 = b ORDER BY time DESC LIMIT 1) >= @since
				LIMIT 1), h.size) END AS lowest,
			CASE WHEN @until::timestamptz IS NOT NULL THEN coalesce((
				SELECT (b + 1) << 13 FROM generate_series(h.size >> 13, 0, -1) AS b
				WHERE (SELECT time FROM issuances WHERE entry_index >> 13 = b ORDER BY time LIMIT 1) < @until
				LIMIT 1), 0) END AS beyond
	) AS t, LATERAL (
		SELECT -max(f.lowest) AS lowest, CASE WHEN @catalogue <> '' THEN coalesce(1 - min(f.highest), 0) END AS beyond
		FROM unnest(@domains::text[]) AS d (name), LATERAL (
			SELECT min(-entry_index) AS highest, max(-entry_index) AS lowest FROM issuances
			WHERE hashtextextended(catalogue, 0) = hashtextextended(@catalogue::text, 0) AND trust_domain = d.name) AS f
		WHERE @catalogue <> ''
	) AS c, LATERAL (
		SELECT -max(f.lowest) AS lowest, CASE WHEN @key_id <> '' THEN coalesce(1 - min(f.highest), 0) END AS beyond
		FROM unnest(@domains::text[]) AS d (name), LATERAL (
			SELECT min(-entry_index) AS highest, max(-entry_index) AS lowest FROM issuances
			WHERE hashtextextended(key_id, 0) = hashtextextended(@key_id::text, 0) AND trust_domain = d.name) AS f
		WHERE @key_id <> ''
	) AS k`

// bound reads the bounds of a search. Records that are appended later are not part of it.
func (s *search) bound(ctx context.Context, pool *pgxpool.Pool) error {
	args := pgx.NamedArgs{
		"from": s.q.From, "before": s.q.Before, "since": s.args["since"], "until": s.args["until"],
		"catalogue": s.q.Catalogue, "key_id": s.q.KeyID,
	}
	if s.q.Before == 0 {
		args["before"] = int64(math.MaxInt64)
	}
	domains := []string{}
	for _, p := range s.pieces {
		if domains = append(domains, p.domain); p.all {
			args["catalogue"], args["key_id"] = "", ""
		}
	}
	args["domains"] = domains
	return pool.QueryRow(ctx, boundSQL, args).Scan(&s.from, &s.until)
}
