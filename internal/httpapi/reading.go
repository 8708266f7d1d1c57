package httpapi

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const defaultLimit = 50

// GetRequest tells a caller the state of one of its own requests.
func (s *Server) GetRequest(w http.ResponseWriter, r *http.Request, id ID, params GetRequestParams) {
	serve(s, w, r, "getRequest", func(who attest.Identity) error {
		v, err := s.find(r, who, id, broker.Reach{Subject: who.ID().String()})
		if err != nil {
			return err
		}
		if v, err = s.waitFor(w, r, v, params.Wait); err != nil {
			return err
		}
		state := stateOf(v)
		if state.InForce, err = s.cfg.Broker.Alive(r.Context(), v); err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, state)
		return nil
	})
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

// badIdentity returns the name of the first of the three filters that is set and invalid, or "".
func badIdentity(id, prefix, trustDomain string) string {
	if id != "" {
		if parsed, err := spiffeid.FromString(id); err != nil || parsed.Path() == "" {
			return "spiffe_id"
		}
	}
	if prefix != "" {
		if _, err := spiffeid.FromString(prefix); err != nil {
			return "spiffe_id_prefix"
		}
	}
	if trustDomain != "" {
		if td, err := spiffeid.TrustDomainFromString(trustDomain); err != nil || td.Name() != trustDomain {
			return "trust_domain"
		}
	}
	return ""
}

// pageLink returns a Link header value (RFC 8288): the query of the call, which has passed the rules, with another cursor.
func pageLink(r *http.Request, rel, cursor string) string {
	values := r.URL.Query()
	values.Set("cursor", cursor)
	target := url.URL{Path: r.URL.Path, RawQuery: values.Encode()}
	return fmt.Sprintf("<%s>; rel=%q", target.String(), rel)
}

func stateOf(v *broker.View) RequestState {
	return RequestState{
		ID: v.ID, Status: Status(v.Status), StatusDetail: v.StatusDetail, StatusAt: v.StatusTime,
		Decision: Decision(v.Decision), DecisionCode: v.DecisionCode, Explanation: v.Explanation,
		Scope: v.Scope, Task: v.Task, ExpiresAt: v.Expires,
		Approval: approvalOf(v), VotesCast: v.Votes, RedeemedBy: v.RedeemedBy,
	}
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

// parameterError answers a call whose parameters the generated code could not bind. It runs before the operation, so it
// authenticates the caller first, like an operation.
func (s *Server) parameterError(w http.ResponseWriter, r *http.Request, cause error) {
	pattern := chi.RouteContext(r.Context()).RoutePattern()
	serve(s, w, r, s.rules.operation(r.Method, pattern), func(caller) error {
		f := &requestError{kind: errParameter, detail: "parameter_form"}
		if missing, ok := errors.AsType[*RequiredParamError](cause); ok {
			f.field, f.why = missing.ParamName, missing.ParamName+" is missing"
		}
		return f
	})
}

// GetKeys serves the public keys.
func (s *Server) GetKeys(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getKeys")
	keys, err := s.cfg.Keys.JWKS()
	if err != nil {
		s.fail(w, r, nobody, fmt.Errorf("%w: %w", errKeys, err))
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age="+strconv.FormatInt(seconds(s.cfg.JWKSMaxAge), 10))
	w.Header().Set("Content-Length", strconv.Itoa(len(keys)))
	_, _ = w.Write(keys)
}

// GetSpec serves openapi.yaml.
func (s *Server) GetSpec(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "getSpec")
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Cache-Control", "public, max-age=300")
	w.Header().Set("Content-Length", strconv.Itoa(len(Spec)))
	_, _ = w.Write(Spec)
}
