package broker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/scopes"
)

// Errors of a request, apart from a denial by policy. Each of them means that no credential was released.
var (
	// ErrLedgerUnavailable: the record could not be made durable.
	ErrLedgerUnavailable = errors.New("ledger is unavailable")
	// ErrLedgerFull: the record could not be made durable because the disk of the database is full. It wraps ErrLedgerUnavailable.
	ErrLedgerFull = fmt.Errorf("%w: the disk of its database is full", ErrLedgerUnavailable)
	// ErrVaultUnavailable: Vault did not answer, is sealed, or refused for a temporary reason.
	ErrVaultUnavailable = errors.New("vault is unavailable")
	// ErrMintMismatch: the credential that Vault returned differs from the recorded intent.
	ErrMintMismatch = errors.New("minted credential differs from its intent")
	// ErrOrderSpent: an Order was redeemed twice.
	ErrOrderSpent = errors.New("order is spent")
	// ErrIdempotencyMismatch: the key was used before, by the same sandbox, for another request.
	ErrIdempotencyMismatch = errors.New("idempotency key was used for another request")
	// ErrAlreadyIssued: the key was used before. Credentials are not stored, so there is no second delivery.
	ErrAlreadyIssued = errors.New("credential was already issued for this idempotency key")
	// ErrAlreadyReported: the session has a different report of calls with this sequence number.
	ErrAlreadyReported = errors.New("another report of calls is already recorded")
	// ErrLimited: a limit of the scope is reached. It is returned as a *Limited, and the request is recorded as denied.
	ErrLimited = errors.New("scope limit is reached")
	// ErrQuarantined: an admin quarantined the sandbox. The request is recorded as denied.
	ErrQuarantined = errors.New("sandbox is quarantined")
	// ErrTaskEnded: the task of the request has ended. The request is recorded as denied.
	ErrTaskEnded = errors.New("task has ended")
	// ErrRevoked: the credential was revoked before it could be delivered.
	ErrRevoked = errors.New("revoked before delivery")
	// ErrVaultRefused: Vault understood the request and refused it. It refuses again until its configuration changes.
	ErrVaultRefused = errors.New("vault refused")
	// ErrNotMounted: the secrets engine of the scope is not mounted in Vault. It wraps ErrVaultRefused, and is returned as a
	// *NotMountedError.
	ErrNotMounted = fmt.Errorf("%w: no secrets engine is mounted", ErrVaultRefused)
	// ErrGitHubUnavailable: GitHub did not answer, or not understandably.
	ErrGitHubUnavailable = errors.New("GitHub is unavailable")
	// ErrGitHubRefused: GitHub refused to issue a token. It refuses again until the App, its installation or the scope changes.
	ErrGitHubRefused = errors.New("refused by GitHub")
	// ErrGitHubLimited: GitHub limits the rate of calls. It is returned as a *GitHubLimitedError.
	ErrGitHubLimited = fmt.Errorf("%w: it limits the rate of calls", ErrGitHubUnavailable)
	// ErrInactive: the token is not active, for any reason.
	ErrInactive = errors.New("token is not active")
	// ErrCallNotAllowed: the scope of the token does not allow the call. It is returned as a *CallNotAllowedError.
	ErrCallNotAllowed = errors.New("token does not allow this call")
	// ErrNotApproved: the request cannot be redeemed: it is not approved, no longer approved, or already redeemed.
	ErrNotApproved = approval.ErrNotApproved
	// ErrDecided: the request no longer waits for votes.
	ErrDecided = approval.ErrDecided
	// ErrStale: the request, or the decision on it, differs from what the voters were shown.
	ErrStale = approval.ErrStale
	// ErrVoid: another catalogue came into force since the request was made. It wraps ErrStale, and is returned as a *VoidError.
	ErrVoid = approval.ErrVoid
	// ErrOwnRequest: nobody may vote on a request from their own sandbox or on their own behalf.
	ErrOwnRequest = approval.ErrOwnRequest
	// ErrNotEligible: the person is not a member of the approver group.
	ErrNotEligible = approval.ErrNotEligible
	// ErrNotRemembered: the scope does not allow an approval to cover the task.
	ErrNotRemembered = errors.New("approval cannot cover the task")
	// ErrPasskey: the approval must be signed by a passkey of the voter, and is not. It wraps the cause.
	ErrPasskey = approval.ErrPasskey
	// ErrNoPasskeys: no console is configured in which people could sign.
	ErrNoPasskeys = errors.New("passkeys are not configured")
	// ErrNotRegistered: the registration is invalid. It wraps the cause.
	ErrNotRegistered = errors.New("passkey registration failed")
	// ErrNotVouched: a further passkey requires a signature by an existing one, which is missing. It wraps the cause.
	ErrNotVouched = errors.New("registration is not signed by an existing passkey")
	// ErrOldLogin: the first passkey requires a recent login.
	ErrOldLogin = errors.New("login is too old for a first passkey")
	// ErrPasskeyName: a passkey's name must be one line of visible text, at most 64 characters.
	ErrPasskeyName = errors.New("invalid passkey name")
	// ErrTooManyPasskeys: the person has MaxPasskeys.
	ErrTooManyPasskeys = errors.New("person has too many passkeys")
	// ErrNoNote: a break-glass vote requires a note.
	ErrNoNote = approval.ErrNoNote
	// ErrConcurrentChange: a concurrent vote changed the request.
	ErrConcurrentChange = errors.New("request was changed concurrently")
	// ErrAlreadyAsked: an equal request of the sandbox is pending.
	ErrAlreadyAsked = errors.New("equal request is pending")
	// ErrSuperseded: the request was decided by a catalogue that is no longer in force.
	ErrSuperseded = errors.New("catalogue was superseded")
	// ErrOtherCatalogue: the catalogue in force is not the one that the change is based on.
	ErrOtherCatalogue = errors.New("catalogue has changed")
	// ErrOwnProposal: nobody may approve a catalogue that they proposed.
	ErrOwnProposal = errors.New("admin may not approve their own proposal")
	// ErrVaultNotPrepared: Vault lacks policies for new scopes of a catalogue. It is returned as a *VaultNotPreparedError.
	ErrVaultNotPrepared = errors.New("vault is not prepared for the catalogue")
	// ErrVaultNotChecked: Vault did not say whether it is prepared for a catalogue.
	ErrVaultNotChecked = errors.New("vault did not say whether it is prepared for the catalogue")
	// ErrCrowded: this replica, or this person, has too many event streams.
	ErrCrowded = errors.New("too many event streams")
	// ErrListsCrowded: the caller, or its trust domain, looks for too many status lists that this replica does not know.
	ErrListsCrowded = errors.New("too many unknown status lists")
	// ErrInvalidTransition: the record exists, but its state does not allow the transition.
	ErrInvalidTransition = errors.New("state transition is not allowed")
	// ErrTooBroad: the search exceeded its time limit.
	ErrTooBroad = errors.New("search is too broad")
	// ErrTooLarge: an entry of the ledger cannot hold the report.
	ErrTooLarge = errors.New("report is too large")
	// ErrNotFound: the record does not exist, or the caller may not see it. Responses never distinguish the two.
	ErrNotFound = approval.ErrNotFound
)

// VoidError is ErrVoid with what made the request void.
type VoidError struct {
	Since   time.Time // when the other catalogue was applied
	Version int64     // of the other catalogue
}

func (v *VoidError) Error() string {
	return fmt.Sprintf("%v since catalogue version %d was applied at %s", ErrVoid, v.Version, v.Since.UTC().Format(time.RFC3339))
}

// Unwrap returns ErrVoid.
func (v *VoidError) Unwrap() error { return ErrVoid }

// LostMintError wraps the error of a mint that may have left a live credential in Vault.
type LostMintError struct {
	VaultLease VaultLease // as far as it is known
	Until      time.Time  // when a credential that nobody can revoke is dead; zero if it is dead after UnrenewedLife
	Err        error
}

func (l *LostMintError) Error() string { return l.Err.Error() }

// Unwrap returns the cause.
func (l *LostMintError) Unwrap() error { return l.Err }

// GitHubRefusedError is ErrGitHubRefused with what it means.
type GitHubRefusedError struct {
	Why string // a fixed text that says what an admin has to do
	Err error  // the cause
}

func (g *GitHubRefusedError) Error() string { return fmt.Sprintf("%v: %v", ErrGitHubRefused, g.Err) }

// Unwrap returns ErrGitHubRefused and the cause.
func (g *GitHubRefusedError) Unwrap() []error { return []error{ErrGitHubRefused, g.Err} }

// GitHubLimitedError is ErrGitHubLimited with GitHub's own delay.
type GitHubLimitedError struct {
	RetryAfter time.Duration
	Err        error // the cause
}

func (g *GitHubLimitedError) Error() string { return g.Err.Error() }

// Unwrap returns ErrGitHubLimited and the cause.
func (g *GitHubLimitedError) Unwrap() []error { return []error{ErrGitHubLimited, g.Err} }

// MayLiveError means that a credential cannot be revoked, because it was lost on its way from the system that issued it: nobody has
// it, and only its holder could revoke it. It ends by itself.
type MayLiveError struct {
	Until time.Time // when it is dead in any case
}

func (m *MayLiveError) Error() string {
	return "the token of GitHub was lost on its way to Brevet, and may be alive until " + m.Until.UTC().Format(time.RFC3339)
}

// Is makes the error one of ErrGitHubUnavailable.
func (m *MayLiveError) Is(target error) bool { return target == ErrGitHubUnavailable }

// NotMountedError is ErrNotMounted with the path of the missing mount.
type NotMountedError struct {
	// Mount is the mount of the engine, or the path if the scope names only a path.
	Mount string
}

func (n *NotMountedError) Error() string { return fmt.Sprintf("%v at %q", ErrNotMounted, n.Mount) }

// Unwrap returns ErrNotMounted.
func (n *NotMountedError) Unwrap() error { return ErrNotMounted }

// VaultNotPreparedError is ErrVaultNotPrepared with the policies that a token for their scopes cannot have.
type VaultNotPreparedError struct{ Missing []scopes.VaultPolicy }

func (v *VaultNotPreparedError) Error() string {
	return fmt.Sprintf("%v: %s", ErrVaultNotPrepared, strings.Join(v.Lines(), "; "))
}

// Lines says for each policy which scope needs it.
func (v *VaultNotPreparedError) Lines() []string {
	var lines []string
	for _, p := range v.Missing {
		lines = append(lines, fmt.Sprintf("scope %s needs the policy %s", p.Scope(), p.Name))
	}
	return lines
}

// Unwrap returns ErrVaultNotPrepared.
func (v *VaultNotPreparedError) Unwrap() error { return ErrVaultNotPrepared }

// MissingRightsError means that Vault does not give the broker's login all rights that it needs.
type MissingRightsError struct {
	Rights []string // such as "update on auth/token/renew-accessor"
}

func (m *MissingRightsError) Error() string {
	return "the policy of the broker's login in Vault lacks rights: run brevet bootstrap again: " + strings.Join(m.Rights, ", ")
}

// Is makes the error one of ErrVaultRefused.
func (m *MissingRightsError) Is(target error) bool { return target == ErrVaultRefused }
