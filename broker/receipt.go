package broker

import "time"

// Receipt lists the effects of an early end, credential by credential.
type Receipt struct {
	// Command is the ID of the ledger entry with the order. It is empty for a release.
	Command string
	Time    time.Time
	Ended   []Ended
	// More means that some credentials are not listed. They are inactive too, and the sweeper continues to revoke them.
	More bool
}

// Ended is one credential of a Receipt.
type Ended struct {
	ID      string
	Subject string // SPIFFE ID
	Task    string
	Scope   string
	Kind    string
	// Status is revoked or released once the credential has ended, and revoking until Vault confirms it. It is issued for a
	// static secret, which only its owner can end.
	Status Status
	// Cause is one of the Cause constants.
	Cause string
	Time  time.Time
	// UsableUntil is how long parties that do not ask Brevet may still accept the credential: a JWT or an SSH certificate until
	// it expires. It is zero if nobody accepts it any more.
	UsableUntil time.Time
	// Why is a fixed code for why the credential has not ended: "vault_unavailable", "vault_refused", "ledger_unavailable",
	// "unfinished" (its mint is in progress or lost, and not renewed) or "static". It is empty if the credential has ended.
	Why string
}

// TaskEnd orders the end of a task.
type TaskEnd struct {
	Actor    Actor
	SPIFFEID string // of the sandbox that the task belongs to
	Task     string
	At       time.Time // not after now means now
	Reason   string
}

// Revocation orders the early end of all matching credentials.
type Revocation struct {
	Actor  Actor
	Target Selector
	Reach  Reach // of the actor
	Reason string
}

// Confinement orders a quarantine of a sandbox, or of all sandboxes below a path or in a trust domain, or lifts it.
type Confinement struct {
	Actor Actor
	// SPIFFEID is a SPIFFE ID, a path prefix, or "spiffe://" and a trust domain.
	SPIFFEID string
	Reach    Reach // of the actor
	Reason   string
}
