package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// Errors that the server returns. Test for them with errors.Is; the *Problem that they wrap has the details.
var (
	// ErrInvalid: the server cannot process the request. An unchanged retry fails again.
	ErrInvalid = errors.New("invalid request")
	// ErrNoCredential: the scope has no credential (KindNone). It only opens hosts, for which an egress gateway asks by itself. It also
	// matches ErrInvalid.
	ErrNoCredential = fmt.Errorf("%w: the scope has no credential and only opens hosts; the egress gateway asks for that itself", ErrInvalid)
	// ErrUnauthenticated: the server did not accept the SVID, the ID token or the DPoP proof.
	ErrUnauthenticated = errors.New("authentication required")
	// ErrDenied: policy denied the request. Problem.Narrowest is the nearest request that would pass, if one exists.
	ErrDenied = errors.New("denied by policy")
	// ErrQuarantined: denied because an admin quarantined the sandbox. It also matches ErrDenied.
	ErrQuarantined = errors.New("sandbox is quarantined")
	// ErrTaskEnded: denied because the task has ended. It also matches ErrDenied.
	ErrTaskEnded = errors.New("task has ended")
	// ErrNotAllowed: the call requires a role that the caller does not have.
	ErrNotAllowed = errors.New("permission denied")
	// ErrRevoked: the credential was revoked before it could be delivered.
	ErrRevoked = errors.New("revoked before delivery")
	// ErrDecided: the request no longer waits for votes, or there is nothing to redeem.
	ErrDecided = errors.New("request is already decided")
	// ErrStale: the request has changed since the vote or the approval.
	ErrStale = errors.New("request has changed")
	// ErrOtherCatalogue: the catalogue in force is not the one that the change is based on.
	ErrOtherCatalogue = errors.New("catalogue has changed")
	// ErrNotFound: the record does not exist, or the caller may not see it.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the idempotency key was used for another request, or its credential was delivered.
	ErrConflict = errors.New("idempotency key already used")
	// ErrAlreadyReported: another report with this sequence number is recorded in the session.
	ErrAlreadyReported = errors.New("another report is already recorded")
	// ErrRateLimited: too many calls. Problem.RetryAfter says how long to wait.
	ErrRateLimited = errors.New("rate limit exceeded")
	// ErrUnavailable: the failure may be transient, and no credential was delivered. Problem.RetryAfter says how long to wait.
	ErrUnavailable = errors.New("service is unavailable")
	// ErrVaultRefused: Vault or GitHub refused, and refuses again until an admin changes its configuration.
	ErrVaultRefused = errors.New("vault refused")
	// ErrInternal: the server failed with an internal error.
	ErrInternal = errors.New("internal server error")
	// ErrAnswer: the response does not come from a Brevet server.
	ErrAnswer = errors.New("response is not a Brevet response")
)

// errEarlier is why Await does not withdraw a request.
var errEarlier = errors.New("it was made earlier, and others may wait for it")

// AbandonedError means that the wait for approval of a request ended before people decided.
type AbandonedError struct {
	Pending Pending // the request
	Kept    error   // why the request is not withdrawn, so that people can still approve it; nil if it is withdrawn
	Err     error   // why the wait ended
}

func (a *AbandonedError) Error() string {
	if a.Kept == nil {
		return fmt.Sprintf("%v; request %s is withdrawn", a.Err, a.Pending.ID)
	}
	return fmt.Sprintf("%v; request %s is not withdrawn: %v", a.Err, a.Pending.ID, a.Kept)
}

// Unwrap returns why the wait ended.
func (a *AbandonedError) Unwrap() error { return a.Err }

// sentinels maps codes to errors. It is the inverse of the server's table.
var sentinels = map[openapi.ProblemCode]error{
	openapi.CodeMalformedBody:        ErrInvalid,
	openapi.CodeInvalidParameter:     ErrInvalid,
	openapi.CodeInvalidCursor:        ErrInvalid,
	openapi.CodeInvalidRequest:       ErrInvalid,
	openapi.CodeTooLarge:             ErrInvalid,
	openapi.CodeUnsupportedMediaType: ErrInvalid,
	openapi.CodeMethodNotAllowed:     ErrInvalid,
	openapi.CodeMisdirected:          ErrInvalid,
	openapi.CodeUnauthenticated:      ErrUnauthenticated,
	openapi.CodeInvalidToken:         ErrUnauthenticated,
	openapi.CodeInsufficientScope:    ErrDenied,
	openapi.CodeInvalidDPoPProof:     ErrUnauthenticated,
	openapi.CodeUseDPoPNonce:         ErrUnauthenticated,
	openapi.CodeDenied:               ErrDenied,
	openapi.CodeNotAllowed:           ErrNotAllowed,
	openapi.CodeRevoked:              ErrRevoked,
	openapi.CodeNotFound:             ErrNotFound,
	openapi.CodeAlreadyIssued:        ErrConflict,
	openapi.CodeIdempotencyMismatch:  ErrConflict,
	openapi.CodeAlreadyReported:      ErrAlreadyReported,
	openapi.CodeRateLimited:          ErrRateLimited,
	openapi.CodeLedgerUnavailable:    ErrUnavailable,
	openapi.CodeLedgerFull:           ErrUnavailable,
	openapi.CodeOverloaded:           ErrUnavailable,
	openapi.CodeVaultUnavailable:     ErrUnavailable,
	openapi.CodeVaultRefused:         ErrVaultRefused,
	openapi.CodeGitHubUnavailable:    ErrUnavailable,
	openapi.CodeGitHubRefused:        ErrVaultRefused,
	openapi.CodeMintMismatch:         ErrUnavailable,
	openapi.CodeBundleUnavailable:    ErrUnavailable,
	openapi.CodeProviderUnavailable:  ErrUnavailable,
	openapi.CodeOwnRequest:           ErrNotAllowed,
	openapi.CodeNotEligible:          ErrNotAllowed,
	openapi.CodePasskeyRequired:      ErrNotAllowed,
	openapi.CodeDecided:              ErrDecided,
	openapi.CodeNotApproved:          ErrDecided,
	openapi.CodeStale:                ErrStale,
	openapi.CodePreconditionRequired: ErrInvalid,
	openapi.CodePreconditionFailed:   ErrOtherCatalogue,
	openapi.CodeOwnProposal:          ErrNotAllowed,
	openapi.CodeInvalidCatalogue:     ErrInvalid,
	openapi.CodeVaultNotPrepared:     ErrVaultRefused,
	openapi.CodeSuperseded:           ErrUnavailable,
	openapi.CodeNotSealed:            ErrUnavailable,
	openapi.CodeTooBroad:             ErrInvalid,
	openapi.CodeInternal:             ErrInternal,
}

// reasons maps Problem.Reason to an error, for the denials that a program may want to distinguish.
var reasons = map[string]error{"quarantined": ErrQuarantined, "task_ended": ErrTaskEnded}

// Problem is the server's description of a failure (RFC 9457).
type Problem struct { //nolint:errname // the word of RFC 9457
	openapi.Problem
	// RequestID identifies the call in the server's logs.
	RequestID string
	// RetryAfter is how long to wait before a retry. It is zero if the server did not say.
	RetryAfter time.Duration
}

func (p *Problem) Error() string {
	text := fmt.Sprintf("%s (%d %s)", p.Title, p.Status, p.Code)
	if p.Field != "" {
		text += ": " + p.Field
	}
	if p.Explanation != "" {
		text += ": " + p.Explanation
	}
	return text
}

// Is reports whether target is the sentinel of the problem's code or reason.
func (p *Problem) Is(target error) bool {
	sentinel, ok := sentinels[p.Code]
	reason, why := reasons[p.Reason]
	return ok && target == sentinel || why && p.Code == openapi.CodeDenied && target == reason
}
