package passkey

import "errors"

// Every way in which a registration or an assertion is refused. The errors of this package wrap exactly one of these, and
// none quotes what it was given.
var (
	// ErrNoRelyingParty: there is no site that passkeys are for.
	ErrNoRelyingParty = errors.New("passkey: no relying party is configured")
	// ErrMalformed: it is not what a browser answers with.
	ErrMalformed = errors.New("passkey: it is no answer of an authenticator")
	// ErrCeremony: a registration was shown as an assertion, or the other way round.
	ErrCeremony = errors.New("passkey: it is an answer to something else")
	// ErrChallenge: something else was signed.
	ErrChallenge = errors.New("passkey: it answers another challenge")
	// ErrOrigin: it was made on another page, or in a frame of one.
	ErrOrigin = errors.New("passkey: it was made on another page")
	// ErrRelyingParty: it was made for another site.
	ErrRelyingParty = errors.New("passkey: it was made for another site")
	// ErrUnverified: the authenticator does not say that the person was there and has proved to be its user.
	ErrUnverified = errors.New("passkey: its user was not verified")
	// ErrKey: the key is not of an algorithm that is accepted, or not a sound one.
	ErrKey = errors.New("passkey: the key is of no use")
	// ErrOtherKey: it was made with another key.
	ErrOtherKey = errors.New("passkey: it was made with another key")
	// ErrCounter: the authenticator counts backwards, as a copy of it would.
	ErrCounter = errors.New("passkey: its counter went back")
	// ErrSignature: the signature does not verify.
	ErrSignature = errors.New("passkey: the signature does not verify")
)
