package httpapi

import (
	"context"
	"net/http"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// AddQuarantine stops issuing to the sandboxes that an admin names, and ends their credentials.
func (s *Server) AddQuarantine(w http.ResponseWriter, r *http.Request) {
	const operation = "addQuarantine"
	s.carryOut(w, r, operation, func(who caller) (deed, error) {
		ask, within, err := readAdminOrder[QuarantineRequest](s, w, r, who, operation)
		if err != nil {
			return nil, err
		}
		if _, err := spiffeid.FromString(ask.SpiffeID); err != nil {
			return nil, &requestError{kind: errInvalid, field: "spiffe_id", detail: "spiffe_id"}
		}
		if err := checkReason(ask.Reason); err != nil {
			return nil, err
		}
		order := broker.Confinement{Actor: actorOf(who), SPIFFEID: ask.SpiffeID, Reach: within, Reason: ask.Reason}
		return func(ctx context.Context) (broker.Receipt, error) {
			receipt, err := s.cfg.Broker.Quarantine(ctx, order)
			return receipt, notFound(err, "spiffe_id")
		}, nil
	})
}

// RemoveQuarantine lifts a quarantine.
func (s *Server) RemoveQuarantine(w http.ResponseWriter, r *http.Request, params RemoveQuarantineParams) {
	const operation = "removeQuarantine"
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.reach(r, who, s.roles.admin)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		if _, err := spiffeid.FromString(params.SpiffeID); err != nil {
			return &requestError{kind: errParameter, field: "spiffe_id", detail: "parameter_query"}
		}
		if err := checkReason(params.Reason); err != nil {
			return &requestError{kind: errParameter, field: "reason", detail: "parameter_query"}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
		defer cancel()
		err = s.cfg.Broker.Unquarantine(ctx, broker.Confinement{
			Actor: actorOf(who), SPIFFEID: params.SpiffeID, Reach: within, Reason: params.Reason,
		})
		if err != nil {
			return notFound(err, "spiffe_id")
		}
		writeNoContent(w)
		return nil
	})
}

// ListQuarantines lists the quarantines in effect to admins and auditors.
func (s *Server) ListQuarantines(w http.ResponseWriter, r *http.Request) {
	const operation = "listQuarantines"
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.reach(r, who, s.roles.admin, s.roles.auditor)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		all, err := s.cfg.Broker.Quarantines(r.Context(), within)
		if err != nil {
			return err
		}
		out := QuarantineList{Quarantines: make([]Quarantine, 0, len(all))}
		for _, q := range all {
			out.Quarantines = append(out.Quarantines, Quarantine{
				SpiffeID: q.SPIFFEID, Since: q.Since, Actor: q.Actor, Reason: q.Reason,
			})
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}
