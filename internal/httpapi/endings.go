package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// orderTimeout bounds the execution of an order, which continues if the caller disconnects. It is shorter than writeTimeout, so
// that the caller learns the outcome.
const orderTimeout = 25 * time.Second

// furthestEnd is how far in the future the end of a task may be scheduled.
const furthestEnd = 366 * 24 * time.Hour

// deed executes an order whose call has been read and checked.
type deed func(context.Context) (broker.Receipt, error)

// carryOut authenticates the caller, reads the order, executes it, and answers with the receipt.
func (s *Server) carryOut(w http.ResponseWriter, r *http.Request, operation string, read func(caller) (deed, error)) {
	serve(s, w, r, operation, func(who caller) error {
		do, err := read(who)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
		defer cancel()
		receipt, err := do(ctx)
		if err != nil {
			return err
		}
		s.writeReceipt(w, receipt)
		return nil
	})
}

// ReleaseIssuance ends one of the caller's own credentials.
func (s *Server) ReleaseIssuance(w http.ResponseWriter, r *http.Request, id ID) {
	const operation = "releaseIssuance"
	s.carryOut(w, r, operation, func(who caller) (deed, error) {
		holder, err := workloadOf(who)
		if err != nil {
			return nil, err
		}
		if !ourID(id) {
			return nil, &requestError{kind: broker.ErrNotFound, detail: "id"}
		}
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (broker.Receipt, error) {
			receipt, err := s.cfg.Broker.Release(ctx, holder, id)
			return receipt, notFound(err, "id")
		}, nil
	})
}

// EndTask ends one of the caller's own tasks or, for an orchestrator or admin, a task of another sandbox. People have no tasks of
// their own.
func (s *Server) EndTask(w http.ResponseWriter, r *http.Request, task Task) {
	const operation = "endTask"
	s.carryOut(w, r, operation, func(who caller) (deed, error) {
		ask, err := readOrder[TaskEndRequest](s, w, r, who, operation)
		if err != nil {
			return nil, err
		}
		target, err := s.taskOwner(r, who, ask.SpiffeID)
		if err != nil {
			return nil, err
		}
		if err := checkReason(ask.Reason); err != nil {
			return nil, err
		}
		if ask.At.After(s.cfg.Now().Add(furthestEnd)) {
			return nil, &requestError{kind: errInvalid, field: "at", detail: "at"}
		}
		end := broker.TaskEnd{Actor: actorOf(who), SPIFFEID: target, Task: task, At: ask.At.UTC(), Reason: ask.Reason}
		return func(ctx context.Context) (broker.Receipt, error) { return s.cfg.Broker.EndTask(ctx, end) }, nil
	})
}

// taskOwner returns the SPIFFE ID whose task the caller may end: the calling workload itself, or a sandbox that a role of the
// caller covers. For any other sandbox it returns ErrNotFound, so the caller cannot learn whether it exists.
func (s *Server) taskOwner(r *http.Request, who caller, asked string) (string, error) {
	if self, err := workloadOf(who); err == nil && (asked == "" || asked == self.ID().String()) {
		return self.ID().String(), nil
	}
	id, err := spiffeid.FromString(asked)
	if err != nil || id.Path() == "" {
		return "", &requestError{kind: errInvalid, field: "spiffe_id", detail: "spiffe_id"}
	}
	if !s.where(r, who, s.roles.orchestrator, s.roles.admin).Covers(id.String()) {
		return "", &requestError{kind: broker.ErrNotFound, detail: "spiffe_id"}
	}
	return id.String(), nil
}

// Revoke ends all credentials that an admin selects.
func (s *Server) Revoke(w http.ResponseWriter, r *http.Request) {
	const operation = "revoke"
	s.carryOut(w, r, operation, func(who caller) (deed, error) {
		ask, within, err := readAdminOrder[RevocationRequest](s, w, r, who, operation)
		if err != nil {
			return nil, err
		}
		target, err := selectorOf(ask)
		if err != nil {
			return nil, err
		}
		order := broker.Revocation{Actor: actorOf(who), Target: target, Reach: within, Reason: ask.Reason}
		return func(ctx context.Context) (broker.Receipt, error) {
			receipt, err := s.cfg.Broker.Revoke(ctx, order)
			return receipt, notFound(err, "selection")
		}, nil
	})
}

// selectorOf checks what openapi.yaml cannot. openapi.yaml already requires that something is selected.
func selectorOf(ask RevocationRequest) (broker.Selector, error) {
	bad := func(field string) (broker.Selector, error) {
		return broker.Selector{}, &requestError{kind: errInvalid, field: field, detail: field}
	}
	if ask.ID != "" && !ourID(ask.ID) {
		return broker.Selector{}, &requestError{kind: broker.ErrNotFound, detail: "id"}
	}
	if field := badIdentity(ask.SpiffeID, ask.SpiffeIDPrefix, ask.TrustDomain); field != "" {
		return bad(field)
	}
	if err := checkReason(ask.Reason); err != nil {
		return broker.Selector{}, err
	}
	return broker.Selector{
		ID: ask.ID, SPIFFEID: ask.SpiffeID, SPIFFEIDPrefix: ask.SpiffeIDPrefix, TrustDomain: ask.TrustDomain,
		Task: ask.Task, Scope: ask.Scope, Catalogue: ask.Catalogue,
	}, nil
}

// readAdminOrder reads the order of an admin, and returns it with the admin's reach. It checks the role before it reads the body,
// so that only bodies of admins are read. It checks again afterwards: a caller that sends slowly may have lost the role.
func readAdminOrder[T any](s *Server, w http.ResponseWriter, r *http.Request, who caller, operation string) (T, broker.Reach, error) {
	var out T
	within, err := s.reach(r, who, s.roles.admin)
	if err != nil {
		return out, within, err
	}
	if out, err = readOrder[T](s, w, r, who, operation); err == nil {
		within, err = s.reach(r, who, s.roles.admin)
	}
	return out, within, err
}

// writeReceipt answers 200 if everything is over, as far as it can be, and 202 if the server has work left to do.
func (s *Server) writeReceipt(w http.ResponseWriter, receipt broker.Receipt) {
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
}

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
