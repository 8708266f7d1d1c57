package search

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// piece is a part of a reach: a trust domain, or the SPIFFE IDs at or below a path in it, or everything.
type piece struct {
	domain, path string
	all          bool
}

// piecesOf returns the pieces of a reach, except those that the query excludes.
func piecesOf(q broker.Query, r broker.Reach) []piece {
	var all []piece
	switch {
	case r.Subject != "":
		all = append(all, piece{domain: domainOf(r.Subject), path: r.Subject})
	case r.All && len(r.TrustDomains)+len(r.Within) == 0:
		return []piece{{all: true}}
	default:
		for _, td := range r.TrustDomains {
			all = append(all, piece{domain: td})
		}
		for _, prefix := range r.Within {
			if td := domainOf(prefix); td != "" { // everything is below "spiffe:"
				all = append(all, piece{domain: td, path: prefix})
			}
		}
	}
	return slices.DeleteFunc(all, func(p piece) bool {
		for _, wanted := range []string{q.TrustDomain, domainOf(q.SPIFFEID), domainOf(q.SPIFFEIDPrefix)} {
			if wanted != "" && wanted != p.domain {
				return true
			}
		}
		return false
	})
}

// domainOf returns the trust domain of a SPIFFE ID, or "" if id is not one.
func domainOf(id string) string {
	parsed, err := spiffeid.FromString(id)
	if err != nil {
		return ""
	}
	return parsed.TrustDomain().Name()
}

// Conditions that hardly more than one record meets.
const (
	ofDigest = `coalesce(claims_digest, secret_digest) = @credential`
	ofName   = `credential_name = @name`
)

// sql returns the search as one statement, or "" if nothing can match. Each piece of the reach is a separate search, so none
// reads records outside the reach.
func (s *search) sql() string {
	if s.from >= s.until || len(s.pieces) == 0 {
		return ""
	}
	s.args["from"], s.args["until_index"] = s.from, s.until
	var parts []string
	for i, p := range s.pieces {
		parts = append(parts, "("+s.part(i, p)+")")
	}
	order := s.order()
	return `
		SELECT ` + record.Columns + ` FROM issuances WHERE entry_index IN (
			SELECT DISTINCT entry_index FROM (` + strings.Join(parts, " UNION ALL ") + `) AS found
			ORDER BY entry_index ` + order + ` LIMIT @limit)
		ORDER BY entry_index ` + order
}

func (s *search) order() string {
	if s.q.From != 0 {
		return "ASC"
	}
	return "DESC"
}

// part returns the SQL that finds the indexes in one piece of the reach. It goes in the order of a filter's own index, or
// block by block if there is only an index of terms, or through the live credentials.
func (s *search) part(i int, p piece) string {
	q := s.q
	where := strings.Join(append(s.within(i, p), s.conditions()...), " AND ")
	ordered := ` WHERE ` + where + ` ORDER BY entry_index ` + s.order()
	switch {
	case q.Status == broker.StatusIssued && !s.picky():
		return s.alive(i, p) + ordered + ` LIMIT @limit`
	case len(q.Credential) > 0 || q.Name != "":
		one := ofName
		if len(q.Credential) > 0 {
			one = ofDigest
		}
		// Look for that one record first. Otherwise Postgres would read everything else in the trust domain.
		return `SELECT entry_index FROM (SELECT * FROM issuances WHERE ` + one + ` OFFSET 0) AS issuances` + ordered + ` LIMIT @limit`
	case s.picky() || q.Status == broker.StatusPending || q.Status == broker.StatusApproved:
		// Find all of them and then sort. The next match in the order of an index can be far away.
		return `SELECT entry_index FROM (SELECT entry_index FROM issuances WHERE ` + where + ` OFFSET 0) AS few
			ORDER BY entry_index ` + s.order() + ` LIMIT @limit`
	case s.hasTerms(p):
		return s.byTerms(i, p, where)
	}
	return `SELECT entry_index FROM issuances` + ordered + ` LIMIT @limit`
}

// alive searches the credentials that are issued and not over. There are never many, and it finds them like Live.
func (s *search) alive(i int, p piece) string {
	domain := "true"
	if !p.all {
		domain = fmt.Sprintf("spiffe_id >= 'spiffe://' || @domain_%[1]d::text || '/' AND spiffe_id < 'spiffe://' || @domain_%[1]d::text || '0'", i)
	}
	return `SELECT entry_index FROM (
		SELECT * FROM issuances
		WHERE status = 'issued' AND expires_at > now() AND ` + domain + `
			AND date_bin('1 hour', expires_at, '2000-01-01 00:00:00Z') >= date_bin('1 hour', now(), '2000-01-01 00:00:00Z')
		UNION ALL
		SELECT * FROM issuances WHERE status = 'issued' AND leased AND expires_at <= now() AND ` + domain + `
		OFFSET 0) AS issuances`
}

// picky reports whether so few records match, whatever the other filters are, that each can be checked.
func (s *search) picky() bool {
	q := s.q
	ofOne := q.SPIFFEID != "" || s.reach.Subject != ""
	return q.Task != "" || ofOne && q.Status == broker.StatusIssued || q.Approver != "" || len(q.Credential) > 0 || q.Name != ""
}

// within returns the conditions that a row is in the piece of the reach and between the bounds of the search.
func (s *search) within(i int, p piece) []string {
	all := []string{`entry_index >= @from AND entry_index < @until_index`}
	if p.all {
		return all
	}
	domain, path := fmt.Sprintf("domain_%d", i), fmt.Sprintf("path_%d", i)
	s.args[domain], s.args[path] = p.domain, p.path
	all = append(all, "trust_domain = @"+domain+"::text")
	switch {
	case s.reach.Subject != "":
		all = append(all, record.Within(s.reach, "trust_domain", s.args))
	case p.path != "":
		all = append(all, record.Below(path))
	}
	return all
}

// conditions returns the conditions of the filters, each in the form that its index needs.
func (s *search) conditions() []string {
	q := s.q
	undecided := q.Status == broker.StatusPending || q.Status == broker.StatusApproved
	var all []string
	for _, c := range []struct {
		given bool
		sql   string
	}{
		{q.SPIFFEID != "", `spiffe_id = @spiffe_id`},
		{q.SPIFFEIDPrefix != "", record.Below("prefix")},
		{q.TrustDomain != "", `trust_domain = @trust_domain`},
		{q.Scope != "", `scope = @scope`},
		{q.Task != "", `task = @task`},
		{q.Decision != "", `decision = @decision`},
		{q.Status == broker.StatusExpired, `(status = 'expired' OR ` + record.Lapsed + `) AND NOT ` + record.Void},
		{q.Status == broker.StatusVoid, `decision = 'pending' AND ` + record.Void},
		{q.Status != "" && !derived[q.Status], `status = @status`},
		{lapsing[q.Status], `NOT ` + record.Lapsed},
		{undecided, `expires_at > now() - interval '1 minute' AND entry_index > ` + record.InForceSince},
		{!q.Since.IsZero(), `time >= @since`},
		{!q.Until.IsZero(), `time < @until`},
		{q.Words != "", `to_tsvector('pg_catalog.simple', reason) @@ plainto_tsquery('pg_catalog.simple', @words)`},
		{len(q.Params) > 0, `params @@ @params::jsonpath`},
		{q.Approver != "", votedOn},
		{len(q.Credential) > 0, ofDigest},
		{q.Name != "", ofName},
		{q.Group != "", `approval_group = @group`},
		{q.User != "", `on_behalf_of = @on_behalf_of`},
		{q.DecisionCode != "", `decision_code = @decision_code`},
		{q.Authority != "", `authority = @authority`},
		{q.Resource != "", `resource = @resource`},
		{q.Catalogue != "", `hashtextextended(catalogue, 0) = hashtextextended(@catalogue::text, 0) AND catalogue = @catalogue`},
		{q.KeyID != "", `hashtextextended(key_id, 0) = hashtextextended(@key_id::text, 0) AND key_id = @key_id`},
	} {
		if c.given {
			all = append(all, c.sql)
		}
	}
	return all
}

// derived are the states that a record can have without an entry of its own.
var derived = map[broker.Status]bool{broker.StatusExpired: true, broker.StatusVoid: true}

// lapsing are the states that end by their time alone.
var lapsing = map[broker.Status]bool{broker.StatusIssued: true, broker.StatusPending: true, broker.StatusApproved: true}

// votedOn selects the requests that a person has voted on, and the issuances that redeemed them.
const votedOn = `id IN (
	SELECT v.request FROM votes AS v WHERE v.voter = @approver
	UNION ALL
	SELECT r.redeemed_by FROM votes AS v JOIN issuances AS r ON r.id = v.request
	WHERE v.voter = @approver AND r.redeemed_by IS NOT NULL)`

var wholeNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,17})$`)

// paramsPath returns the condition on the parameters below root, as a path of SQL/JSON. Its strings are those of JSON.
func paramsPath(root string, params map[string]string) string {
	var all []string
	for name, value := range params {
		at := root + `.` + quoted(name)
		either := at + ` == ` + quoted(value)
		if value == "true" || value == "false" || wholeNumber.MatchString(value) {
			either += ` || ` + at + ` == ` + value
		}
		all = append(all, "("+either+")")
	}
	slices.Sort(all)
	return strings.Join(all, " && ")
}

func quoted(text string) string {
	out, _ := json.Marshal(text) // a string always encodes
	return string(out)
}

// unmatchable reports whether a filter holds text that Postgres cannot hold. Nothing matches such a filter.
func unmatchable(q broker.Query) bool {
	texts := []string{
		q.SPIFFEID, q.SPIFFEIDPrefix, q.TrustDomain, q.Scope, q.Task, q.Decision, string(q.Status), q.Words, q.Approver, q.Name,
		q.Group, q.DecisionCode, q.Authority, q.Resource, q.Catalogue, q.KeyID, q.User,
	}
	for name, value := range q.Params {
		texts = append(texts, name, value)
	}
	return record.Unmatchable(texts...)
}

// orNull returns nil for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

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
	page, err := record.PageOf(rows, err, q.Limit)
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

// blockShifts are the sizes of the blocks of entries in issuances_by_term, as shifts: 4096, 32768 and 262144.
var blockShifts = []uint{12, 15, 18}

// maxFar is how many records with all terms are sorted at once.
var maxFar = 10000

// The expressions of issuances_by_term, letter for letter.
const (
	blocksOf = `(ARRAY[
		((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
		((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
		((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)])`
	termsOf = `issuance_terms(trust_domain, reason, spiffe_id, E'\nscope=' || scope || E'\nresource=' || hashtextextended(resource, 0)
		|| coalesce(E'\nuser=' || hashtextextended(on_behalf_of, 0), '') || coalesce(E'\ngroup=' || approval_group, '')
		|| coalesce(E'\nstatus=' || nullif(status, 'issued'), '') || coalesce(E'\ndecision=' || nullif(decision, 'allow'), '')
		|| coalesce(E'\ncode=' || nullif(decision_code, 'permitted'), '')
		|| coalesce(E'\nauthority=' || nullif(authority, 'read'), '')) COLLATE "C"`
	paramsOf = `jsonb_set('{}', ARRAY[trust_domain], params)`
)

// hasTerms reports whether the search uses issuances_by_term. It does not if another index finds fewer rows.
func (s *search) hasTerms(p piece) bool {
	q := s.q
	if p.all || s.picky() || q.Status == broker.StatusIssued {
		return false
	}
	if q.Words != "" || len(q.Params) > 0 || q.Resource != "" {
		return true
	}
	// Rare values have separate indexes, and so do the records of one sandbox.
	listed := q.SPIFFEID != "" || s.reach.Subject != "" || q.Group != "" || q.User != "" ||
		q.DecisionCode != "" && q.DecisionCode != "permitted" || q.Decision == "pending" || seldom[q.Status] ||
		q.Scope == "" && (q.Decision == "deny" || q.Status == broker.StatusDenied)
	return !listed && (q.Scope != "" || strings.Count(s.path(p), "/") > 2)
}

// seldom are the states that few records stay in.
var seldom = map[broker.Status]bool{
	broker.StatusPending: true, broker.StatusIntent: true, broker.StatusFailed: true, broker.StatusUnknown: true,
	broker.StatusCompensated: true, broker.StatusRevoking: true, broker.StatusApproved: true, broker.StatusRejected: true,
	broker.StatusWithdrawn: true, broker.StatusRedeemed: true,
}

// path returns the longest of the paths that a sandbox has to be at or below. If it is not below the others, nothing
// matches.
func (s *search) path(p piece) string {
	longest := p.path
	for _, id := range []string{s.q.SPIFFEIDPrefix, s.q.SPIFFEID} {
		if len(id) > len(longest) {
			longest = id
		}
	}
	return longest
}

// byTerms returns the SQL that finds the indexes of records with all terms, in order. It first searches the near blocks one
// by one. Frequent matches fill the page there and end the statement. Then it reads all other matches at once, which are few
// by then. If they are not, because there were many at another time, it searches each far block.
func (s *search) byTerms(i int, p piece, where string) string {
	near, far, edge := s.blocks()
	s.args["near"], s.args["far"], s.args["edge"], s.args["most"] = near, far, edge, maxFar
	having := s.having(i, p)
	order := ` ORDER BY entry_index ` + s.order()
	inBlocks := func(name string) string {
		// A block is sorted after its matches are found.
		return fmt.Sprintf(`
			SELECT f.entry_index FROM unnest(@%s::bigint[]) AS b (block), LATERAL (
				SELECT entry_index FROM (
					SELECT * FROM issuances
					WHERE %s @> ARRAY[(b.block << 32) | (hashtext(@domain_%d::text)::bigint & 4294967295)] AND %s
					OFFSET 0) AS issuances
				WHERE %s%s) AS f`, name, blocksOf, i, having, where, order)
	}
	if len(far) == 0 {
		return inBlocks("near") + ` LIMIT @limit`
	}
	beyond := `entry_index < @edge`
	if s.q.From != 0 {
		beyond = `entry_index >= @edge`
	}
	return fmt.Sprintf(`
		WITH few AS MATERIALIZED (SELECT entry_index FROM issuances WHERE %s LIMIT @most + 1)
		SELECT entry_index FROM (
			%s
			UNION ALL
			SELECT f.entry_index
			FROM (SELECT * FROM few WHERE %s AND (SELECT count(*) FROM few) <= @most%s OFFSET 0) AS f, LATERAL (
				SELECT FROM (SELECT * FROM issuances WHERE entry_index = f.entry_index OFFSET 0) AS issuances WHERE %s) AS i
			UNION ALL
			SELECT * FROM (%s) AS found WHERE (SELECT count(*) FROM few) > @most
		) AS found LIMIT @limit`, having, inBlocks("near"), beyond, order, where, inBlocks("far"))
}

// having returns the condition that a record has all terms. If there are no terms, as for words without a letter, no record
// meets it.
func (s *search) having(i int, p piece) string {
	var all []string
	if len(s.q.Params) > 0 {
		params := fmt.Sprintf("params_%d", i)
		s.args[params] = paramsPath("$."+quoted(p.domain), s.q.Params)
		all = append(all, paramsOf+` @@ @`+params+`::jsonpath`)
	}
	if path, facts := s.path(p), s.facts(); s.q.Words+s.q.Resource+s.q.User+facts != "" || strings.Count(path, "/") > 2 {
		name := fmt.Sprintf("terms_path_%d", i)
		s.args[name], s.args["facts"] = path, facts
		all = append(all, fmt.Sprintf(termsOf+` @> (SELECT issuance_terms(@domain_%d::text, @words::text, @%s::text, @facts::text
			|| CASE WHEN @resource::text <> '' THEN E'\nresource=' || hashtextextended(@resource::text, 0) ELSE '' END
			|| CASE WHEN @on_behalf_of::text <> '' THEN E'\nuser=' || hashtextextended(@on_behalf_of::text, 0) ELSE '' END))`, i, name))
	}
	return strings.Join(all, " AND ")
}

// facts returns the filters that issuance_terms is given as they are, each after a newline. It leaves out values that most
// records have, and states that end by their time alone.
func (s *search) facts() string {
	q, all := s.q, ""
	for _, f := range []struct{ kind, value, usual string }{
		{"scope", q.Scope, ""},
		{"group", q.Group, ""},
		{"decision", q.Decision, "allow"},
		{"code", q.DecisionCode, "permitted"},
		{"authority", q.Authority, "read"},
	} {
		if f.value != "" && f.value != f.usual {
			all += "\n" + f.kind + "=" + f.value
		}
	}
	if q.Status != "" && !derived[q.Status] && !lapsing[q.Status] {
		all += "\nstatus=" + string(q.Status)
	}
	return all
}

// blocks returns the blocks that a search by terms reads, in its order. The near ones are small first and then larger, so
// frequent matches are found before there is much to sort. They end at edge. All the far ones, beyond it, have the largest
// size.
func (s *search) blocks() (near, far []int64, edge int64) {
	const enough = 2 // blocks of one size, before the next size
	from, until, at := s.from, s.until, int64(0)
	next := func(shift uint) int64 {
		block := from >> shift
		if s.q.From == 0 {
			block = (until - 1) >> shift
			until = block << shift
			at = until
		} else {
			from = (block + 1) << shift
			at = from
		}
		return block<<5 | int64(shift)
	}
	for n, shift := range blockShifts {
		larger := int64(1) << blockShifts[min(n+1, len(blockShifts)-1)]
		for taken := 0; from < until && (taken < enough || at%larger != 0); taken++ {
			near = append(near, next(shift))
		}
	}
	edge = at
	for from < until {
		far = append(far, next(blockShifts[len(blockShifts)-1]))
	}
	return near, far, edge
}
