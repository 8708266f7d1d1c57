package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// What the server can answer instead of what was asked for. Test for these with errors.Is; the *Problem behind them
// says more.
var (
	// ErrInvalid: the call makes no sense to the server. Asking again the same way will not help.
	ErrInvalid = errors.New("request is not acceptable")
	// ErrUnauthenticated: the SVID, the ID token, or the proof of a key, was not accepted.
	ErrUnauthenticated = errors.New("caller is not authenticated")
	// ErrDenied: policy does not allow it. Problem.Narrowest is an ask that would pass, if there is one.
	ErrDenied = errors.New("policy does not allow it")
	// ErrQuarantined: denied because an admin has ordered that the caller gets nothing. It is ErrDenied too.
	ErrQuarantined = errors.New("caller is in quarantine")
	// ErrTaskEnded: denied because the task is over. It is ErrDenied too.
	ErrTaskEnded = errors.New("task has ended")
	// ErrNotAllowed: the call takes a role that the caller does not have.
	ErrNotAllowed = errors.New("caller lacks the role")
	// ErrRevoked: the credential was revoked before it could be delivered.
	ErrRevoked = errors.New("revoked before delivery")
	// ErrDecided: the request does not wait for votes any more, or there is nothing to redeem.
	ErrDecided = errors.New("request is decided")
	// ErrStale: what was voted on, or approved, is not what there is now.
	ErrStale = errors.New("request is not what was seen")
	// ErrOtherCatalogue: another catalogue is in force than the one that the change is for.
	ErrOtherCatalogue = errors.New("another catalogue is in force")
	// ErrNotFound: there is no such record, or none that the caller may see.
	ErrNotFound = errors.New("no such record")
	// ErrConflict: the idempotency key has been used: for another request, or its credential was delivered.
	ErrConflict = errors.New("idempotency key has been used")
	// ErrRateLimited: too many calls. Problem.RetryAfter says how long to wait.
	ErrRateLimited = errors.New("too many requests")
	// ErrUnavailable: not now, and no credential was delivered. Problem.RetryAfter says how long to wait.
	ErrUnavailable = errors.New("service is unavailable")
	// ErrVaultRefused: Vault said no, and will again until an admin has changed its configuration.
	ErrVaultRefused = errors.New("vault refused")
	// ErrInternal: the server met a fault of its own.
	ErrInternal = errors.New("server fault")
	// ErrAnswer: the answer is not one that a Brevet server gives.
	ErrAnswer = errors.New("answer is not understood")
)

// sentinels is the server's table from errors to codes, read backwards.
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
	openapi.CodeRateLimited:          ErrRateLimited,
	openapi.CodeLedgerUnavailable:    ErrUnavailable,
	openapi.CodeOverloaded:           ErrUnavailable,
	openapi.CodeVaultUnavailable:     ErrUnavailable,
	openapi.CodeVaultRefused:         ErrVaultRefused,
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
	openapi.CodeSuperseded:           ErrUnavailable,
	openapi.CodeNotSealed:            ErrUnavailable,
	openapi.CodeTooBroad:             ErrInvalid,
	openapi.CodeInternal:             ErrInternal,
}

// reasons are denials that a program may want to tell from the others, by Problem.Reason.
var reasons = map[string]error{"quarantined": ErrQuarantined, "task_ended": ErrTaskEnded}

// Problem is the server's own account of a failure (RFC 9457).
type Problem struct { //nolint:errname // the word of RFC 9457
	openapi.Problem
	// RequestID names the call in the server's logs.
	RequestID string
	// RetryAfter is how long to wait, zero when the server did not say.
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

// Is tells the sentinels that the problem's code and reason stand for.
func (p *Problem) Is(target error) bool {
	sentinel, ok := sentinels[p.Code]
	reason, why := reasons[p.Reason]
	return ok && target == sentinel || why && p.Code == openapi.CodeDenied && target == reason
}
