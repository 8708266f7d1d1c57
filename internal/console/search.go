package console

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// pageSize is how many records a page of the console lists.
const pageSize = 50

// filter is one search filter. It has the same name as in the API, so that both use the same parameters.
type filter struct {
	Name, Label, Hint string
	Type              string // type of the input element; "select" uses Options
	Options           []choice
	most              int // bytes
	// put sets the filter in the query. It returns false if text is invalid.
	put func(q *broker.Query, text string) bool
}

type choice struct{ Value, Text string }

// control is a filter with its value in the form.
type control struct {
	filter

	Value string
	Bad   bool
}

func textFilter(name, label, hint string, most int, of func(*broker.Query) *string) filter {
	return filter{Name: name, Label: label, Hint: hint, Type: "text", most: most, put: func(q *broker.Query, text string) bool {
		*of(q) = text
		return true
	}}
}

func timeFilter(name, label string, of func(*broker.Query) *time.Time) filter {
	return filter{Name: name, Label: label, Type: "datetime-local", most: 40, put: func(q *broker.Query, text string) bool {
		then, ok := readTime(text)
		*of(q) = then
		return ok
	}}
}

// readTime parses RFC 3339 and the format of browsers, which it reads as UTC.
func readTime(text string) (time.Time, bool) {
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano} {
		if then, err := time.Parse(form, text); err == nil {
			return then.UTC(), true
		}
	}
	return time.Time{}, false
}

// readDigest parses a SHA-256 digest in hex.
func readDigest(text string) (digest []byte, ok bool) {
	digest, err := hex.DecodeString(text)
	return digest, err == nil && len(digest) == sha256.Size
}

func choose(name, label string, options []choice, put func(*broker.Query, string)) filter {
	return filter{Name: name, Label: label, Type: "select", Options: options, most: 40, put: func(q *broker.Query, text string) bool {
		put(q, text)
		return slices.ContainsFunc(options, func(o choice) bool { return o.Value == text })
	}}
}

// usualFilters are the filters that most searches use. rareFilters are the others.
var (
	usualFilters = []filter{
		{Name: "spiffe_id_prefix", Label: "Sandbox, or a path above", Hint: "spiffe://acme.example/research", Type: "text", most: 2048, put: func(q *broker.Query, text string) bool {
			q.SPIFFEIDPrefix = strings.TrimSuffix(text, "/")
			_, err := spiffeid.FromString(q.SPIFFEIDPrefix)
			return err == nil
		}},
		textFilter("scope", "Scope", "github.issues.write", 128, func(q *broker.Query) *string { return &q.Scope }),
		textFilter("task", "Task", "triage-4711", 128, func(q *broker.Query) *string { return &q.Task }),
		textFilter("q", "Words in the reason", "flaky test", 200, func(q *broker.Query) *string { return &q.Words }),
		choose("status", "Status", statusChoices, func(q *broker.Query, text string) { q.Status = broker.Status(text) }),
		choose("decision", "Decision", decisionChoices, func(q *broker.Query, text string) { q.Decision = text }),
		timeFilter("since", "From (UTC)", func(q *broker.Query) *time.Time { return &q.Since }),
		timeFilter("until", "Until (UTC)", func(q *broker.Query) *time.Time { return &q.Until }),
	}
	rareFilters = []filter{
		textFilter("decision_code", "Decision code", "no_permit", 64, func(q *broker.Query) *string { return &q.DecisionCode }),
		textFilter("authority", "Authority", "payment", 64, func(q *broker.Query) *string { return &q.Authority }),
		textFilter("resource", "Resource", "github:repo/acme/api", 4096, func(q *broker.Query) *string { return &q.Resource }),
		textFilter("group", "Approver group", "oncall", 256, func(q *broker.Query) *string { return &q.Group }),
		textFilter("approver", "Who voted, by id", "https://idp.example#alice", 512, func(q *broker.Query) *string { return &q.Approver }),
		textFilter("on_behalf_of", "On behalf of, by id", "https://idp.example#alice", 512, func(q *broker.Query) *string { return &q.User }),
		textFilter("name", "Name at the target", "database user or serial number", 512, func(q *broker.Query) *string { return &q.Name }),
		textFilter("key_id", "Signing key", "RFC 7638 thumbprint", 128, func(q *broker.Query) *string { return &q.KeyID }),
		textFilter("catalogue", "Catalogue", "sha256:…", 128, func(q *broker.Query) *string { return &q.Catalogue }),
		{Name: "credential", Label: "SHA-256 of the credential", Hint: "64 hex digits", Type: "text", most: 64, put: func(q *broker.Query, text string) (ok bool) {
			q.Credential, ok = readDigest(text)
			return ok && text == strings.ToLower(text)
		}},
		{Name: "spiffe_id", Label: "This very sandbox", Hint: "spiffe://acme.example/research/a", Type: "text", most: 2048, put: func(q *broker.Query, text string) bool {
			id, err := spiffeid.FromString(text)
			q.SPIFFEID = text
			return err == nil && id.Path() != ""
		}},
		{Name: "trust_domain", Label: "Trust domain", Hint: "acme.example", Type: "text", most: 255, put: func(q *broker.Query, text string) bool {
			domain, err := spiffeid.TrustDomainFromString(text)
			q.TrustDomain = text
			return err == nil && domain.Name() == text
		}},
	}
)

// mostParams is the largest number of parameter filters in a search. longestParam is the largest size of one, NAME=VALUE,
// in bytes.
const mostParams, longestParam = 8, 2048

// search is a search form with its values, and the query that they make.
type search struct {
	Usual, Rare []control
	Params      []control
	More        bool // a rare or a parameter filter is used
	Bad         bool
	query       broker.Query
}

// readSearch parses a search from the parameters of an address. Empty parameters are ignored.
func readSearch(values url.Values) search {
	s := search{query: broker.Query{Limit: pageSize}}
	read := func(f filter) control {
		one := control{filter: f, Value: values.Get(f.Name)}
		if one.Value == "" {
			return one
		}
		one.Bad = len(one.Value) > f.most || len(values[f.Name]) > 1 || !f.put(&s.query, one.Value)
		s.Bad = s.Bad || one.Bad
		return one
	}
	for _, f := range usualFilters {
		s.Usual = append(s.Usual, read(f))
	}
	for _, f := range rareFilters {
		one := read(f)
		s.More = s.More || one.Value != ""
		s.Rare = append(s.Rare, one)
	}
	s.readParams(values["param"])
	if q := s.query; !q.Since.IsZero() && !q.Until.IsZero() && q.Until.Before(q.Since) {
		s.Usual[len(s.Usual)-1].Bad, s.Bad = true, true
	}
	return s
}

// readParams parses parameter filters of the form NAME=VALUE. It adds an empty field to the form if there is room.
func (s *search) readParams(texts []string) {
	f := filter{Name: "param", Label: "Parameter", Hint: "repo=acme/api", Type: "text", most: longestParam}
	for _, text := range texts {
		if text == "" {
			continue
		}
		name, value, found := strings.Cut(text, "=")
		if s.query.Params == nil {
			s.query.Params = map[string]string{}
		}
		_, twice := s.query.Params[name]
		bad := !found || name == "" || twice || len(text) > longestParam || len(s.query.Params) == mostParams
		s.query.Params[name] = value
		s.Params = append(s.Params, control{filter: f, Value: text, Bad: bad})
		s.Bad, s.More = s.Bad || bad, true
	}
	if len(s.Params) < mostParams {
		s.Params = append(s.Params, control{filter: f})
	}
}

// given returns the search parameters of an address without the cursor and the export format.
func given(values url.Values) url.Values {
	kept := url.Values{}
	for name, all := range values {
		if name == "cursor" || name == "format" {
			continue
		}
		for _, value := range all {
			if value != "" {
				kept.Add(name, value)
			}
		}
	}
	return kept
}
