package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/google/uuid"
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

// notFound adds to ErrNotFound what was not found, for the record. It returns other errors unchanged.
func notFound(err error, detail string) error {
	if errors.Is(err, broker.ErrNotFound) {
		return &requestError{kind: broker.ErrNotFound, detail: detail}
	}
	return err
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

// ourID reports whether an id is a UUID in the form that Brevet writes.
func ourID(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
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

func checkReason(reason string) error { return checkText("reason", reason) }

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
