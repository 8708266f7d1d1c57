package broker

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/attest"
)

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
	// Why is a fixed code that says why it is not over: "vault_unavailable", "vault_refused", "unfinished" (its mint
	// is under way or lost, and not renewed) or "static". Empty when it is.
	Why string
}

// TaskEnd orders the end of a task.
type TaskEnd struct {
	Actor    Subject
	SPIFFEID string // of the sandbox whose task it is
	Task     string
	At       time.Time // not after now means now
	Reason   string
}

// Revocation orders the early end of whatever matches.
type Revocation struct {
	Actor  Subject
	Target Selector
	Reach  Reach // of the actor
	Reason string
}

// Confinement orders that a sandbox, or all below a path or trust domain, gets nothing, or lifts that order.
type Confinement struct {
	Actor Subject
	// SPIFFEID is a SPIFFE ID, a path prefix of some, or "spiffe://" and a trust domain.
	SPIFFEID string
	Reach    Reach // of the actor
	Reason   string
}

var errTODO = errors.New("not built yet")

// Delivered is told how the write of a result's credential went. A credential that lives in Vault is renewed to its
// full time once it was written, and revoked when it was not. It has to be called once for every Result that holds
// a credential.
func (b *Broker) Delivered(ctx context.Context, res Result, failure error) {}

// Release ends a credential at its holder's wish. ErrNotFound when it is not the holder's.
func (b *Broker) Release(ctx context.Context, who attest.Identity, id string) (Receipt, error) {
	return Receipt{}, errTODO
}

// EndTask ends a task, now or at a later time: no credential is issued for it afterwards, and those that were are
// ended. It may be called again.
func (b *Broker) EndTask(ctx context.Context, end TaskEnd) (Receipt, error) {
	return Receipt{}, errTODO
}

// Revoke ends what matches and is within reach. ErrNotFound when nothing alive matches.
func (b *Broker) Revoke(ctx context.Context, r Revocation) (Receipt, error) {
	return Receipt{}, errTODO
}

// Quarantine stops issuing to whom it names, on every replica, and ends what they hold.
func (b *Broker) Quarantine(ctx context.Context, c Confinement) (Receipt, error) {
	return Receipt{}, errTODO
}

// Unquarantine lifts a quarantine of exactly that name. ErrNotFound when there is none.
func (b *Broker) Unquarantine(ctx context.Context, c Confinement) error {
	return errTODO
}

// Quarantines lists the standing quarantines within reach.
func (b *Broker) Quarantines(ctx context.Context, reach Reach) ([]Quarantine, error) {
	return nil, errTODO
}
