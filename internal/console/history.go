package console

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/export"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// historyPage is a search and its results.
type historyPage struct {
	search

	TooBroad   bool
	Records    []broker.View
	Query      url.Values // the search parameters without the cursor
	Next, Prev string     // addresses
}

// history searches the record. The address contains the whole search, so people can bookmark and share it.
func (c *Console) history(r *http.Request, who *visitor) (view, error) {
	values := r.URL.Query()
	p := historyPage{search: readSearch(values), Query: given(values)}
	if p.Bad {
		return pageHistory.view("Audit log", p).withStatus(http.StatusUnprocessableEntity), nil
	}
	name, err := listing(who, p.query)
	if err != nil {
		return view{}, err
	}
	place, err := c.openPlace(values.Get("cursor"), name)
	if err != nil {
		return view{}, err
	}
	p.query.Before, p.query.From = max(place, 0), max(-place, 0)
	found, err := c.cfg.Broker.List(r.Context(), p.query, who.Auditor)
	if p.TooBroad = errors.Is(err, broker.ErrTooBroad); p.TooBroad {
		return pageHistory.view("Audit log", p).withStatus(http.StatusUnprocessableEntity), nil
	}
	if err != nil {
		return view{}, err
	}
	p.Records = found.Records
	if p.Next, err = c.further(p.Query, found.Next, name); err == nil {
		p.Prev, err = c.further(p.Query, -found.Prev, name)
	}
	return pageHistory.view("Audit log", p), err
}

// further returns the address of another page of the search, or "" for the place zero.
func (c *Console) further(query url.Values, place int64, of []byte) (string, error) {
	if place == 0 {
		return "", nil
	}
	cursor, err := c.sealPlace(place, of)
	next := url.Values{"cursor": {cursor}}
	maps.Copy(next, query)
	return "/history?" + next.Encode(), err
}

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

// timeFilter accepts RFC 3339 and the format of browsers, which it reads as UTC.
func timeFilter(name, label string, of func(*broker.Query) *time.Time) filter {
	return filter{Name: name, Label: label, Type: "datetime-local", most: 40, put: func(q *broker.Query, text string) bool {
		for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339Nano} {
			if then, err := time.Parse(form, text); err == nil {
				*of(q) = then.UTC()
				return true
			}
		}
		return false
	}}
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

// maxParams is the largest number of parameter filters in a search. longestParam is the largest size of one, NAME=VALUE,
// in bytes.
const maxParams, longestParam = 8, 2048

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
	f := filter{Name: "param", Label: "Parameter", Hint: "repo=acme/api", Type: "text", most: longestParam}
	for _, text := range values["param"] {
		if text == "" {
			continue
		}
		name, value, found := strings.Cut(text, "=")
		if s.query.Params == nil {
			s.query.Params = map[string]string{}
		}
		_, twice := s.query.Params[name]
		bad := !found || name == "" || twice || len(text) > longestParam || len(s.query.Params) == maxParams
		s.query.Params[name] = value
		s.Params = append(s.Params, control{filter: f, Value: text, Bad: bad})
		s.Bad, s.More = s.Bad || bad, true
	}
	if len(s.Params) < maxParams { // an empty field of the form
		s.Params = append(s.Params, control{filter: f})
	}
	if q := s.query; !q.Since.IsZero() && !q.Until.IsZero() && q.Until.Before(q.Since) {
		s.Usual[len(s.Usual)-1].Bad, s.Bad = true, true
	}
	return s
}

// given returns the search parameters of an address without the cursor and the export format.
func given(values url.Values) url.Values {
	kept := url.Values{}
	for name, all := range values {
		all = slices.DeleteFunc(slices.Clone(all), func(value string) bool { return value == "" })
		if name != "cursor" && name != "format" && len(all) > 0 {
			kept[name] = all
		}
	}
	return kept
}

var placeText = base64.RawURLEncoding.Strict()

// listing returns the identity of a listing: the reader, their reach, and the search. A cursor of one listing is invalid in
// every other.
func listing(who *visitor, of any) ([]byte, error) {
	name, err := json.Marshal(struct {
		Reader string
		Reach  broker.Reach
		Of     any
	}{who.ID(), who.Auditor, of})
	if err != nil {
		return nil, fmt.Errorf("naming a listing: %w", err)
	}
	return name, nil
}

// sealPlace returns a cursor for an index. It is encrypted because the index counts the entries of all trust domains.
func (c *Console) sealPlace(index int64, of []byte) (string, error) {
	box, err := sealer(c.cfg.Key, "listing")
	if err != nil {
		return "", err
	}
	sealed := box.Seal(nil, nil, binary.BigEndian.AppendUint64(nil, uint64(index)), of) //nolint:gosec // this AEAD makes its own nonces
	return placeText.EncodeToString(sealed), nil
}

// openPlace returns the index in a cursor, or zero for an empty cursor. It returns errCursor if sealPlace did not make the
// cursor for the same listing (H98).
func (c *Console) openPlace(cursor string, of []byte) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	box, err := sealer(c.cfg.Key, "listing")
	if err != nil {
		return 0, err
	}
	sealed, err := placeText.DecodeString(cursor)
	if err != nil || placeText.EncodeToString(sealed) != cursor {
		return 0, errCursor
	}
	place, err := box.Open(nil, nil, sealed, of)
	if err != nil || len(place) != 8 {
		return 0, errCursor
	}
	return int64(binary.BigEndian.Uint64(place)), nil
}

const (
	// maxExported is the largest number of records in one export. exportBatch is how many records one query reads.
	maxExported, exportBatch = 100_000, 500
	// exportPatience bounds the write of one batch to a browser.
	exportPatience = 30 * time.Second
	// exportsAtOnce is how many concurrent exports one person may run on one replica, and maxExports how many there are in all. With
	// more persons, each has an equal share.
	exportsAtOnce, maxExports = 2, 16
)

// exports maps the export formats to their media types.
var exports = map[export.Format]string{
	export.CSV: "text/csv; charset=utf-8", export.NDJSON: "application/x-ndjson",
	export.CloudEvents: "application/x-ndjson", export.OCSF: "application/x-ndjson",
}

// export streams the results of a search as a file. On an error it aborts the response, so that the browser does not take a
// partial file for a complete one.
func (c *Console) export(w http.ResponseWriter, r *http.Request, who *visitor) error {
	values := r.URL.Query()
	format, search := export.Format(values.Get("format")), readSearch(values)
	if exports[format] == "" || search.Bad {
		return errForm
	}
	leave, busy := c.exports.Enter(who.ID(), who.ID())
	if busy != nil {
		return errExporting
	}
	defer leave()
	search.query.Limit = exportBatch
	first, err := c.cfg.Broker.List(r.Context(), search.query, who.Auditor)
	if err != nil {
		return err
	}
	name := "brevet-history-" + c.cfg.Now().UTC().Format("20060102-150405") + "." + string(format)
	if format != export.CSV {
		name += ".jsonl"
	}
	w.Header().Set("Content-Type", exports[format])
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	if err := c.writeExport(w, r, exporting{who, search.query, format}, first); err != nil {
		c.cfg.Log.WarnContext(r.Context(), "export aborted", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// exporting is one export: the visitor, the query and the format.
type exporting struct {
	who    *visitor
	query  broker.Query
	format export.Format
}

// writeExport writes page after page until the session ends. If there are more records than the limit, the last line says
// so.
func (c *Console) writeExport(w http.ResponseWriter, r *http.Request, e exporting, page broker.Page) error {
	control := http.NewResponseController(w)
	out, err := export.NewWriter(w, e.format, c.origin.Host+"/history")
	for written := 0; err == nil; {
		if err := control.SetWriteDeadline(c.cfg.Now().Add(exportPatience)); err != nil {
			return err
		}
		for i := range page.Records {
			event, err := recordOf(&page.Records[i])
			if err == nil {
				err = out.Write(event)
			}
			if err != nil {
				return err
			}
		}
		written += len(page.Records)
		switch {
		case page.Next == 0:
			return out.Close()
		case !c.cfg.Now().Before(e.who.Ends):
			return errNobody
		case written >= maxExported:
			last := &page.Records[len(page.Records)-1]
			until := last.Time.Add(time.Second).UTC().Format(time.RFC3339) // rounded up: some records repeat, but none is missing
			said := "The export is truncated. Search again with until=" + url.QueryEscape(until)
			body, _ := json.Marshal(map[string]string{"cut": said}) //nolint:errchkjson // text can be encoded
			cut := export.Event{Index: last.Index, Time: last.Time, Kind: "export.cut", Reason: said, Body: string(body)}
			return errors.Join(out.Write(cut), out.Close())
		}
		e.query.Before = page.Next
		page, err = c.cfg.Broker.List(r.Context(), e.query, e.who.Auditor)
	}
	return err
}

// recordOf converts a record in its current state to the columns of entries.
func recordOf(v *broker.View) (export.Event, error) {
	params, err := json.Marshal(v.Params)
	if err != nil {
		return export.Event{}, fmt.Errorf("writing the parameters of %s: %w", v.ID, err)
	}
	kind := "issuance." + string(v.Status)
	if v.Decision == "pending" || v.Status == broker.StatusDenied {
		kind = "request." + string(v.Status)
	}
	e := export.Event{
		Index: v.Index, ID: v.ID, Time: v.Time, Kind: kind,
		SPIFFEID: v.Subject.ID.String(), TrustDomain: v.Subject.ID.TrustDomain().Name(),
		Task: v.Task, Scope: v.Scope, Authority: v.Authority, Resource: v.Resource, Params: string(params), Reason: v.Reason,
		Decision: v.Decision, Code: v.DecisionCode, Policies: v.Policies, Catalogue: v.Catalogue, TTL: int64(v.TTL / time.Second),
		Expires: v.Expires, Status: string(v.Status), Detail: v.StatusDetail, Actor: v.Actor, Approves: v.Approves,
		Credential: v.CredentialKind, Digest: credentialDigest(v), SVID: string(v.Subject.Kind), Thumbprint: v.Subject.Thumbprint, Parent: v.Parent,
		TTLAsked: int64(v.TTLAsked / time.Second), Clamps: slices.Clone(v.Clamps), Group: v.ApprovalGroup, Audience: v.Audience,
		Name: v.Minted.Name, VaultPath: v.VaultPath, Accessor: v.Minted.Accessor, Lease: v.Minted.Lease,
	}
	if v.User != nil {
		e.OnBehalfOf = v.User.ID
	}
	body := map[string]any{"id": e.ID, "time": e.Time, "kind": e.Kind, "params": v.Params, "ttl": e.TTL} // and what is not empty
	for name, value := range map[string]string{
		"spiffe_id": e.SPIFFEID, "trust_domain": e.TrustDomain, "task": e.Task, "scope": e.Scope, "authority": e.Authority,
		"resource": e.Resource, "reason": e.Reason, "decision": e.Decision, "code": e.Code, "policies": strings.Join(e.Policies, " "),
		"catalogue": e.Catalogue, "status": e.Status, "detail": e.Detail, "actor": e.Actor, "approves": e.Approves,
		"on_behalf_of": e.OnBehalfOf, "credential": e.Credential, "digest": e.Digest, "svid": e.SVID, "parent": e.Parent,
		"group": e.Group, "audience": e.Audience, "name": e.Name,
	} {
		if value != "" {
			body[name] = value
		}
	}
	if !e.Expires.IsZero() {
		body["expires"] = e.Expires
	}
	text, err := json.Marshal(body)
	if err != nil {
		return export.Event{}, fmt.Errorf("writing %s: %w", v.ID, err)
	}
	e.Body = string(text)
	return e, nil
}
