package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// Limit is a limit of a scope with the key that a request is counted under: the ledger counts with the generic cell
// rate algorithm. Count requests pass in one go, and from then on one for each Emission. So any stretch of one window
// holds fewer than two times Count, and steady use holds Count. A limit with Live counts what is alive instead.
type Limit struct {
	scopes.Limit
	// Key holds the trust domain, so that no trust domain uses up what another one has.
	Key string
}

// Emission is the time after which one more request is free, in whole microseconds, rounded up: never more than
// the limit says. Zero for a limit on how many are alive at a time.
func (l Limit) Emission() time.Duration {
	if l.Live > 0 {
		return 0
	}
	step := time.Duration(l.Count) * time.Microsecond
	return (l.Window + step - 1) / step * time.Microsecond
}

// limitsOf says what a request counts against. A denied one counts against nothing.
func limitsOf(rec Record) []Limit {
	if rec.Decision.Outcome == scopes.Deny {
		return nil
	}
	var limits []Limit
	id := rec.Subject.ID
	for _, l := range rec.Decision.Scope.Limits {
		// No part can hold the separator: not a scope's name, not a SPIFFE ID, not a task.
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

// askingLimit counts a request that comes to wait for people.
func askingLimit(rec Record) Limit {
	return Limit{Limit: AskingLimit, Key: "|asking|" + rec.Subject.ID.String()} // a scope has a name
}

// Limited is ErrLimited with what is known of it: the limit that is reached, and after which time a request would
// pass if no other came before it.
type Limited struct { //nolint:errname // it reads as what happened to the request
	Limit      scopes.Limit
	RetryAfter time.Duration
	// Record is the denial that says so, once it is durable. The ledger leaves it zero.
	Record Record
}

func (l *Limited) Error() string {
	return fmt.Sprintf("%v: %s, for %d s", ErrLimited, l.Limit, l.Seconds())
}

// Seconds is RetryAfter in whole seconds, rounded up, as answers count it.
func (l *Limited) Seconds() int64 {
	return int64((l.RetryAfter + time.Second - 1) / time.Second)
}

// Unwrap returns ErrLimited.
func (l *Limited) Unwrap() error { return ErrLimited }

// stoppedRecord is the denial of a request that policy would not have denied, when cause is one of those that the
// ledger knows alone; any other cause is returned. It leaves the idempotency key to a retry.
func stoppedRecord(who attest.Identity, rec Record, cause error) (Record, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Record{}, fmt.Errorf("making an id: %w", err)
	}
	req, d := rec.Request, rec.Decision
	req.IdempotencyKey = ""
	denied := scopes.Decision{
		Outcome: scopes.Deny, Scope: d.Scope, Resource: d.Resource, Params: d.Params, Catalogue: d.Catalogue,
	}
	var limited *Limited
	switch {
	case errors.As(cause, &limited) && limited.Limit == WaitingLimit:
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("%d requests of this sandbox wait for people already. Withdraw some, or wait for them to be decided.",
			WaitingLimit.Live)
	case errors.As(cause, &limited) && limited.Limit == AskingLimit && d.Outcome == scopes.Pending:
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("People are asked %s at most, whatever for, which leaves room again in %d s.",
			limited.Limit, limited.Seconds())
	case errors.As(cause, &limited):
		denied.Reason = scopes.ReasonLimited
		denied.Explanation = fmt.Sprintf("%s is limited to %s, which leaves room again in %d s.",
			d.Scope.Name, limited.Limit, limited.Seconds())
	case errors.Is(cause, ErrQuarantined):
		denied.Reason = scopes.ReasonQuarantined
		denied.Explanation = "The sandbox is in quarantine: it gets nothing until an admin lifts that."
	case errors.Is(cause, ErrTaskEnded):
		denied.Reason = scopes.ReasonTaskEnded
		denied.Explanation = "The task has ended: nothing is issued for it any more. New work needs a new task."
	default:
		return Record{}, cause
	}
	return newRecord(id.String(), who, req, denied, rec.Time)
}
