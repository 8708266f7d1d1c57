package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// maxReason and maxKey are the longest reason and the longest key of the caller's own, in bytes. openapi.yaml can only
// count characters.
const maxReason, maxKey = 1000, 8 << 10

// pollAfter is the seconds that a caller is asked to wait before it looks whether a person has decided.
const pollAfter = 5

// IssueToken is the way down: who, what, then the broker.
func (s *Server) IssueToken(w http.ResponseWriter, r *http.Request, _ IssueTokenParams) {
	who, caller, err := s.authenticateWorkload(r, "issueToken")
	if err != nil {
		s.fail(w, r, caller, err)
		return
	}
	req, err := s.readRequest(w, r, who)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	leave, err := s.making.enter(who)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	defer leave()
	if req.JKT, err = s.requireDPoP(w, r, who); err != nil {
		s.fail(w, r, who, err)
		return
	}
	result, err := s.cfg.Broker.Issue(r.Context(), who, req)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	leave()               // whoever is slow to read the answer is so at nobody's cost
	delivery := errCutOff // until it is known to have gone well, a panic included
	defer func() { s.cfg.Broker.Delivered(context.WithoutCancel(r.Context()), result, delivery) }()
	delivery = s.deliver(w, r, who, result)
}

// readRequest reads the body strictly, holds the call to openapi.yaml, and only then turns it into a request.
func (s *Server) readRequest(w http.ResponseWriter, r *http.Request, who attest.Identity) (broker.Request, error) {
	const operation = "issueToken"
	body, err := readBody(w, r, s.rules.body[operation])
	if err != nil {
		return broker.Request{}, err
	}
	if err := s.rules.check(r, who, operation, body); err != nil {
		return broker.Request{}, err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return broker.Request{}, err
	}
	var ask TokenRequest
	// Numbers stay as they were written, so that none is rounded on the way to where it is judged.
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&ask); err != nil {
		return broker.Request{}, typeError(err)
	}
	for _, text := range []struct {
		member, value string
		most          int
	}{{"csr", ask.Csr, maxKey}, {"public_key", ask.PublicKey, maxKey}} {
		if len(text.value) > text.most {
			return broker.Request{}, &requestError{kind: errInvalid, field: text.member, detail: text.member}
		}
	}
	if err := checkReason(ask.Reason); err != nil {
		return broker.Request{}, err
	}
	user, err := s.delegator(r.Context(), "on_behalf_of", ask.OnBehalfOf)
	return broker.Request{
		Scope: ask.Scope, Params: ask.Params, TTL: time.Duration(ask.TTL) * time.Second,
		Task: ask.Task, Reason: ask.Reason, CSR: ask.Csr, PublicKey: ask.PublicKey, IdempotencyKey: key, User: user,
	}, err
}

// typeError names the member that the validator let pass and Go's types do not, such as a TTL of 1e2 or the 31st of
// February.
func typeError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field == "ttl" {
		return &requestError{kind: errInvalid, field: wrong.Field, detail: wrong.Field}
	}
	var noTime *time.ParseError
	if errors.As(err, &noTime) {
		return &requestError{kind: errInvalid, field: "at", detail: "at"}
	}
	return &requestError{kind: errInvalid, detail: "body"}
}

// deliver writes what became of a request. It returns nil only when a credential in it has left.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, who attest.Identity, result broker.Result) error {
	if earlier := result.Earlier; earlier != nil {
		s.deliverEarlier(w, r, who, earlier)
		return errCutOff
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
	case d.Outcome == scopes.Deny:
		s.wantsProof(w.Header(), d)
		s.fail(w, r, who, denialOf(rec))
	default:
		s.fail(w, r, who, errFault)
	}
	return errCutOff
}

func (s *Server) countDecision(d scopes.Decision) {
	s.metrics.decisions.WithLabelValues(string(d.Outcome), authorityOf(d)).Inc()
	if d.Reason == scopes.ReasonBreakGlass {
		s.metrics.broken.WithLabelValues("issuance").Inc()
	}
}

// handOver writes a credential out to the caller's connection. The length is known, so that the caller has the whole
// answer while the credential is still being renewed.
func (s *Server) handOver(w http.ResponseWriter, r *http.Request, status int, credential any) error {
	body, err := json.Marshal(credential)
	if err != nil {
		s.fail(w, r, nobody, errFault) // the error can quote the credential
		return errFault
	}
	// Asked now and not after the flush: many a caller hangs up as soon as it has the whole answer.
	if err := r.Context().Err(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // for the log: nobody is there to read it
		return fmt.Errorf("writing a credential: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("writing a credential: %w", err)
	}
	if err := flush(w); err != nil {
		return fmt.Errorf("writing a credential: %w", err)
	}
	return nil
}

// flush empties the buffers above the socket, and tells whether that went well: the wrappers on the way have a Flush
// that does not tell.
func flush(w http.ResponseWriter) error {
	for {
		if inner, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			w = inner.Unwrap()
			continue
		}
		return http.NewResponseController(w).Flush()
	}
}

// deliverEarlier answers a repeated idempotency key, or a claim that comes too early, with what the request became. It
// never holds a credential.
func (s *Server) deliverEarlier(w http.ResponseWriter, r *http.Request, who attest.Identity, v *broker.View) {
	if v.Status == broker.StatusPending || v.Status == broker.StatusApproved {
		writePending(w, Pending{ID: v.ID, Status: Status(v.Status), ExpiresAt: v.Expires, Approval: approvalOf(v)})
		return
	}
	s.fail(w, r, who, rejection(v))
}

// token is the one place where a credential is revealed.
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

// denial is policy's no, with what the caller is told of it.
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

// list makes an absent list an empty one: the member is required.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
