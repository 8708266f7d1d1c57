package passkey

import "errors"

// The reasons to refuse a registration or an assertion. Each error of this package wraps exactly one of these, and none
// quotes the input.
var (
	// ErrNoRelyingParty means that no relying party is configured.
	ErrNoRelyingParty = errors.New("passkey: no relying party is configured")
	// ErrMalformed means that the input is not the response of a browser.
	ErrMalformed = errors.New("passkey: not the response of an authenticator")
	// ErrCeremony means that a registration was presented as an assertion, or the reverse.
	ErrCeremony = errors.New("passkey: response to another ceremony")
	// ErrChallenge means that another challenge was signed.
	ErrChallenge = errors.New("passkey: response to another challenge")
	// ErrOrigin means that it was made on a page of another origin, or in a cross-origin frame.
	ErrOrigin = errors.New("passkey: made on a page of another origin")
	// ErrRelyingParty means that it was made for another relying party.
	ErrRelyingParty = errors.New("passkey: made for another relying party")
	// ErrUnverified means that the authenticator does not confirm that the person was present and was verified as its user.
	ErrUnverified = errors.New("passkey: user was not verified")
	// ErrKey means that the key has an algorithm that is not accepted, or is not sound.
	ErrKey = errors.New("passkey: the key is not supported or not valid")
	// ErrOtherKey means that another key made the assertion.
	ErrOtherKey = errors.New("passkey: made with another key")
	// ErrCounter means that the authenticator's counter did not increase, as with a copy of the authenticator.
	ErrCounter = errors.New("passkey: the signature counter did not increase")
	// ErrSignature means that the signature does not verify.
	ErrSignature = errors.New("passkey: the signature is invalid")
)
