package httpapi

import (
	"bytes"
	"cmp"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// defaultTask is the task of requests from OAuth clients that send none.
const defaultTask = "oauth"

// GrantToken is the token endpoint. It issues tokens as IssueToken does, redeems approved requests as RedeemRequest does, and
// exchanges tokens.
func (s *Server) GrantToken(w http.ResponseWriter, r *http.Request) {
	s.asClient(w, r, "grantToken", s.client, func(who attest.Identity, f form) error {
		leave, err := s.enter(who)
		if err != nil {
			return err
		}
		defer leave()
		jkt, err := s.requireDPoP(w, r, who)
		if err != nil {
			return err
		}
		ctx, deliver := r.Context(), func(result broker.Result) error {
			leave() // a client that reads slowly must not count as a request in progress
			return s.deliverGrant(w, r, result)
		}
		switch GrantType(f["grant_type"]) {
		case GrantClientCredentials:
			return s.ask(ctx, who, f, broker.Request{JKT: jkt}, deliver)
		case GrantApproval:
			return unexpected(s.grantApproved(ctx, who, f, jkt, deliver), f)
		case GrantTokenExchange:
			return s.exchange(ctx, who, f, jkt, deliver)
		case "":
			return badMember("grant_type", OAuthInvalidRequest, "is required")
		}
		return badMember("grant_type", OAuthUnsupportedGrantType, "is not supported; /.well-known/oauth-authorization-server lists the grant types")
	})
}

func badMember(field string, name OAuthErrorCode, why string) error {
	return &requestError{kind: errInvalid, field: field, detail: field, oauth: name, why: why}
}

// ask issues what the form requests, as issueToken does. req already has the DPoP key and the person, if the call has proved them.
func (s *Server) ask(ctx context.Context, who attest.Identity, f form, req broker.Request, deliver broker.Deliver) error {
	d, err := readDetails(f)
	if err != nil {
		return err
	}
	req.Scope, req.Reason = cmp.Or(f["scope"], d.Type), f["reason"]
	for _, field := range req.Fields() {
		req.Set(field.Name, f[field.Name])
	}
	req.Task = cmp.Or(req.Task, defaultTask)
	if d.Type != "" && d.Type != req.Scope {
		return badMember("authorization_details", OAuthInvalidDetails, "has a type that differs from the parameter scope")
	}
	if req.Scope == "" || strings.Contains(req.Scope, " ") {
		return badMember("scope", OAuthInvalidScope, "must be the name of exactly one scope")
	}
	req.Expect = broker.Expectation{Kind: scopes.KindJWT, AccessToken: true, Resource: d.Identifier}
	if d.Actions != nil {
		req.Expect.Authority = d.Actions[0]
	}
	if d.Locations != nil {
		req.Expect.Audience = d.Locations[0]
	}
	for _, name := range repeatable {
		if asked := f[name]; asked != "" && req.Expect.Audience != "" && asked != req.Expect.Audience {
			return badMember(name, OAuthInvalidTarget, "differs from the audience that another parameter requests")
		} else if asked != "" {
			req.Expect.Audience = asked
		}
	}
	if req.TTL, err = readTTL(f["ttl"]); err != nil {
		return err
	}
	if req.Params, err = d.params(); err != nil {
		return err
	}
	if err := checkText("reason", req.Reason); err != nil {
		return err
	}
	return unexpected(s.cfg.Broker.Issue(ctx, who, req, deliver), f)
}

// maxTTL is the longest TTL that a client may request, in seconds. openapi.yaml has the same maximum.
const maxTTL = 31536000

func readTTL(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || n > maxTTL {
		return 0, badMember("ttl", OAuthInvalidRequest, fmt.Sprintf("must be a whole number of seconds from 1 to %d", maxTTL))
	}
	return time.Duration(n) * time.Second, nil
}

// authorizationDetail is the single object of authorization_details that a client may send.
type authorizationDetail struct {
	Type       string         `json:"type"`
	Actions    []string       `json:"actions"`
	Locations  []string       `json:"locations"`
	Identifier string         `json:"identifier"`
	Params     jsontext.Value `json:"params"`
}

func badDetails(why string) error {
	return badMember("authorization_details", OAuthInvalidDetails, why)
}

// readDetails reads authorization_details (RFC 9396) as strictly as any JSON body.
func readDetails(f form) (authorizationDetail, error) {
	const member = "authorization_details"
	text := f[member]
	if text == "" {
		return authorizationDetail{}, nil
	}
	if _, err := parseObject([]byte(`{"`+member+`":`+text+`}`), map[string]bool{member: true}, maxTokens); err != nil {
		return authorizationDetail{}, badDetails("is not valid JSON")
	}
	var all []authorizationDetail
	if err := json.Unmarshal([]byte(text), &all, json.RejectUnknownMembers(true)); err != nil {
		return authorizationDetail{}, badDetails("must be an array of objects with the members type, actions, locations, identifier and params")
	}
	switch {
	case len(all) != 1:
		return authorizationDetail{}, badDetails("must have exactly one object")
	case all[0].Type == "":
		return authorizationDetail{}, badDetails("must have a type, the name of a scope")
	case all[0].Actions != nil && len(all[0].Actions) != 1, all[0].Locations != nil && len(all[0].Locations) != 1:
		return authorizationDetail{}, badDetails("must have exactly one element in actions and exactly one in locations, if these members are present")
	}
	return all[0], nil
}

// params decodes the parameters, and keeps numbers as they are written.
func (d authorizationDetail) params() (map[string]any, error) {
	if d.Params == nil {
		return nil, nil
	}
	var params map[string]any
	decoder := stdjson.NewDecoder(bytes.NewReader(d.Params))
	decoder.UseNumber()
	if err := decoder.Decode(&params); err != nil {
		return nil, badDetails("has params that are not an object")
	}
	return params, nil
}

// unexpected turns a broker.UnexpectedGrantError error into one that names the parameter of the form which differs from the scope.
func unexpected(err error, f form) error {
	found, ok := errors.AsType[*broker.UnexpectedGrantError](err)
	switch {
	case !ok:
		return err
	case found.Field == broker.UnexpectedKind:
		return badMember("scope", OAuthInvalidScope, "issues no access tokens, but another kind of credential: request it at POST /v1/tokens")
	case found.Field == broker.UnexpectedAudience && f["resource"]+f["audience"] != "":
		return badMember("audience", OAuthInvalidTarget, "differs from the audience of the scope")
	}
	return badDetails("differs from the definition of the scope")
}

// awaited is the error of a request that is still pending.
type awaited struct {
	name    OAuthErrorCode
	id      string
	expires time.Time
}

func (a *awaited) Error() string { return string(a.name) }

// grantApproved issues the credential of an approved request. While the request is pending, the error is [awaited].
func (s *Server) grantApproved(ctx context.Context, who attest.Identity, f form, jkt string, deliver broker.Deliver) error {
	id := f["auth_req_id"]
	switch {
	case id == "":
		return badMember("auth_req_id", OAuthInvalidRequest, "is required")
	case !ourID(id):
		return unknown("auth_req_id")
	case !s.polls.Allow(who.ID().String()+" "+id, s.cfg.Now()):
		return &awaited{name: OAuthSlowDown, id: id}
	}
	err := s.cfg.Broker.RedeemApproval(ctx, who, broker.Redemption{
		Request: id, JKT: jkt, Expect: broker.Expectation{Kind: scopes.KindJWT, AccessToken: true},
	}, deliver)
	if errors.Is(err, broker.ErrNotApproved) {
		view, err := s.cfg.Broker.Get(ctx, id, broker.Reach{Subject: who.ID().String()})
		if err != nil {
			return notFound(err, "auth_req_id")
		}
		f := &requestError{kind: broker.ErrNotApproved, detail: "auth_req_id"}
		if view.Status == broker.StatusExpired {
			f.oauth = OAuthExpiredToken
		}
		return f
	}
	return notFound(err, "auth_req_id")
}

// deliverGrant is deliver for OAuth clients.
func (s *Server) deliverGrant(w http.ResponseWriter, r *http.Request, result broker.Result) error {
	if v := result.Earlier; v != nil {
		if v.Status == broker.StatusPending {
			return &awaited{name: OAuthAuthorizationPending, id: v.ID, expires: v.Expires}
		}
		return rejection(v)
	}
	rec := result.Record
	s.countDecision(rec.Decision)
	switch {
	case rec.Decision.Outcome == scopes.Allow && result.Credential != nil:
		answer, err := s.accessToken(result)
		if err != nil {
			return err
		}
		return handOver(w, r, http.StatusOK, answer, result.Credential)
	case rec.Decision.Outcome == scopes.Pending:
		return &awaited{name: OAuthAuthorizationPending, id: rec.ID, expires: rec.Expires}
	case rec.Decision.Outcome == scopes.Deny:
		return s.denial(w.Header(), rec)
	}
	return errFault
}

// accessToken returns the token as an OAuth response. Its authorization_details are exactly those in the token.
func (s *Server) accessToken(result broker.Result) (AccessToken, error) {
	t := s.token(result)
	var claims struct {
		Details []AuthorizationDetail `json:"authorization_details"`
	}
	decoder := stdjson.NewDecoder(bytes.NewReader(result.Record.Intent.Claims))
	decoder.UseNumber()
	if err := decoder.Decode(&claims); err != nil {
		return AccessToken{}, fmt.Errorf("%w: its own claims: %w", errFault, err)
	}
	out := AccessToken{
		AccessToken: t.Token, TokenType: t.TokenType, ExpiresIn: t.ExpiresIn, Scope: t.Scope,
		AuthorizationDetails: claims.Details,
	}
	if person := broker.PersonOf(result.Record.Request.User); person != nil {
		out.OnBehalfOf = TokenPerson{Iss: person.Issuer, Sub: person.Subject}
	}
	if result.Record.Request.Parent != nil || result.Record.Request.User != nil {
		out.IssuedTokenType = TokenTypeAccessToken
	}
	return out, nil
}

// exchange handles token exchange (RFC 8693). The subject token is either a token of the caller, which it delegates to an actor,
// or the ID token of a person, on whose behalf the caller requests a token. In the second case the caller itself is the actor.
func (s *Server) exchange(ctx context.Context, who attest.Identity, f form, jkt string, deliver broker.Deliver) error {
	switch {
	case !slices.Contains([]TokenType{"", TokenTypeAccessToken, TokenTypeJWT}, TokenType(f["requested_token_type"])):
		return badMember("requested_token_type", OAuthInvalidRequest, "is not a supported token type")
	case TokenType(f["subject_token_type"]) != TokenTypeIDToken && jkt != "":
		return badMember("DPoP", OAuthInvalidRequest, "must be omitted: the new token belongs to the actor, not to the holder of the subject token")
	case TokenType(f["subject_token_type"]) != TokenTypeIDToken:
		return s.exchangeToken(ctx, who, f, deliver)
	case f["actor_token"]+f["actor_token_type"] != "":
		return badMember("actor_token", OAuthInvalidRequest, "must be omitted if the subject token is an ID token: the client itself is the actor")
	case f["subject_token"] == "":
		return badMember("subject_token", OAuthInvalidRequest, "is required")
	}
	user, err := s.delegator(ctx, "subject_token", f["subject_token"])
	if err != nil {
		return err
	}
	return s.ask(ctx, who, f, broker.Request{JKT: jkt, User: user}, deliver)
}

// exchangeToken issues a token for a sub-agent in exchange for the caller's own token. Only the holder of that token can exchange
// it.
func (s *Server) exchangeToken(ctx context.Context, who attest.Identity, f form, deliver broker.Deliver) error {
	if TokenType(f["subject_token_type"]) != TokenTypeAccessToken {
		return badMember("subject_token_type", OAuthInvalidRequest, "is missing, or is not a supported token type")
	}
	if TokenType(f["actor_token_type"]) != TokenTypeJWT {
		return badMember("actor_token_type", OAuthInvalidRequest, "is missing, or is not a supported token type")
	}
	t, err := s.presented(f["subject_token"])
	switch {
	case errors.Is(err, errKeys):
		return err
	case err != nil:
		return badMember("subject_token", OAuthInvalidRequest, "is not a valid access token")
	}
	if err := agrees(f, t.Token); err != nil {
		return err
	}
	to, err := s.cfg.Attestor.Actor(f["actor_token"])
	switch {
	case errors.Is(err, attest.ErrBundleUnavailable):
		return &requestError{kind: errBundle, detail: refusal.Reason(err)}
	case err != nil:
		return badMember("actor_token", OAuthInvalidRequest, "is not a valid JWT-SVID for "+attest.ActorAudience(s.cfg.Broker.Issuer()))
	case to.ID().String() == t.Token.Holder():
		return badMember("actor_token", OAuthInvalidRequest, "is the SVID of the sandbox that already holds the token")
	}
	ttl, err := readTTL(f["ttl"])
	if err != nil {
		return err
	}
	if err := checkText("reason", f["reason"]); err != nil {
		return err
	}
	err = s.cfg.Broker.Delegate(ctx, who, broker.TokenExchange{PresentedToken: t, To: to, TTL: ttl, Reason: f["reason"]}, deliver)
	if unfit, ok := errors.AsType[*broker.NotExchangeableError](err); ok {
		return badMember("subject_token", OAuthInvalidRequest, unfit.Why)
	}
	return err
}

// agrees checks that the parameters of the form, where present, equal those of the subject token: the new token allows the same
// action, for the same audience and task.
func agrees(f form, t token.Claims) error {
	if f["scope"] != "" && f["scope"] != t.Scope {
		return badMember("scope", OAuthInvalidScope, "differs from the scope of the subject token")
	}
	for _, field := range (scopes.RequestContext{Task: t.Task}).Fields() {
		if f[field.Name] != "" && f[field.Name] != field.Value {
			return badMember(field.Name, OAuthInvalidRequest, "differs from that of the subject token")
		}
	}
	for _, name := range repeatable {
		if f[name] != "" && f[name] != t.Audience {
			return badMember(name, OAuthInvalidTarget, "differs from the audience of the subject token")
		}
	}
	if f["authorization_details"] == "" {
		return nil
	}
	d, err := readDetails(f)
	if err != nil {
		return err
	}
	params, err := d.params()
	if err != nil {
		return err
	}
	// Parameters are compared as they are written. A different spelling of the same value is not equal.
	same := func(granted token.Detail) bool {
		return d.Type == granted.Type && (d.Actions == nil || slices.Equal(d.Actions, granted.Actions)) &&
			(d.Locations == nil || slices.Equal(d.Locations, granted.Locations)) &&
			(d.Identifier == "" || d.Identifier == granted.Identifier) &&
			(len(params)+len(granted.Params) == 0 || reflect.DeepEqual(params, granted.Params))
	}
	if len(t.Details) != 1 || !same(t.Details[0]) {
		return badDetails("differs from the authorization_details of the subject token")
	}
	return nil
}
