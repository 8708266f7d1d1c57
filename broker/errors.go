package broker

import (
	"errors"
	"fmt"
)

// What can go wrong with a request, besides a decision against it. Every one of these means that no
// credential left.
var (
	// ErrLedgerUnavailable: the record could not be made durable.
	ErrLedgerUnavailable = errors.New("ledger is unavailable")
	// ErrVaultUnavailable: Vault did not answer, is sealed, or refused for a reason that may pass.
	ErrVaultUnavailable = errors.New("vault is unavailable")
	// ErrMintMismatch: what came back from Vault is not what was ordered.
	ErrMintMismatch = errors.New("minted credential differs from its intent")
	// ErrOrderSpent: an Order was redeemed twice.
	ErrOrderSpent = errors.New("order is spent")
	// ErrIdempotencyMismatch: the key was used before, by the same sandbox, for another request.
	ErrIdempotencyMismatch = errors.New("idempotency key belongs to another request")
	// ErrAlreadyIssued: the key was used before, and its credential is not kept for a second delivery.
	ErrAlreadyIssued = errors.New("idempotency key has been answered with a credential")
	// ErrLimited: a limit of the scope is reached. It comes as a *Limited, and the request is recorded as denied.
	ErrLimited = errors.New("limit is reached")
	// ErrQuarantined: an admin has ordered that this sandbox gets nothing. The request is recorded as denied.
	ErrQuarantined = errors.New("sandbox is in quarantine")
	// ErrTaskEnded: the request is for a task that is over. It is recorded as denied.
	ErrTaskEnded = errors.New("task has ended")
	// ErrRevoked: it was revoked before it could be delivered.
	ErrRevoked = errors.New("revoked before delivery")
	// ErrVaultRefused: Vault understood and said no, which it will do again until somebody changes its configuration.
	ErrVaultRefused = errors.New("vault refused")
	// ErrNotMounted: Vault has no secrets engine where the scope's credential comes from. It is an ErrVaultRefused, and comes as a
	// *NotMounted.
	ErrNotMounted = fmt.Errorf("%w: no secrets engine is mounted", ErrVaultRefused)
	// ErrInactive: the token is not in force, whatever the reason.
	ErrInactive = errors.New("token is not in force")
	// ErrNotOpened: the token does not open what it was shown for. It comes as a *NotOpened.
	ErrNotOpened = errors.New("token does not open this")
	// ErrNotApproved: the request does not wait to be redeemed: people have not agreed yet, or not any more, or it has been.
	ErrNotApproved = errors.New("request is not approved")
	// ErrDecided: the request does not wait for votes any more.
	ErrDecided = errors.New("request is decided")
	// ErrStale: what was voted on, or approved, is not what there is now.
	ErrStale = errors.New("request is not what was seen")
	// ErrOwnRequest: nobody decides on what their own sandbox asks for, nor on what is asked on their behalf.
	ErrOwnRequest = errors.New("request is one's own")
	// ErrNotEligible: the person is not in the group that the request waits for.
	ErrNotEligible = errors.New("person is not in the group that decides")
	// ErrNotRemembered: the scope does not let a yes cover the task.
	ErrNotRemembered = errors.New("approval cannot cover the task")
	// ErrPasskey: a yes to this has to be signed by a passkey of the voter, and is not. It wraps what is wrong with it.
	ErrPasskey = errors.New("vote is not signed by a passkey of the voter")
	// ErrNoPasskeys: there is no site on which people could sign.
	ErrNoPasskeys = errors.New("passkeys are not configured")
	// ErrNotRegistered: what was to be registered is no passkey. It wraps why.
	ErrNotRegistered = errors.New("passkey is not registered")
	// ErrNotVouched: who has a passkey adds another by showing it, and has not. It wraps what is wrong.
	ErrNotVouched = errors.New("no passkey of the person vouches for another")
	// ErrOldLogin: a first passkey takes a login of the last minutes.
	ErrOldLogin = errors.New("login is too old for a first passkey")
	// ErrPasskeyName: a passkey's name is one line of visible text, of 64 characters at most.
	ErrPasskeyName = errors.New("passkey has no name")
	// ErrTooManyPasskeys: the person has MaxPasskeys.
	ErrTooManyPasskeys = errors.New("person has too many passkeys")
	// ErrNoNote: who breaks the glass has to say why.
	ErrNoNote = errors.New("break-glass vote has no note")
	// ErrOvertaken: somebody else has moved the request meanwhile.
	ErrOvertaken = errors.New("request has moved meanwhile")
	// ErrSuperseded: it was decided by a catalogue that is not in force any more.
	ErrSuperseded = errors.New("catalogue is superseded")
	// ErrOtherCatalogue: another catalogue is in force than the one that the change is for.
	ErrOtherCatalogue = errors.New("another catalogue is in force")
	// ErrOwnProposal: nobody approves the catalogue that they have proposed.
	ErrOwnProposal = errors.New("catalogue is one's own proposal")
	// ErrCrowded: too many listen on this replica, or too often the same person.
	ErrCrowded = errors.New("too many listen")
	// ErrNotForward: the record exists, and its state does not lead to the one that was asked for.
	ErrNotForward = errors.New("state does not move forward")
	// ErrTooBroad: the search took longer than searches may.
	ErrTooBroad = errors.New("search is too broad")
	// ErrNotFound: no such record, or none that the caller may see. The two are never told apart.
	ErrNotFound = errors.New("no such record")
)

// Lost wraps the error of a mint after which something may be alive in Vault, for a while.
type Lost struct { //nolint:errname // it reads as what happened to the answer
	VaultLease VaultLease // as far as it is known
	Err        error
}

func (l *Lost) Error() string { return l.Err.Error() }

// Unwrap returns the cause.
func (l *Lost) Unwrap() error { return l.Err }

// NotMounted is ErrNotMounted with the place where nothing is mounted.
type NotMounted struct { //nolint:errname // it reads as what is wrong
	// Mount is the engine's mount, or, of a credential whose scope names only a path, that path.
	Mount string
}

func (n *NotMounted) Error() string { return fmt.Sprintf("%v at %q", ErrNotMounted, n.Mount) }

// Unwrap returns ErrNotMounted.
func (n *NotMounted) Unwrap() error { return ErrNotMounted }
