package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

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
