package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/secret"
)

// maxReason is the longest reason, in bytes. openapi.yaml can only count characters.
const maxReason = 1000

// pollAfter is the seconds that a caller is asked to wait before it looks whether a person has decided.
const pollAfter = 5

// IssueToken is the way down: who, what, then the broker.
func (s *Server) IssueToken(w http.ResponseWriter, r *http.Request, _ IssueTokenParams) {
	who, err := s.attest(r, "issueToken")
	if err != nil {
		s.fail(w, r, nobody, err)
		return
	}
	req, err := s.readRequest(w, r, who)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	result, err := s.cfg.Broker.Issue(r.Context(), who, req)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	s.deliver(w, r, who, result)
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
		return broker.Request{}, typeFinding(err)
	}
	if len(ask.Reason) > maxReason {
		return broker.Request{}, &finding{kind: errInvalid, field: "reason", detail: "reason"}
	}
	return broker.Request{
		Scope: ask.Scope, Params: ask.Params, TTL: time.Duration(ask.TTL) * time.Second,
		Task: ask.Task, Reason: ask.Reason, IdempotencyKey: key,
	}, nil
}

// typeFinding names the member that the validator let pass and Go's types do not, such as a TTL of 1e2.
func typeFinding(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field == "ttl" {
		return &finding{kind: errInvalid, field: wrong.Field, detail: wrong.Field}
	}
	return &finding{kind: errInvalid, detail: "body"}
}

// deliver writes what became of a request.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, who attest.Identity, result broker.Result) {
	if earlier := result.Earlier; earlier != nil {
		s.deliverEarlier(w, r, who, earlier)
		return
	}
	rec := result.Record
	d := rec.Decision
	s.metrics.decisions.WithLabelValues(string(d.Outcome), authorityOf(d)).Inc()
	switch {
	case d.Outcome == scopes.Allow && result.Credential != nil:
		writeJSON(w, http.StatusCreated, s.token(rec, result.Credential.Secret))
	case d.Outcome == scopes.Pending && d.Approval != nil:
		writePending(w, Pending{
			ID: rec.ID, Status: StatusPending, ExpiresAt: rec.Expires,
			Approval: Approval{Group: d.Approval.Group, Quorum: d.Approval.Quorum},
		})
	case d.Outcome == scopes.Deny:
		s.fail(w, r, who, denialOf(rec))
	default:
		s.fail(w, r, who, errFault)
	}
}

// deliverEarlier answers a repeated idempotency key with what its request became. It never holds a credential.
func (s *Server) deliverEarlier(w http.ResponseWriter, r *http.Request, who attest.Identity, v *broker.View) {
	if v.Status == broker.StatusPending {
		writePending(w, Pending{
			ID: v.ID, Status: StatusPending, ExpiresAt: v.Expires,
			Approval: Approval{Group: v.ApprovalGroup, Quorum: v.ApprovalQuorum},
		})
		return
	}
	s.fail(w, r, who, &denial{id: v.ID, reason: v.DecisionCode, explanation: v.Explanation, policies: v.Policies, catalogue: v.Catalogue})
}

// token is the one place where a credential is revealed.
func (s *Server) token(rec broker.Record, credential secret.Text) Token {
	d := rec.Decision
	out := Token{
		ID: rec.ID, Token: credential.Reveal(), TokenType: "Bearer",
		ExpiresAt: rec.Expires, ExpiresIn: seconds(max(0, rec.Expires.Sub(s.cfg.Now()))),
		Scope: rec.Request.Scope, Resource: d.Resource, Task: rec.Request.Task, TTL: seconds(d.TTL),
		Policies: list(d.Policies), Catalogue: d.Catalogue,
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
