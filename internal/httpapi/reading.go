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

// reader is a caller, and what it may read.
type reader struct {
	who    caller
	within broker.Reach
}

// forReaders serves a caller that may read records, at least its own.
func (s *Server) forReaders(w http.ResponseWriter, r *http.Request, operation string, handle func(reader) error) {
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.readable(r, who)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, nil); err != nil {
			return err
		}
		return handle(reader{who, within})
	})
}

// await waits until the reader may search within its reach.
func (s *Server) await(r *http.Request, by reader) (leave func(), err error) {
	if by.within.Subject != "" {
		return await(r, s.reading, by.who)
	}
	return await(r, s.auditing, by.who)
}

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

func (s *Server) find(r *http.Request, who caller, id string, within broker.Reach) (*broker.View, error) {
	if err := s.rules.checkID(r, who, id); err != nil {
		return nil, err
	}
	leave, err := await(r, s.reading, who)
	if err != nil {
		return nil, err
	}
	defer leave()
	v, err := s.cfg.Broker.Get(r.Context(), id, within)
	return v, notFound(err, "id")
}

// ListIssuances returns one page of records, with the links of RFC 8288 to the pages around it.
func (s *Server) ListIssuances(w http.ResponseWriter, r *http.Request, params ListIssuancesParams) {
	s.forReaders(w, r, "listIssuances", func(by reader) error {
		q, err := queryOf(r, params)
		if err != nil {
			return err
		}
		listing, err := listingOf(nameOf(by.who), q, by.within)
		if err != nil {
			return err
		}
		if params.Cursor != "" {
			place, err := s.cursors.open(params.Cursor, listing)
			if err != nil {
				return err
			}
			q.Before, q.From = max(place, 0), max(-place, 0)
		}
		leave, err := s.await(r, by)
		if err != nil {
			return err
		}
		defer leave()
		page, err := s.cfg.Broker.List(r.Context(), q, by.within)
		leave() // a caller that reads slowly must not hold a place
		if err != nil {
			return err
		}
		out := IssuancePage{Issuances: make([]Issuance, 0, len(page.Records))}
		for i := range page.Records {
			out.Issuances = append(out.Issuances, issuanceOf(&page.Records[i], by.within))
		}
		link := func(rel string, place int64) string {
			if place == 0 {
				return ""
			}
			cursor, values := s.cursors.seal(place, listing), r.URL.Query() // which has passed the rules
			values.Set("cursor", cursor)
			target := url.URL{Path: r.URL.Path, RawQuery: values.Encode()}
			w.Header().Add("Link", fmt.Sprintf("<%s>; rel=%q", target.String(), rel))
			return cursor
		}
		out.Next, out.Prev = link("next", page.Next), link("prev", -page.Prev)
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

const (
	// paramPrefix begins the names of filters on the parameters of requests.
	paramPrefix = "params."
	// maxParams is the maximum number of such filters, and longestParam the maximum length of a name or value in bytes.
	maxParams, longestParam = 8, 1024
)

// queryOf checks the filters that openapi.yaml cannot, in a query that has passed the rules.
func queryOf(r *http.Request, p ListIssuancesParams) (broker.Query, error) {
	if field := badIdentity(p.SpiffeID, p.SpiffeIDPrefix, p.TrustDomain); field != "" {
		return broker.Query{}, badQuery(field)
	}
	if !p.Since.IsZero() && !p.Until.IsZero() && p.Until.Before(p.Since) {
		return broker.Query{}, badQuery("until")
	}
	var params map[string]string
	for key, values := range r.URL.Query() {
		name, ok := strings.CutPrefix(key, paramPrefix)
		if !ok {
			continue
		}
		if params == nil {
			params = map[string]string{}
		}
		params[name] = values[0]
		if name == "" || len(name) > longestParam || len(values[0]) > longestParam || len(params) > maxParams {
			return broker.Query{}, badQuery("params")
		}
	}
	digest, err := hex.DecodeString(p.Credential)
	if err != nil {
		return broker.Query{}, badQuery("credential")
	}
	return broker.Query{
		SPIFFEID: p.SpiffeID, SPIFFEIDPrefix: p.SpiffeIDPrefix, TrustDomain: p.TrustDomain,
		Scope: p.Scope, Task: p.Task, Decision: string(p.Decision), DecisionCode: p.DecisionCode, Status: broker.Status(p.Status),
		Since: p.Since.UTC(), Until: p.Until.UTC(), Limit: cmp.Or(p.Limit, defaultLimit),
		Words: p.Q, Params: params, Approver: p.Approver, User: p.OnBehalfOf, Credential: digest, Name: p.Name, Group: p.Group,
		Authority: p.Authority, Resource: p.Resource, Catalogue: p.Catalogue, KeyID: p.KeyID,
	}, nil
}

func issuanceOf(v *broker.View, within broker.Reach) Issuance {
	out := Issuance{
		ID: v.ID, Time: v.Time, SpiffeID: v.Subject.ID.String(), Svid: string(v.Subject.Kind),
		Scope: v.Scope, Authority: v.Authority, Resource: v.Resource, Params: v.Params, Task: v.Task, Context: v.Stated(), Reason: v.Reason,
		TTLAsked: seconds(v.TTLAsked), TTL: seconds(v.TTL), Clamps: v.Clamps,
		Decision: Decision(v.Decision), DecisionCode: v.DecisionCode, Explanation: v.Explanation,
		Policies: list(v.Policies), Catalogue: v.Catalogue,
		Status: Status(v.Status), StatusDetail: v.StatusDetail, StatusAt: v.StatusTime, ExpiresAt: v.Expires,
		Approval: approvalOf(v), Approves: v.Approves, RedeemedBy: v.RedeemedBy, EndedBy: v.Actor, Parent: v.Parent,
		Credential: CredentialFacts{
			Kind: v.CredentialKind, Audience: v.Audience, KeyID: v.KeyID, ClaimsSha256: v.ClaimsDigest, Name: v.Minted.Name,
			Static: v.CredentialKind == scopes.KindKV || v.Static, UsableUntil: v.UsableUntil(),
		},
	}
	if v.Minted.Digest != [32]byte{} {
		out.Credential.Sha256 = hex.EncodeToString(v.Minted.Digest[:])
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
	s.forReaders(w, r, "getTaskTimeline", func(by reader) error {
		id := cmp.Or(params.SpiffeID, by.within.Subject)
		bad := &requestError{kind: errParameter, field: "spiffe_id", detail: "parameter_query"}
		if id == "" {
			bad.why = "spiffe_id is required unless a sandbox calls: name the owner of the task, as in ?spiffe_id=spiffe://acme.example/research/a"
			return bad
		}
		if badIdentity(id, "", "") != "" {
			bad.why = "spiffe_id must be the SPIFFE ID of a sandbox, such as spiffe://acme.example/research/a"
			return bad
		}
		return s.timeline(w, r, by, broker.TimelineQuery{SPIFFEID: id, Task: task, Limit: params.Limit}, params.Cursor)
	})
}

// GetIssuanceTimeline returns the recorded events of one request.
func (s *Server) GetIssuanceTimeline(w http.ResponseWriter, r *http.Request, id ID, params GetIssuanceTimelineParams) {
	s.forReaders(w, r, "getIssuanceTimeline", func(by reader) error {
		if !ourID(id) {
			return unknown("id")
		}
		return s.timeline(w, r, by, broker.TimelineQuery{ID: id, Limit: params.Limit}, params.Cursor)
	})
}

// timeline answers with one page of recorded events.
func (s *Server) timeline(w http.ResponseWriter, r *http.Request, by reader, q broker.TimelineQuery, cursor string) error {
	limit := cmp.Or(q.Limit, defaultLimit)
	q.Limit = 0
	listing, err := json.Marshal(struct {
		Reader   string
		Timeline broker.TimelineQuery
		Reach    broker.Reach
	}{nameOf(by.who), q, by.within})
	if err != nil {
		return fmt.Errorf("naming a timeline: %w", err)
	}
	q.Limit = limit
	if cursor != "" {
		if q.From, err = s.cursors.open(cursor, listing); err != nil {
			return err
		}
	}
	leave, err := s.await(r, by)
	if err != nil {
		return err
	}
	defer leave()
	found, err := s.cfg.Broker.Timeline(r.Context(), q, by.within)
	leave()
	if err != nil {
		return notFound(err, "timeline")
	}
	out := Timeline{Events: make([]TimelineEvent, 0, len(found))}
	for i := range found {
		out.Events = append(out.Events, eventOf(&found[i], by.within))
	}
	if len(found) == q.Limit {
		out.Next = s.cursors.seal(found[len(found)-1].Index+1, listing)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func eventOf(h *broker.TimelineEvent, within broker.Reach) TimelineEvent {
	out := TimelineEvent{
		Time: h.Time, Kind: h.Kind, ID: h.ID, Status: string(h.Status), Detail: h.Detail, Scope: h.Scope, Resource: h.Resource,
		DecisionCode: h.Code, Explanation: h.Explanation, By: h.Actor, Verdict: h.Verdict, Covers: h.Covers, Reason: h.Reason,
		At: h.At, Calls: h.Calls, Refused: h.Refused,
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
	serve(s, w, r, "reportUses", func(who attest.Identity) error {
		switch {
		case !ourID(id):
			return unknown("id")
		case !s.reports.Allow(who.ID().String(), s.cfg.Now()):
			return &requestError{kind: errPace, detail: "pace"}
		}
		ask, err := readOrder[UseRequest](s, w, r, who)
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
	s.withRole(w, r, "getUsage", []role{s.roles.auditor}, func(by reader) (any, error) {
		q := broker.UsageQuery{TrustDomain: params.TrustDomain, Since: params.Since.UTC(), Until: params.Until.UTC()}
		if params.Since.IsZero() {
			q.Since = s.cfg.Now().Add(-defaultUsage).UTC()
		}
		switch {
		case badIdentity("", "", q.TrustDomain) != "":
			return nil, badQuery("trust_domain")
		case !q.Until.IsZero() && q.Until.Before(q.Since):
			return nil, badQuery("until")
		}
		leave, err := await(r, s.counting, by.who)
		if err != nil {
			return nil, err
		}
		defer leave()
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
