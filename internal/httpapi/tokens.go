package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// pollAfter is the number of seconds between polls for a decision by people.
const pollAfter = 5

// tokenRequest is the TokenRequest of openapi.yaml. It embeds the request context, so that a new field of it arrives by itself. A test
// compares the members.
type tokenRequest struct {
	Scope  string `json:"scope"`
	Params Params `json:"params"`
	TTL    int64  `json:"ttl"`
	scopes.RequestContext
	Reason     string `json:"reason"`
	CSR        string `json:"csr"`
	PublicKey  string `json:"public_key"`
	OnBehalfOf string `json:"on_behalf_of"`
}

// IssueToken authenticates the sandbox, reads the request, and lets the broker issue and deliver the credential.
func (s *Server) IssueToken(w http.ResponseWriter, r *http.Request, _ IssueTokenParams) {
	serve(s, w, r, "issueToken", func(who attest.Identity) error {
		ask, err := readOrder[tokenRequest](s, w, r, who)
		if err != nil {
			return err
		}
		key, err := idempotencyKey(r)
		if err != nil {
			return err
		}
		if err := checkKeys(ask.CSR, ask.PublicKey); err != nil {
			return err
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return err
		}
		user, err := s.delegator(r.Context(), "on_behalf_of", ask.OnBehalfOf)
		if err != nil {
			return err
		}
		leave, err := s.enter(who)
		if err != nil {
			return err
		}
		defer leave()
		jkt, err := s.requireDPoP(w, r, who)
		if err != nil {
			return err
		}
		return s.cfg.Broker.Issue(r.Context(), who, broker.Request{
			Scope: ask.Scope, Params: ask.Params, TTL: time.Duration(ask.TTL) * time.Second, RequestContext: ask.RequestContext,
			Reason: ask.Reason, CSR: ask.CSR, PublicKey: ask.PublicKey, JKT: jkt, IdempotencyKey: key, User: user,
		}, func(result broker.Result) error {
			leave() // a caller that reads slowly must not hold a place
			return s.deliver(w, r, result)
		})
	})
}

// enter takes a place among the credentials that are issued at once. The caller must call leave to free it; more calls of leave
// do nothing.
func (s *Server) enter(who attest.Identity) (leave func(), err error) { return enter(s.issuing, who) }

func enter(places *ratelimit.FairSemaphore, who attest.Identity) (leave func(), err error) {
	leave, err = places.Enter(who.ID().TrustDomain().Name(), who.ID().String())
	switch {
	case errors.Is(err, ratelimit.ErrKeyBusy):
		return nil, &requestError{kind: errTooMany, detail: "lane"}
	case err != nil:
		return nil, &requestError{kind: errBusy, detail: "lane"}
	}
	return leave, nil
}

// await waits for a place in a queue, in turn with the other trust domains and callers. The caller must call leave to free it.
func await(r *http.Request, places *ratelimit.FairQueue, who caller) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), readPatience)
	defer cancel()
	group := ""
	if workload, ok := who.(attest.Identity); ok {
		group = workload.ID().TrustDomain().Name()
	}
	leave, err = places.Enter(ctx, group, nameOf(who))
	switch {
	case errors.Is(err, ratelimit.ErrKeyBusy):
		return nil, &requestError{kind: errTooMany, detail: "lane"}
	case err != nil:
		return nil, &requestError{kind: errBusy, detail: "lane"}
	}
	return leave, nil
}

// deliver writes a result: a credential, the state of a pending request, or the state of an earlier request. It returns a denial
// as an error.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, result broker.Result) error {
	if v := result.Earlier; v != nil {
		if v.Status != broker.StatusPending {
			return rejection(v)
		}
		writePending(w, Pending{ID: v.ID, Status: StatusPending, ExpiresAt: v.Expires, Approval: s.linked(v.ID, approvalOf(v)), Earlier: true})
		return nil
	}
	rec := result.Record
	d := rec.Decision
	s.countDecision(d)
	switch {
	case d.Outcome == scopes.Allow && (result.Credential != nil || rec.Intent.Kind == scopes.KindNone):
		return handOver(w, r, http.StatusCreated, s.token(result), result.Credential)
	case d.Outcome == scopes.Pending && d.Approval != nil:
		writePending(w, Pending{
			ID: rec.ID, Status: StatusPending, ExpiresAt: rec.Expires,
			Approval: s.linked(rec.ID, Approval{Group: d.Approval.Group, Quorum: d.Approval.Quorum, BreakGlass: d.Approval.BreakGlass}),
		})
		return nil
	case d.Outcome == scopes.Deny:
		return s.denial(w.Header(), rec)
	}
	return errFault
}

func (s *Server) countDecision(d scopes.Decision) {
	s.metrics.decisions.WithLabelValues(string(d.Outcome), authorityOf(d)).Inc()
	if d.Reason == scopes.ReasonBreakGlass {
		s.metrics.broken.WithLabelValues("issuance").Inc()
	}
}

// handOver writes an answer with a credential to the caller's connection. If Brevet renews or revokes the credential next, it sends the
// answer now. It sets Content-Length, so the caller can use the answer meanwhile. Errors after the answer has begun wrap errCutOff.
func handOver(w http.ResponseWriter, r *http.Request, status int, answer any, credential *broker.Credential) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return errFault // the error itself can quote the credential
	}
	// This is checked before the flush, not after it: many clients disconnect as soon as they have the whole response.
	if err := r.Context().Err(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // for the log: the caller has disconnected
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err = w.Write(body)
	if err == nil && credential != nil && credential.Minted != nil {
		// Flush of a wrapper returns no error, so it is called on what the wrappers wrap.
		inner := w
		for {
			wrapper, ok := inner.(interface{ Unwrap() http.ResponseWriter })
			if !ok {
				break
			}
			inner = wrapper.Unwrap()
		}
		err = http.NewResponseController(inner).Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	return nil
}

// token is the only function that reveals a credential. There is none if the record is a permit.
func (s *Server) token(result broker.Result) Token {
	rec, credential := result.Record, result.Credential
	d := rec.Decision
	out := Token{
		ID: rec.ID, Kind: rec.Intent.Kind,
		ExpiresAt: rec.Expires, ExpiresIn: seconds(max(0, rec.Expires.Sub(s.cfg.Now()))),
		Scope: rec.Request.Scope, Resource: d.Resource, Task: rec.Request.Task, TTL: seconds(d.TTL),
		Policies: list(d.Policies), Catalogue: d.Catalogue, BreakGlass: d.Reason == scopes.ReasonBreakGlass,
	}
	switch {
	case credential == nil:
	case out.Kind == scopes.KindJWT:
		out.Token, out.TokenType = credential.Secret.Reveal(), "Bearer"
		if rec.Request.JKT != "" {
			out.TokenType = "DPoP"
		}
	default:
		out.Credential = json.RawMessage(credential.Secret.Reveal())
	}
	if grant := rec.Intent.Grant; grant != nil {
		out.Static = grant.Static
	}
	if rec.Request.User != nil {
		out.OnBehalfOf = rec.Request.User.ID
	}
	if credential != nil && credential.Minted != nil {
		out.Name = credential.Minted.Name
	}
	out.Exchange = exchangeOf(d.Exchange, rec.Intent.Audience)
	for _, clamp := range d.Clamps {
		out.Clamped = append(out.Clamped, Clamp{Bound: clamp.Bound, From: seconds(clamp.From), To: seconds(clamp.To)})
	}
	return out
}

// exchangeOf describes an exchange. Its zero value stays out of an answer.
func exchangeOf(e scopes.Exchange, audience string) Exchange {
	if e.As == "" {
		return Exchange{}
	}
	return Exchange{
		As: ExchangeAs(e.As), URL: e.URL, Audience: audience, Role: e.Role, Region: e.Region,
		ServiceAccount: e.ServiceAccount, Scopes: e.Scopes, IamURL: e.IAM, Tenant: e.Tenant, Client: e.Client, Scope: e.Scope,
		Organization: e.Organization, Rule: e.Rule, Workspace: e.Workspace, IdentityProvider: e.IdentityProvider,
	}
}

func writePending(w http.ResponseWriter, p Pending) {
	w.Header().Set("Location", "/v1/requests/"+p.ID)
	w.Header().Set("Retry-After", strconv.Itoa(pollAfter))
	writeJSON(w, http.StatusAccepted, p)
}

// denial returns the error for a denial by policy. If only the proof was missing, it gives the caller a nonce for one.
func (s *Server) denial(h http.Header, rec broker.Record) error {
	d := rec.Decision
	if d.Reason == scopes.ReasonProofRequired {
		s.giveNonce(h)
	}
	return &requestError{kind: errDenied, tell: func(p *Problem) {
		p.ID, p.Reason, p.Explanation, p.Catalogue, p.Policies = rec.ID, d.Reason, d.Explanation, d.Catalogue, list(d.Policies)
		if d.Approval != nil {
			p.Approvers = d.Approval.Group
		}
		if d.Narrowest != nil {
			n := d.Narrowest
			p.Narrowest = NarrowestAsk{Scope: n.Scope, Params: n.Params, TTL: seconds(n.TTL), Context: n.Stated()}
		}
	}}
}

// rejection describes a request that people did not approve, or that has ended, in the same form as a denial by policy.
func rejection(v *broker.View) error {
	if v.Status == broker.StatusVoid {
		return v.Voided()
	}
	reason, explanation, group := string(v.Status), "", "the group "+v.ApprovalGroup
	if v.BreakGlass != "" {
		group += " or " + v.BreakGlass
	}
	switch v.Status {
	case broker.StatusRejected:
		explanation = "A member of " + group + " denied the request."
	case broker.StatusWithdrawn:
		explanation = "The request was withdrawn."
	case broker.StatusExpired:
		explanation = "The request expired before it was decided or redeemed."
	default:
		reason, explanation = v.DecisionCode, strings.TrimSpace(v.Explanation)
	}
	return &requestError{kind: errDenied, tell: func(p *Problem) {
		p.ID, p.Reason, p.Explanation, p.Catalogue = v.ID, reason, explanation, v.Catalogue
		p.Policies, p.Approvers = list(v.Policies), v.ApprovalGroup
	}}
}

func authorityOf(d scopes.Decision) string {
	if d.Scope == nil {
		return "none"
	}
	return string(d.Scope.Authority)
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// list returns s, or an empty list if s is nil: the JSON member is required.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// approvalOf returns which group decides, or decided, on a request.
func approvalOf(v *broker.View) Approval {
	return Approval{Group: v.ApprovalGroup, Quorum: v.ApprovalQuorum, BreakGlass: v.BreakGlass, Broken: v.Broken}
}

// linked adds to an approval the console's page of the request, which a sandbox can pass on to people.
func (s *Server) linked(request string, a Approval) Approval {
	if s.cfg.ConsoleURL != "" && a.Group != "" {
		a.URL = s.cfg.ConsoleURL + "/approvals/" + request
	}
	return a
}

// RedeemRequest issues and delivers the credential of an approved request.
func (s *Server) RedeemRequest(w http.ResponseWriter, r *http.Request, id ID, _ RedeemRequestParams) {
	serve(s, w, r, "redeemRequest", func(who attest.Identity) error {
		if !ourID(id) {
			return unknown("id")
		}
		ask, err := readOrder[Redemption](s, w, r, who)
		if err != nil {
			return err
		}
		if err := checkKeys(ask.Csr, ask.PublicKey); err != nil {
			return err
		}
		leave, err := s.enter(who)
		if err != nil {
			return err
		}
		defer leave()
		claim := broker.Redemption{Request: id, CSR: ask.Csr, PublicKey: ask.PublicKey}
		if claim.JKT, err = s.requireDPoP(w, r, who); err != nil {
			return err
		}
		return notFound(s.cfg.Broker.RedeemApproval(r.Context(), who, claim, func(result broker.Result) error {
			leave() // a caller that reads slowly must not hold a place
			return s.deliver(w, r, result)
		}), "id")
	})
}

// WithdrawRequest withdraws one of the caller's own requests.
func (s *Server) WithdrawRequest(w http.ResponseWriter, r *http.Request, id ID) {
	serve(s, w, r, "withdrawRequest", func(who attest.Identity) error {
		if err := s.rules.checkID(r, who, id); err != nil {
			return err
		}
		leave, err := enter(s.ending, who)
		if err != nil {
			return err
		}
		defer leave()
		if err := s.cfg.Broker.Withdraw(r.Context(), who, id); err != nil {
			return notFound(err, "id")
		}
		writeNoContent(w)
		return nil
	})
}

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
		inForce, err := s.cfg.Broker.Alive(r.Context(), v)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, RequestState{
			ID: v.ID, Status: Status(v.Status), StatusDetail: v.StatusDetail, StatusAt: v.StatusTime, InForce: inForce,
			Decision: Decision(v.Decision), DecisionCode: v.DecisionCode, Explanation: v.Explanation,
			Scope: v.Scope, Task: v.Task, ExpiresAt: v.Expires,
			Approval: s.linked(v.ID, approvalOf(v)), VotesCast: v.Votes, RedeemedBy: v.RedeemedBy,
		})
		return nil
	})
}

// ListInForce returns which of a sandbox's own credentials are in force.
func (s *Server) ListInForce(w http.ResponseWriter, r *http.Request) {
	serve(s, w, r, "listInForce", func(who attest.Identity) error {
		leave, err := enter(s.confirming, who) // before the body, which costs as much to read as its answer to find
		if err != nil {
			return err
		}
		defer leave()
		ask, err := readOrder[InForceRequest](s, w, r, who)
		if err != nil {
			return err
		}
		alive, err := s.cfg.Broker.AliveAmong(r.Context(), who.ID().String(), ask.Ids)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, InForce{Ids: append([]string{}, alive...)})
		return nil
	})
}

// waitFor holds a call until one of the caller's requests is no longer pending, or until the time that the caller gave is over.
func (s *Server) waitFor(w http.ResponseWriter, r *http.Request, v *broker.View, wait string) (*broker.View, error) {
	longest, err := time.ParseDuration(wait)
	if err != nil || v.Status != broker.StatusPending {
		return v, nil
	}
	if err := http.NewResponseController(w).SetWriteDeadline(s.cfg.Now().Add(longest + writeTimeout)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	defer cancel()
	go func() {
		select {
		case <-s.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	if !s.cfg.Broker.Await(ctx, v.ID, v.Subject.ID.String()) {
		return v, nil
	}
	return s.cfg.Broker.Get(r.Context(), v.ID, broker.Reach{Subject: v.Subject.ID.String()})
}

// ListScopes lists the scopes that a sandbox may request.
func (s *Server) ListScopes(w http.ResponseWriter, r *http.Request) {
	serve(s, w, r, "listScopes", func(who attest.Identity) error {
		if err := s.rules.check(r, who, nil); err != nil {
			return err
		}
		if !s.offers.Allow(who.ID().String(), s.cfg.Now()) {
			return &requestError{kind: errPace, detail: "pace"}
		}
		offers, catalogue := s.cfg.Broker.Offers(who)
		list := ScopeList{Catalogue: catalogue, Scopes: make([]OfferedScope, len(offers))}
		for i, offer := range offers {
			list.Scopes[i] = offeredScope(offer)
		}
		writeJSON(w, http.StatusOK, list)
		return nil
	})
}

func offeredScope(offer scopes.Offer) OfferedScope {
	scope := offer.Scope
	out := OfferedScope{
		Name: scope.Name, Title: scope.Title, Authority: string(scope.Authority), Params: make(map[string]ScopeParam, len(scope.Params)),
		TTLDefault: seconds(scope.TTL.Default), TTLMax: seconds(scope.TTL.Max),
		Approval: OfferedScopeApproval(offer.Approval), Credential: scope.Credential.Kind,
		Bind: cmp.Or(OfferedScopeBind(scope.Credential.Bind), BindNone),
		Csr:  scope.Credential.Kind == scopes.KindPKI && !scope.Credential.ServerKey,
	}
	out.Exchange = exchangeOf(scope.Credential.Federation.Exchange, scope.Credential.Audience)
	for name, p := range scope.Params {
		param := ScopeParam{Type: string(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Values: p.Values}
		if p.Type == scopes.ParamInt {
			param.Min, param.Max = &p.Min, &p.Max
		}
		out.Params[name] = param
	}
	for _, rule := range scope.Egress {
		egress := EgressRule{Hosts: rule.Hosts, Databases: rule.Databases}
		if len(rule.Databases) == 0 {
			egress.Methods, egress.Paths, egress.Headers = rule.Methods, rule.Paths, rule.Headers
		}
		if len(rule.Databases) == 0 && scope.Credential.Kind != scopes.KindNone {
			send := rule.Send
			egress.Send = EgressSend{
				As: cmp.Or(EgressSendAs(send.As), SendBearer), Name: send.Name, User: send.User, Field: send.Field,
				Service: send.Service, Region: send.Region,
			}
		}
		out.Egress = append(out.Egress, egress)
	}
	return out
}
