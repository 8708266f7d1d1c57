package broker

import "time"

// Receipt says what an early end did, credential by credential.
type Receipt struct {
	// Command is the id of the ledger's entry that ordered it; empty for a release.
	Command string
	Time    time.Time
	Ended   []Ended
	// More tells that there are credentials which the receipt does not list: they are inactive too, and the sweeper
	// goes on ending them.
	More bool
}

// Ended is one credential of a Receipt.
type Ended struct {
	ID      string
	Subject string // SPIFFE ID
	Task    string
	Scope   string
	Kind    string
	// Status is revoked or released when it is over, revoking while Vault has not confirmed that, and issued for a
	// static secret, which nobody but its owner can end.
	Status Status
	// Cause is one of the Cause constants.
	Cause string
	Time  time.Time
	// UsableUntil is until when somebody who does not ask Brevet may still accept it: a JWT or an SSH certificate
	// until it expires. Zero when it is dead everywhere.
	UsableUntil time.Time
	// Why is a fixed code that says why it is not over: "vault_unavailable", "vault_refused", "ledger_unavailable", "unfinished" (its mint
	// is under way or lost, and not renewed) or "static". Empty when it is.
	Why string
}

// TaskEnd orders the end of a task.
type TaskEnd struct {
	Actor    Actor
	SPIFFEID string // of the sandbox whose task it is
	Task     string
	At       time.Time // not after now means now
	Reason   string
}

// Revocation orders the early end of whatever matches.
type Revocation struct {
	Actor  Actor
	Target Selector
	Reach  Reach // of the actor
	Reason string
}

// Confinement orders that a sandbox, or all below a path or trust domain, gets nothing, or lifts that order.
type Confinement struct {
	Actor Actor
	// SPIFFEID is a SPIFFE ID, a path prefix of some, or "spiffe://" and a trust domain.
	SPIFFEID string
	Reach    Reach // of the actor
	Reason   string
}
