package httpapi

import (
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

// IssueToken authenticates the sandbox, reads the request, and lets the broker issue and deliver the credential.
func (s *Server) IssueToken(w http.ResponseWriter, r *http.Request, _ IssueTokenParams) {
	serve(s, w, r, "issueToken", func(who attest.Identity) error {
		ask, err := readOrder[TokenRequest](s, w, r, who, "issueToken")
		if err != nil {
			return err
		}
		key, err := idempotencyKey(r)
		if err != nil {
			return err
		}
		if err := checkKeys(ask.Csr, ask.PublicKey); err != nil {
			return err
		}
		if err := checkReason(ask.Reason); err != nil {
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
			Scope: ask.Scope, Params: ask.Params, TTL: time.Duration(ask.TTL) * time.Second, Task: ask.Task, Reason: ask.Reason,
			CSR: ask.Csr, PublicKey: ask.PublicKey, JKT: jkt, IdempotencyKey: key, User: user,
		}, func(result broker.Result) error {
			leave() // a caller that reads slowly must not hold a place
			return s.deliver(w, r, result)
		})
	})
}

// deliver writes a result: a credential, the state of a pending request, or the state of an earlier request. It returns a denial
// as an error.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, result broker.Result) error {
	if v := result.Earlier; v != nil {
		if v.Status != broker.StatusPending && v.Status != broker.StatusApproved {
			return rejection(v)
		}
		writePending(w, Pending{ID: v.ID, Status: Status(v.Status), ExpiresAt: v.Expires, Approval: approvalOf(v)})
		return nil
	}
	rec := result.Record
	d := rec.Decision
	s.countDecision(d)
	switch {
	case d.Outcome == scopes.Allow && result.Credential != nil:
		return s.handOver(w, r, http.StatusCreated, s.token(result))
	case d.Outcome == scopes.Pending && d.Approval != nil:
		writePending(w, Pending{
			ID: rec.ID, Status: StatusPending, ExpiresAt: rec.Expires,
			Approval: Approval{Group: d.Approval.Group, Quorum: d.Approval.Quorum, BreakGlass: d.Approval.BreakGlass},
		})
		return nil
	case d.Outcome == scopes.Deny:
		s.wantsProof(w.Header(), d)
		return denialOf(rec)
	}
	return errFault
}

func (s *Server) countDecision(d scopes.Decision) {
	s.metrics.decisions.WithLabelValues(string(d.Outcome), authorityOf(d)).Inc()
	if d.Reason == scopes.ReasonBreakGlass {
		s.metrics.broken.WithLabelValues("issuance").Inc()
	}
}

// handOver writes a credential to the caller's connection. It sets Content-Length, so the caller can use the response while
// Brevet still renews the credential. Errors after the response has begun wrap errCutOff.
func (s *Server) handOver(w http.ResponseWriter, r *http.Request, status int, credential any) error {
	body, err := json.Marshal(credential)
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
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	if err := flush(w); err != nil {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	return nil
}

// flush empties the buffers above the socket, and returns an error if that fails. It unwraps w first: Flush of the wrappers
// returns no error.
func flush(w http.ResponseWriter) error {
	for {
		if inner, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			w = inner.Unwrap()
			continue
		}
		return http.NewResponseController(w).Flush()
	}
}

// token is the only function that reveals a credential.
func (s *Server) token(result broker.Result) Token {
	rec, revealed := result.Record, result.Credential.Secret.Reveal()
	d := rec.Decision
	out := Token{
		ID: rec.ID, Kind: rec.Intent.Kind,
		ExpiresAt: rec.Expires, ExpiresIn: seconds(max(0, rec.Expires.Sub(s.cfg.Now()))),
		Scope: rec.Request.Scope, Resource: d.Resource, Task: rec.Request.Task, TTL: seconds(d.TTL),
		Policies: list(d.Policies), Catalogue: d.Catalogue, BreakGlass: d.Reason == scopes.ReasonBreakGlass,
	}
	if out.Kind == scopes.KindJWT {
		out.Token, out.TokenType = revealed, "Bearer"
		if rec.Request.JKT != "" {
			out.TokenType = "DPoP"
		}
	} else {
		out.Credential = json.RawMessage(revealed)
	}
	if grant := rec.Intent.Grant; grant != nil {
		out.Static = grant.Static
	}
	if rec.Request.User != nil {
		out.OnBehalfOf = rec.Request.User.ID
	}
	if minted := result.Credential.Minted; minted != nil {
		out.Name = minted.Name
	}
	for _, clamp := range d.Clamps {
		out.Clamped = append(out.Clamped, Clamp{Bound: clamp.Bound, From: seconds(clamp.From), To: seconds(clamp.To)})
	}
	return out
}

func writePending(w http.ResponseWriter, p Pending) {
	w.Header().Set("Location", "/v1/requests/"+p.ID)
	w.Header().Set("Retry-After", strconv.Itoa(pollAfter))
	writeJSON(w, http.StatusAccepted, p)
}

// denial is a denial by policy, with what the caller learns about it.
type denial struct {
	id, reason, explanation, catalogue, approvers string
	policies                                      []string
	narrowest                                     *scopes.Ask
}

func denialOf(rec broker.Record) *denial {
	d := rec.Decision
	out := &denial{
		id: rec.ID, reason: d.Reason, explanation: d.Explanation, catalogue: d.Catalogue,
		policies: d.Policies, narrowest: d.Narrowest,
	}
	if d.Approval != nil {
		out.approvers = d.Approval.Group
	}
	return out
}

func (d *denial) Error() string { return errDenied.Error() }

func (d *denial) Unwrap() error { return errDenied }

func (d *denial) tell(p *Problem) {
	p.ID, p.Reason, p.Explanation, p.Catalogue = d.id, d.reason, d.explanation, d.catalogue
	p.Policies, p.Approvers = list(d.policies), d.approvers
	if d.narrowest != nil {
		p.Narrowest = NarrowestAsk{Scope: d.narrowest.Scope, Params: d.narrowest.Params, TTL: seconds(d.narrowest.TTL)}
	}
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

// enter takes a place among the credentials that are issued at once. The caller must call leave to free it; more calls of leave
// do nothing.
func (s *Server) enter(who attest.Identity) (leave func(), err error) {
	leave, err = s.issuing.Enter(who.ID().String())
	switch {
	case errors.Is(err, ratelimit.ErrKeyBusy):
		return nil, &requestError{kind: errTooMany, detail: "lane"}
	case err != nil:
		return nil, &requestError{kind: errBusy, detail: "lane"}
	}
	return leave, nil
}

// RedeemRequest issues and delivers the credential of an approved request.
func (s *Server) RedeemRequest(w http.ResponseWriter, r *http.Request, id ID, _ RedeemRequestParams) {
	const operation = "redeemRequest"
	serve(s, w, r, operation, func(who attest.Identity) error {
		if !ourID(id) {
			return &requestError{kind: broker.ErrNotFound, detail: "id"}
		}
		ask, err := readOrder[Redemption](s, w, r, who, operation)
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
	const operation = "withdrawRequest"
	serve(s, w, r, operation, func(who attest.Identity) error {
		if !ourID(id) {
			return &requestError{kind: broker.ErrNotFound, detail: "id"}
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		if err := s.cfg.Broker.Withdraw(r.Context(), who, id); err != nil {
			return notFound(err, "id")
		}
		writeNoContent(w)
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

// approvalOf returns which group decides, or decided, on a request.
func approvalOf(v *broker.View) Approval {
	return Approval{Group: v.ApprovalGroup, Quorum: v.ApprovalQuorum, BreakGlass: v.BreakGlass, Broken: v.Broken}
}

// rejection describes a request that people did not approve, or that has ended, in the same form as a denial by policy.
func rejection(v *broker.View) *denial {
	reason := string(v.Status)
	people := "the group " + v.ApprovalGroup
	if v.BreakGlass != "" {
		people += " or " + v.BreakGlass
	}
	explanation := map[broker.Status]string{
		broker.StatusRejected:  "A member of " + people + " denied the request.",
		broker.StatusWithdrawn: "The request was withdrawn.",
		broker.StatusExpired:   "The request expired before it was decided or redeemed.",
	}[v.Status]
	if explanation == "" {
		reason, explanation = v.DecisionCode, v.Explanation
	}
	return &denial{
		id: v.ID, reason: reason, explanation: strings.TrimSpace(explanation), policies: v.Policies, catalogue: v.Catalogue,
		approvers: v.ApprovalGroup,
	}
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
		state := stateOf(v)
		if state.InForce, err = s.cfg.Broker.Alive(r.Context(), v); err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, state)
		return nil
	})
}

func stateOf(v *broker.View) RequestState {
	return RequestState{
		ID: v.ID, Status: Status(v.Status), StatusDetail: v.StatusDetail, StatusAt: v.StatusTime,
		Decision: Decision(v.Decision), DecisionCode: v.DecisionCode, Explanation: v.Explanation,
		Scope: v.Scope, Task: v.Task, ExpiresAt: v.Expires,
		Approval: approvalOf(v), VotesCast: v.Votes, RedeemedBy: v.RedeemedBy,
	}
}

// ListScopes lists the scopes that a sandbox may request.
func (s *Server) ListScopes(w http.ResponseWriter, r *http.Request) {
	const operation = "listScopes"
	serve(s, w, r, operation, func(who attest.Identity) error {
		if err := s.rules.check(r, who, operation, nil); err != nil {
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
		Approval: OfferedScopeApproval(offer.Approval), Credential: scope.Credential.Kind, Bind: BindNone,
		Csr: scope.Credential.Kind == scopes.KindPKI && !scope.Credential.ServerKey,
	}
	if scope.Credential.Bind != "" {
		out.Bind = OfferedScopeBind(scope.Credential.Bind)
	}
	for name, p := range scope.Params {
		param := ScopeParam{Type: string(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Values: p.Values}
		if p.Type == scopes.ParamInt {
			param.Min, param.Max = &p.Min, &p.Max
		}
		out.Params[name] = param
	}
	for _, rule := range scope.Egress {
		out.Egress = append(out.Egress, egressRule(rule))
	}
	return out
}

func egressRule(rule scopes.Egress) EgressRule {
	if len(rule.Databases) > 0 {
		return EgressRule{Hosts: rule.Hosts, Databases: rule.Databases}
	}
	as := EgressSendAs(rule.Send.As)
	if as == "" {
		as = SendBearer
	}
	return EgressRule{
		Hosts: rule.Hosts, Methods: rule.Methods, Paths: rule.Paths,
		Send: EgressSend{
			As: as, Name: rule.Send.Name, User: rule.Send.User, Field: rule.Send.Field, Service: rule.Send.Service, Region: rule.Send.Region,
		},
	}
}
