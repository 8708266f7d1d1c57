package search

import (
	"fmt"
	"strings"

	"github.com/brevet-dev/brevet/broker"
)

// blockShifts are the sizes of the blocks of entries in issuances_by_term, as shifts: 4096, 32768 and 262144.
var blockShifts = []uint{12, 15, 18}

// mostFar is how many records with all terms are sorted at once.
var mostFar = 10000

// The expressions of issuances_by_term, letter for letter.
const (
	blocksOf = `(ARRAY[
		((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
		((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
		((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)])`
	termsOf = `issuance_terms(trust_domain, reason, spiffe_id, ARRAY[
		'scope=' || scope, 'resource=' || hashtextextended(resource, 0), 'user=' || hashtextextended(on_behalf_of, 0),
		'group=' || approval_group, 'status=' || nullif(status, 'issued'), 'decision=' || nullif(decision, 'allow'),
		'code=' || nullif(decision_code, 'permitted'), 'authority=' || nullif(authority, 'read')]) COLLATE "C"`
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
	s.args["near"], s.args["far"], s.args["edge"], s.args["most"] = near, far, edge, mostFar
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
	if path, facts := s.path(p), s.facts(); s.q.Words+s.q.Resource+s.q.User != "" || len(facts) > 0 || strings.Count(path, "/") > 2 {
		name := fmt.Sprintf("terms_path_%d", i)
		s.args[name], s.args["facts"] = path, facts
		all = append(all, fmt.Sprintf(termsOf+` @> (SELECT issuance_terms(@domain_%d::text, @words::text, @%s::text, @facts::text[]
			|| CASE WHEN @resource::text <> '' THEN ARRAY['resource=' || hashtextextended(@resource::text, 0)] END
			|| CASE WHEN @on_behalf_of::text <> '' THEN ARRAY['user=' || hashtextextended(@on_behalf_of::text, 0)] END))`, i, name))
	}
	return strings.Join(all, " AND ")
}

// facts returns the filters that issuance_terms is given as they are. It leaves out values that most records have, and
// states that end by their time alone.
func (s *search) facts() []string {
	q := s.q
	all := []string{}
	for _, f := range []struct{ kind, value, usual string }{
		{"scope", q.Scope, ""},
		{"group", q.Group, ""},
		{"decision", q.Decision, "allow"},
		{"code", q.DecisionCode, "permitted"},
		{"authority", q.Authority, "read"},
	} {
		if f.value != "" && f.value != f.usual {
			all = append(all, f.kind+"="+f.value)
		}
	}
	if q.Status != "" && q.Status != broker.StatusExpired && !lapsing[q.Status] {
		all = append(all, "status="+string(q.Status))
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
