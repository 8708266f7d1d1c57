package search

import (
	"context"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

// mostChanges is how many entries one answer covers.
const mostChanges = 1000

// Changes is that of [broker.EventFeed].
func (r *Searcher) Changes(ctx context.Context, q broker.Query, reach broker.Reach, from int64) (broker.Changes, error) {
	pool := r.poolFor(reach)
	var size int64
	if err := pool.QueryRow(ctx, `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		return broker.Changes{}, searching("reading the head", err)
	}
	if from < 0 || from > size {
		return broker.Changes{Next: size}, nil
	}
	out := broker.Changes{Next: min(size, from+mostChanges)}
	out.Further = out.Next < size
	if from == out.Next || record.ReachesNothing(reach) || unmatchable(q) {
		return out, nil
	}
	s := newSearch(q, reach)
	s.args["first"], s.args["beyond"] = from, out.Next
	rows, err := pool.Query(ctx, `
		SELECT `+record.Columns+` FROM (
			SELECT i.*, c.last FROM (
				SELECT id, max(index) AS last FROM entries
				WHERE index >= @first AND index < @beyond AND kind <> 'issuance.reported' GROUP BY id) AS c
			JOIN issuances AS i ON i.id = c.id
		) AS issuances
		WHERE `+strings.Join(append(s.conditions(), record.Within(reach, "trust_domain", s.args)), " AND ")+`
		ORDER BY last`, s.args)
	if err != nil {
		return broker.Changes{}, searching("reading what changed", err)
	}
	out.Records, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (broker.View, error) {
		found, err := pgx.RowToStructByName[record.Row](r)
		if err != nil {
			return broker.View{}, err
		}
		v, err := found.View()
		if err != nil {
			return broker.View{}, err
		}
		return *v, nil
	})
	if err != nil {
		return broker.Changes{}, searching("reading what changed", err)
	}
	return out, nil
}
