package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/scopes"
)

// Limit is a limit of a scope, with the key that a request counts under. The ledger counts with the generic cell rate
// algorithm: a burst of up to Count requests may pass, and after that one per Emission. So fewer than twice Count requests pass in
// any window, and with steady use Count requests pass per window. A limit with Live counts live credentials instead.
type Limit struct {
	scopes.Limit
	// Key contains the trust domain, so that no trust domain uses up the limit of another.
	Key string
}

// Emission is the time after which one more request may pass, in whole microseconds. It is rounded up, so that no more requests
// pass than the limit allows. It is zero for a limit on live credentials.
func (l Limit) Emission() time.Duration {
	if l.Live > 0 {
		return 0
	}
	step := time.Duration(l.Count) * time.Microsecond
	return (l.Window + step - 1) / step * time.Microsecond
}

// limitsOf returns the limits that a request counts against. A denied request counts against none.
func limitsOf(rec Record) []Limit {
	if rec.Decision.Outcome == scopes.Deny {
		return nil
	}
	var limits []Limit
	id := rec.Subject.ID
	for _, l := range rec.Decision.Scope.Limits {
		// No scope name, SPIFFE ID or task contains the separator.
		key := rec.Decision.Scope.Name + "|" + l.Per + "|"
		if l.Live > 0 {
			key = rec.Decision.Scope.Name + "|live|" + l.Per + "|"
		}
		switch l.Per {
		case scopes.PerSandbox:
			key += id.String()
		case scopes.PerTask:
			key += id.String() + "|" + rec.Request.Task
		default:
			key += id.TrustDomain().Name()
		}
		limits = append(limits, Limit{Limit: l, Key: key})
	}
	return limits
}

// askingLimit is the limit that a request counts against when it starts to wait for approval.
func askingLimit(rec Record) Limit {
	return Limit{Limit: AskingLimit, Key: "|asking|" + rec.Subject.ID.String()} // no scope has an empty name
}

// Limited is ErrLimited with the limit that was reached, and the time after which a request would pass if no other came first.
type Limited struct { //nolint:errname // it reads as what happened to the request
	Limit      scopes.Limit
	RetryAfter time.Duration
	// Record is the durable denial. The ledger leaves it zero.
	Record Record
}

func (l *Limited) Error() string {
	return fmt.Sprintf("%v: %s, retry in %d s", ErrLimited, l.Limit, l.Seconds())
}

// Seconds is RetryAfter in whole seconds, rounded up, as responses state it.
func (l *Limited) Seconds() int64 {
	return int64((l.RetryAfter + time.Second - 1) / time.Second)
}

// Unwrap returns ErrLimited.
func (l *Limited) Unwrap() error { return ErrLimited }

// stoppedRecord makes a denial of a request that the ledger refused for a quarantine, an ended task or a limit. For any other
// cause it returns cause. The denial does not use the idempotency key, so a retry can.
func stoppedRecord(who attest.Identity, rec Record, cause error) (Record, error) {
	req, d := rec.Request, rec.Decision
	req.IdempotencyKey = ""
	denied := scopes.Decision{
		Outcome: scopes.Deny, Scope: d.Scope, Resource: d.Resource, Params: d.Params, Catalogue: d.Catalogue,
	}
	var limited *Limited
	switch {
	case errors.As(cause, &limited) && limited.Limit == WaitingLimit:
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("This sandbox already has %d pending requests. Withdraw some, or wait for decisions.",
			WaitingLimit.Live)
	case errors.As(cause, &limited) && limited.Limit == AskingLimit && d.Outcome == scopes.Pending:
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("Requests for approval are limited to %s. The next one is allowed in %d s.",
			limited.Limit, limited.Seconds())
	case errors.As(cause, &limited):
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("%s is limited to %s. The next request is allowed in %d s.",
			d.Scope.Name, limited.Limit, limited.Seconds())
	case errors.Is(cause, ErrQuarantined):
		denied.Reason = scopes.ReasonQuarantined
		denied.Explanation = "The sandbox is quarantined: it gets no credentials until an admin lifts the quarantine."
	case errors.Is(cause, ErrTaskEnded):
		denied.Reason = scopes.ReasonTaskEnded
		denied.Explanation = "The task has ended: it gets no more credentials. New work needs a new task."
	default:
		return Record{}, cause
	}
	return newRecord(who, req, denied, rec.Time)
}
