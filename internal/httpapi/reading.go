package httpapi

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const defaultLimit = 50

// GetIssuance returns one record to a caller that may read it.
func (s *Server) GetIssuance(w http.ResponseWriter, r *http.Request, id ID) {
	serve(s, w, r, "getIssuance", func(who caller) error {
		within, err := s.readable(r, who)
		if err != nil {
			return err
		}
		v, err := s.find(r, who, id, within)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, issuanceOf(v, within))
		return nil
	})
}

// find reads one record. It returns the same error for malformed, unknown and foreign ids.
func (s *Server) find(r *http.Request, who caller, id string, within broker.Reach) (*broker.View, error) {
	if !ourID(id) {
		return nil, &requestError{kind: broker.ErrNotFound, detail: "id"}
	}
	if err := s.rules.check(r, who, callOf(r).operation, nil); err != nil {
		return nil, err
	}
	v, err := s.cfg.Broker.Get(r.Context(), id, within)
	return v, notFound(err, "id")
}

// ListIssuances returns one page of records.
func (s *Server) ListIssuances(w http.ResponseWriter, r *http.Request, params ListIssuancesParams) {
	const operation = "listIssuances"
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.readable(r, who)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		out, err := s.list(r, reading{nameOf(who), within}, params)
		if err != nil {
			return err
		}
		if out.Next != "" {
			w.Header().Add("Link", pageLink(r, "next", out.Next))
		}
		if out.Prev != "" {
			w.Header().Add("Link", pageLink(r, "prev", out.Prev))
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

// reading is the reader and the reach of what it may read.
type reading struct {
	reader string
	within broker.Reach
}

func (s *Server) list(r *http.Request, by reading, params ListIssuancesParams) (IssuancePage, error) {
	var out IssuancePage
	q, err := queryOf(r, params)
	if err != nil {
		return out, err
	}
	listing, err := listingOf(by.reader, q, by.within)
	if err != nil {
		return out, err
	}
	if params.Cursor != "" {
		place, err := s.cursors.open(params.Cursor, listing)
		if err != nil {
			return out, err
		}
		q.Before, q.From = max(place, 0), max(-place, 0)
	}
	page, err := s.cfg.Broker.List(r.Context(), q, by.within)
	if err != nil {
		return out, err
	}
	out.Issuances = make([]Issuance, 0, len(page.Records))
	for i := range page.Records {
		out.Issuances = append(out.Issuances, issuanceOf(&page.Records[i], by.within))
	}
	if page.Next != 0 {
		out.Next = s.cursors.seal(page.Next, listing)
	}
	if page.Prev != 0 {
		out.Prev = s.cursors.seal(-page.Prev, listing)
	}
	return out, nil
}

const (
	// paramPrefix begins the names of filters on the parameters of requests.
	paramPrefix = "params."
	// mostParams is the maximum number of such filters, and longestParam the maximum length of a name or value in bytes.
	mostParams, longestParam = 8, 1024
)

// queryOf checks the filters that openapi.yaml cannot.
func queryOf(r *http.Request, p ListIssuancesParams) (broker.Query, error) {
	bad := func(field string) (broker.Query, error) {
		return broker.Query{}, &requestError{kind: errParameter, field: field, detail: "parameter_query"}
	}
	if field := badIdentity(p.SpiffeID, p.SpiffeIDPrefix, p.TrustDomain); field != "" {
		return bad(field)
	}
	if !p.Since.IsZero() && !p.Until.IsZero() && p.Until.Before(p.Since) {
		return bad("until")
	}
	params, ok := paramFilters(r.URL.Query())
	if !ok {
		return bad("params")
	}
	digest, err := hex.DecodeString(p.Credential)
	if err != nil {
		return bad("credential")
	}
	limit := p.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	return broker.Query{
		SPIFFEID: p.SpiffeID, SPIFFEIDPrefix: p.SpiffeIDPrefix, TrustDomain: p.TrustDomain,
		Scope: p.Scope, Task: p.Task, Decision: string(p.Decision), DecisionCode: p.DecisionCode, Status: broker.Status(p.Status),
		Since: p.Since.UTC(), Until: p.Until.UTC(), Limit: limit,
		Words: p.Q, Params: params, Approver: p.Approver, User: p.OnBehalfOf, Credential: digest, Name: p.Name, Group: p.Group,
		Authority: p.Authority, Resource: p.Resource, Catalogue: p.Catalogue, KeyID: p.KeyID,
	}, nil
}

// paramFilters returns the filters on parameters in a query that has passed the rules. ok is false if there are too many or one
// is too long.
func paramFilters(values url.Values) (params map[string]string, ok bool) {
	for key := range values {
		name, is := strings.CutPrefix(key, paramPrefix)
		if !is {
			continue
		}
		value := values.Get(key)
		if params == nil {
			params = map[string]string{}
		}
		params[name] = value
		if name == "" || len(name) > longestParam || len(value) > longestParam || len(params) > mostParams {
			return nil, false
		}
	}
	return params, true
}

// pageLink returns a Link header value (RFC 8288): the query of the call, which has passed the rules, with another cursor.
func pageLink(r *http.Request, rel, cursor string) string {
	values := r.URL.Query()
	values.Set("cursor", cursor)
	target := url.URL{Path: r.URL.Path, RawQuery: values.Encode()}
	return fmt.Sprintf("<%s>; rel=%q", target.String(), rel)
}

func issuanceOf(v *broker.View, within broker.Reach) Issuance {
	out := Issuance{
		ID: v.ID, Time: v.Time, SpiffeID: v.Subject.ID.String(), Svid: string(v.Subject.Kind),
		Scope: v.Scope, Authority: v.Authority, Resource: v.Resource, Params: v.Params, Task: v.Task, Reason: v.Reason,
		TTLAsked: seconds(v.TTLAsked), TTL: seconds(v.TTL), Clamps: v.Clamps,
		Decision: Decision(v.Decision), DecisionCode: v.DecisionCode, Explanation: v.Explanation,
		Policies: list(v.Policies), Catalogue: v.Catalogue,
		Status: Status(v.Status), StatusDetail: v.StatusDetail, StatusAt: v.StatusTime, ExpiresAt: v.Expires,
		Approval: approvalOf(v), Approves: v.Approves, RedeemedBy: v.RedeemedBy, EndedBy: v.Actor, Parent: v.Parent,
		Credential: factsOf(v),
	}
	if v.User != nil {
		out.OnBehalfOf = v.User.ID
	}
	// The index counts the entries of all trust domains, and the other fields are internals of Vault, so a sandbox must not see
	// them.
	if within.Subject == "" {
		out.Index = &v.Index
		out.Credential.VaultPath, out.Credential.Lease, out.Credential.Accessor = v.VaultPath, v.Minted.Lease, v.Minted.Accessor
	}
	return out
}

func factsOf(v *broker.View) CredentialFacts {
	facts := CredentialFacts{
		Kind: v.CredentialKind, Audience: v.Audience, KeyID: v.KeyID, ClaimsSha256: v.ClaimsDigest, Name: v.Minted.Name,
		// Nobody can revoke a secret that was read without a lease.
		Static: v.CredentialKind == scopes.KindKV ||
			v.CredentialKind == scopes.KindVault && v.Status == broker.StatusIssued && v.Minted.Accessor == "",
	}
	if v.Minted.Digest != [32]byte{} {
		facts.Sha256 = hex.EncodeToString(v.Minted.Digest[:])
	}
	return facts
}

// cursors seals positions in a listing: where a page ended or, as a negative number, where one began. A cursor is encrypted,
// because a position counts entries of every trust domain. It is authenticated together with the reader and the filters, so it
// continues that listing only.
type cursors struct{ aead cipher.AEAD }

var cursorText = base64.RawURLEncoding.Strict()

func newCursors(secret []byte) (*cursors, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "brevet listing cursor v1", 32)
	if err != nil {
		return nil, fmt.Errorf("deriving the cursor key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("making the cursor cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("making the cursor cipher: %w", err)
	}
	return &cursors{aead}, nil
}

func (c *cursors) seal(position int64, listing []byte) string {
	place := binary.BigEndian.AppendUint64(nil, uint64(position))
	return cursorText.EncodeToString(c.aead.Seal(nil, nil, place, listing)) //nolint:gosec // this AEAD makes its own nonces
}

// open returns the position, or errCursor for a cursor that seal did not create for the same listing.
func (c *cursors) open(cursor string, listing []byte) (int64, error) {
	sealed, err := cursorText.DecodeString(cursor)
	// The decoder skips line breaks, but only one spelling of a cursor is valid.
	if err != nil || cursorText.EncodeToString(sealed) != cursor {
		return 0, &requestError{kind: errCursor, detail: "cursor_encoding"}
	}
	place, err := c.aead.Open(nil, nil, sealed, listing)
	if err != nil || len(place) != 8 {
		return 0, &requestError{kind: errCursor, detail: "cursor_seal"}
	}
	return int64(binary.BigEndian.Uint64(place)), nil
}

// listingOf identifies a listing by its reader, reach and filters. The size of a page may change between pages.
func listingOf(reader string, q broker.Query, reach broker.Reach) ([]byte, error) {
	q.Limit, q.Before, q.From = 0, 0, 0
	name, err := json.Marshal(struct {
		Reader string
		Query  broker.Query
		Reach  broker.Reach
	}{reader, q, reach})
	if err != nil {
		return nil, fmt.Errorf("naming a listing: %w", err)
	}
	return name, nil
}

// GetTaskTimeline returns the recorded events of one task.
func (s *Server) GetTaskTimeline(w http.ResponseWriter, r *http.Request, task Task, params GetTaskTimelineParams) {
	s.timeline(w, r, "getTaskTimeline", func(by reading) (broker.TimelineQuery, string, error) {
		id := cmp.Or(params.SpiffeID, by.within.Subject)
		bad := &requestError{kind: errParameter, field: "spiffe_id", detail: "parameter_query"}
		if id == "" {
			bad.why = "spiffe_id is required unless a sandbox calls: name the owner of the task, as in ?spiffe_id=spiffe://acme.example/research/a"
			return broker.TimelineQuery{}, "", bad
		}
		if badIdentity(id, "", "") != "" {
			bad.why = "spiffe_id must be the SPIFFE ID of a sandbox, such as spiffe://acme.example/research/a"
			return broker.TimelineQuery{}, "", bad
		}
		return broker.TimelineQuery{SPIFFEID: id, Task: task, Limit: cmp.Or(params.Limit, defaultLimit)}, params.Cursor, nil
	})
}

// GetIssuanceTimeline returns the recorded events of one request.
func (s *Server) GetIssuanceTimeline(w http.ResponseWriter, r *http.Request, id ID, params GetIssuanceTimelineParams) {
	s.timeline(w, r, "getIssuanceTimeline", func(reading) (broker.TimelineQuery, string, error) {
		if !ourID(id) {
			return broker.TimelineQuery{}, "", &requestError{kind: broker.ErrNotFound, detail: "id"}
		}
		return broker.TimelineQuery{ID: id, Limit: cmp.Or(params.Limit, defaultLimit)}, params.Cursor, nil
	})
}

func (s *Server) timeline(
	w http.ResponseWriter, r *http.Request, operation string, ask func(reading) (broker.TimelineQuery, string, error),
) {
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.readable(r, who)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		by := reading{nameOf(who), within}
		q, cursor, err := ask(by)
		if err != nil {
			return err
		}
		out, err := s.readTimeline(r, by, q, cursor)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

func (s *Server) readTimeline(r *http.Request, by reading, q broker.TimelineQuery, cursor string) (Timeline, error) {
	limit := q.Limit
	q.Limit = 0
	listing, err := json.Marshal(struct {
		Reader   string
		Timeline broker.TimelineQuery
		Reach    broker.Reach
	}{by.reader, q, by.within})
	if err != nil {
		return Timeline{}, fmt.Errorf("naming a timeline: %w", err)
	}
	q.Limit = limit
	if cursor != "" {
		if q.From, err = s.cursors.open(cursor, listing); err != nil {
			return Timeline{}, err
		}
	}
	found, err := s.cfg.Broker.Timeline(r.Context(), q, by.within)
	if err != nil {
		return Timeline{}, notFound(err, "timeline")
	}
	out := Timeline{Events: make([]TimelineEvent, 0, len(found))}
	for i := range found {
		out.Events = append(out.Events, eventOf(&found[i], by.within))
	}
	if len(found) == q.Limit {
		out.Next = s.cursors.seal(found[len(found)-1].Index+1, listing)
	}
	return out, nil
}

func eventOf(h *broker.Happening, within broker.Reach) TimelineEvent {
	out := TimelineEvent{
		Time: h.Time, Kind: h.Kind, ID: h.ID, Status: string(h.Status), Detail: h.Detail, Scope: h.Scope, Resource: h.Resource,
		DecisionCode: h.Code, Explanation: h.Explanation, By: h.Actor, Verdict: h.Verdict, Covers: h.Covers, Reason: h.Reason,
		At: h.At, Calls: h.Calls,
	}
	// A sandbox learns that people decided, but not who voted or what they wrote.
	if within.Subject == "" {
		out.Index, out.ByName, out.Note = &h.Index, h.ActorName, h.Note
	} else if h.Verdict != "" {
		out.By = ""
	}
	return out
}

// defaultUsage is the period over which uses are counted unless the caller selects another.
const defaultUsage = 30 * 24 * time.Hour

// ReportUses records what a sandbox reports about the use of one of its own credentials.
func (s *Server) ReportUses(w http.ResponseWriter, r *http.Request, id ID) {
	const operation = "reportUses"
	serve(s, w, r, operation, func(who attest.Identity) error {
		switch {
		case !ourID(id):
			return &requestError{kind: broker.ErrNotFound, detail: "id"}
		case !s.reports.Allow(who.ID().String(), s.cfg.Now()):
			return &requestError{kind: errPace, detail: "pace"}
		}
		ask, err := readOrder[UseRequest](s, w, r, who, operation)
		if err != nil {
			return err
		}
		use, err := s.cfg.Broker.ReportUse(r.Context(), who, broker.Use{Issuance: id, Calls: ask.Calls, LastUsed: ask.LastUsedAt.UTC()})
		if err != nil {
			return notFound(err, "id")
		}
		writeJSON(w, http.StatusOK, UseReport{Calls: use.Calls, LastUsedAt: use.LastUsed, ReportedAt: use.Time})
		return nil
	})
}

// GetUsage compares what was granted with what was used, for an auditor.
func (s *Server) GetUsage(w http.ResponseWriter, r *http.Request, params GetUsageParams) {
	s.forAuditors(w, r, "getUsage", func(by auditing) (any, error) {
		bad := func(field string) (any, error) {
			return nil, &requestError{kind: errParameter, field: field, detail: "parameter_query"}
		}
		q := broker.UsageQuery{TrustDomain: params.TrustDomain, Since: params.Since.UTC(), Until: params.Until.UTC()}
		if params.Since.IsZero() {
			q.Since = s.cfg.Now().Add(-defaultUsage).UTC()
		}
		switch {
		case badIdentity("", "", q.TrustDomain) != "":
			return bad("trust_domain")
		case !q.Until.IsZero() && q.Until.Before(q.Since):
			return bad("until")
		}
		all, err := s.cfg.Broker.Usage(r.Context(), q, by.within)
		out := Usage{Since: q.Since, Until: q.Until, Scopes: make([]ScopeUsage, 0, len(all))}
		for _, u := range all {
			out.Scopes = append(out.Scopes, ScopeUsage{
				Scope: u.Scope, Asked: u.Asked, Granted: u.Granted, Denied: u.Denied,
				Reported: ReportedUsage{Credentials: u.Reported, Used: u.Used, Calls: u.Calls, LastUsedAt: u.LastUsed},
			})
		}
		return out, err
	})
}
