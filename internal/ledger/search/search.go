package search

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
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
		// Look for that one record first. Otherwise Postgres would read everything else in the trust domain.
		return `SELECT entry_index FROM (SELECT * FROM issuances WHERE ` + isOne(q) + ` OFFSET 0) AS issuances` + ordered + ` LIMIT @limit`
	case s.picky() || q.Status == broker.StatusPending || q.Status == broker.StatusApproved:
		// Find all of them and then sort. The next match in the order of an index can be far away.
		return `SELECT entry_index FROM (SELECT entry_index FROM issuances WHERE ` + where + ` OFFSET 0) AS few
			ORDER BY entry_index ` + s.order() + ` LIMIT @limit`
	case s.hasTerms(p):
		return s.byTerms(i, p, where)
	}
	return `SELECT entry_index FROM issuances` + ordered + ` LIMIT @limit`
}

// isOne is a condition that hardly more than one record meets.
func isOne(q broker.Query) string {
	if len(q.Credential) > 0 {
		return ofDigest
	}
	return ofName
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
		{q.Status == broker.StatusExpired, `(status = 'expired' OR ` + record.Lapsed + `)`},
		{q.Status != "" && q.Status != broker.StatusExpired, `status = @status`},
		{lapsing[q.Status], `NOT ` + record.Lapsed},
		{undecided, `expires_at > now() - interval '1 minute'`},
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
