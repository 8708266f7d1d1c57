package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// orderTimeout bounds the execution of an order, which continues if the caller disconnects. It is shorter than writeTimeout, so
// that the caller learns the outcome.
const orderTimeout = 25 * time.Second

// furthestEnd is how far in the future the end of a task may be scheduled.
const furthestEnd = 366 * 24 * time.Hour

// uncancelled returns the context in which an order is executed.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), orderTimeout)
}

// carryOut authenticates the caller and executes its order. It answers 200 if everything is over, as far as it can be, and 202 if
// the server has work left to do.
func (s *Server) carryOut(w http.ResponseWriter, r *http.Request, operation string, do func(caller) (broker.Receipt, error)) {
	serve(s, w, r, operation, func(who caller) error {
		receipt, err := do(who)
		if err != nil {
			return err
		}
		out := Receipt{
			ID: receipt.Command, Time: receipt.Time, Ended: make([]Ended, 0, len(receipt.Ended)), More: receipt.More,
			Counts: map[string]int{},
		}
		status := http.StatusOK
		if receipt.More || receipt.Time.After(s.cfg.Now()) {
			status = http.StatusAccepted
		}
		for _, e := range receipt.Ended {
			if e.Why != "" && e.Why != "static" {
				status = http.StatusAccepted
			}
			out.Counts[string(e.Status)]++
			s.metrics.ended.WithLabelValues(e.Cause, string(e.Status)).Inc()
			out.Ended = append(out.Ended, Ended{
				ID: e.ID, SpiffeID: e.Subject, Task: e.Task, Scope: e.Scope, Kind: e.Kind, Status: Status(e.Status),
				Cause: e.Cause, At: e.Time, UsableUntil: e.UsableUntil, Why: e.Why,
			})
		}
		writeJSON(w, status, out)
		return nil
	})
}

// ReleaseIssuance ends one of the caller's own credentials.
func (s *Server) ReleaseIssuance(w http.ResponseWriter, r *http.Request, id ID) {
	s.carryOut(w, r, "releaseIssuance", func(who caller) (broker.Receipt, error) {
		holder, ok := who.(attest.Identity)
		if !ok {
			return broker.Receipt{}, &requestError{kind: errNotAllowed, detail: "person"}
		}
		if err := s.rules.checkID(r, who, id); err != nil {
			return broker.Receipt{}, err
		}
		leave, err := enter(s.ending, holder)
		if err != nil {
			return broker.Receipt{}, err
		}
		defer leave()
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		receipt, err := s.cfg.Broker.Release(ctx, holder, id)
		return receipt, notFound(err, "id")
	})
}

// EndTask ends one of the caller's own tasks or, for an orchestrator or admin, a task of another sandbox. People have no tasks of
// their own.
func (s *Server) EndTask(w http.ResponseWriter, r *http.Request, task Task) {
	s.carryOut(w, r, "endTask", func(who caller) (receipt broker.Receipt, err error) {
		ask, err := readOrder[TaskEndRequest](s, w, r, who)
		if err != nil {
			return receipt, err
		}
		owner := ask.SpiffeID
		self, ok := who.(attest.Identity)
		switch {
		case ok && (owner == "" || owner == self.ID().String()):
			owner = self.ID().String()
		case badIdentity(owner, "", "") != "" || owner == "":
			return receipt, invalid("spiffe_id")
		case !s.where(r, who, s.roles.orchestrator, s.roles.admin).Covers(owner):
			return receipt, unknown("spiffe_id") // the caller cannot learn whether the sandbox exists
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return receipt, err
		}
		if ask.At.After(s.cfg.Now().Add(furthestEnd)) {
			return receipt, invalid("at")
		}
		if ok {
			leave, err := enter(s.ending, self)
			if err != nil {
				return receipt, err
			}
			defer leave()
		}
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		return s.cfg.Broker.EndTask(ctx, broker.TaskEnd{
			Actor: actorOf(who), SPIFFEID: owner, Task: task, At: ask.At.UTC(), Reason: ask.Reason,
		})
	})
}

// Revoke ends all credentials that an admin selects. openapi.yaml requires that the order selects something.
func (s *Server) Revoke(w http.ResponseWriter, r *http.Request) {
	s.carryOut(w, r, "revoke", func(who caller) (receipt broker.Receipt, err error) {
		ask, within, err := readAdminOrder[RevocationRequest](s, w, r, who)
		if err != nil {
			return receipt, err
		}
		if ask.ID != "" && !ourID(ask.ID) {
			return receipt, unknown("id")
		}
		if field := badIdentity(ask.SpiffeID, ask.SpiffeIDPrefix, ask.TrustDomain); field != "" {
			return receipt, invalid(field)
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return receipt, err
		}
		leave, err := s.enterOrder(who)
		if err != nil {
			return receipt, err
		}
		defer leave()
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		receipt, err = s.cfg.Broker.Revoke(ctx, broker.Revocation{
			Actor: actorOf(who), Reach: within, Reason: ask.Reason,
			Target: broker.Selector{
				ID: ask.ID, SPIFFEID: ask.SpiffeID, SPIFFEIDPrefix: ask.SpiffeIDPrefix, TrustDomain: ask.TrustDomain,
				Task: ask.Task, Scope: ask.Scope, Catalogue: ask.Catalogue,
			},
		})
		return receipt, notFound(err, "selection")
	})
}

// readAdminOrder reads the order of an admin, and returns it with the admin's reach. It checks the role before it reads the body,
// so that only bodies of admins are read. It checks again afterwards: a caller that sends slowly may have lost the role.
func readAdminOrder[T any](s *Server, w http.ResponseWriter, r *http.Request, who caller) (T, broker.Reach, error) {
	var out T
	within, err := s.reach(r, who, s.roles.admin)
	if err != nil {
		return out, within, err
	}
	if out, err = readOrder[T](s, w, r, who); err == nil {
		within, err = s.reach(r, who, s.roles.admin)
	}
	return out, within, err
}

// enterOrder takes a place among the orders that are carried out at once. People need none: authenticate limits their pace.
func (s *Server) enterOrder(who caller) (leave func(), err error) {
	workload, ok := who.(attest.Identity)
	if !ok {
		return func() {}, nil
	}
	return enter(s.ordering, workload)
}

// AddQuarantine stops issuing to the sandboxes that an admin names, and ends their credentials.
func (s *Server) AddQuarantine(w http.ResponseWriter, r *http.Request) {
	s.carryOut(w, r, "addQuarantine", func(who caller) (receipt broker.Receipt, err error) {
		ask, within, err := readAdminOrder[QuarantineRequest](s, w, r, who)
		if err != nil {
			return receipt, err
		}
		if _, err := spiffeid.FromString(ask.SpiffeID); err != nil {
			return receipt, invalid("spiffe_id")
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return receipt, err
		}
		leave, err := s.enterOrder(who)
		if err != nil {
			return receipt, err
		}
		defer leave()
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		receipt, err = s.cfg.Broker.Quarantine(ctx, broker.QuarantineOrder{
			Actor: actorOf(who), SPIFFEID: ask.SpiffeID, Reach: within, Reason: ask.Reason,
		})
		return receipt, notFound(err, "spiffe_id")
	})
}

// RemoveQuarantine lifts a quarantine.
func (s *Server) RemoveQuarantine(w http.ResponseWriter, r *http.Request, params RemoveQuarantineParams) {
	s.withRole(w, r, "removeQuarantine", []role{s.roles.admin}, func(by reader) (any, error) {
		if _, err := spiffeid.FromString(params.SpiffeID); err != nil {
			return nil, badQuery("spiffe_id")
		}
		if checkText("reason", params.Reason) != nil {
			return nil, badQuery("reason")
		}
		leave, err := s.enterOrder(by.who)
		if err != nil {
			return nil, err
		}
		defer leave()
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		err = s.cfg.Broker.Unquarantine(ctx, broker.QuarantineOrder{
			Actor: actorOf(by.who), SPIFFEID: params.SpiffeID, Reach: by.within, Reason: params.Reason,
		})
		return nil, notFound(err, "spiffe_id")
	})
}

// ListQuarantines lists the quarantines in effect to admins and auditors.
func (s *Server) ListQuarantines(w http.ResponseWriter, r *http.Request) {
	s.withRole(w, r, "listQuarantines", []role{s.roles.admin, s.roles.auditor}, func(by reader) (any, error) {
		all, err := s.cfg.Broker.Quarantines(r.Context(), by.within)
		out := QuarantineList{Quarantines: make([]Quarantine, 0, len(all))}
		for _, q := range all {
			out.Quarantines = append(out.Quarantines, Quarantine{SpiffeID: q.SPIFFEID, Since: q.Since, Actor: q.Actor, Reason: q.Reason})
		}
		return out, err
	})
}
