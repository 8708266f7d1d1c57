package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// maxReason and maxKey are the maximum length of a reason and of a key that the caller sends, in bytes. openapi.yaml can only
// count characters.
const maxReason, maxKey = 1000, 8 << 10

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

// checkKeys limits the length of the caller's keys in bytes.
func checkKeys(csr, publicKey string) error {
	for _, key := range []struct{ member, text string }{{"csr", csr}, {"public_key", publicKey}} {
		if len(key.text) > maxKey {
			return &requestError{kind: errInvalid, field: key.member, detail: key.member}
		}
	}
	return nil
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
