package httpapi

import (
	"errors"

	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// What can be wrong with a call before the broker sees it. problems.go says how each is answered.
var (
	errMalformedBody   = errors.New("body is not acceptable JSON")
	errForm            = errors.New("body is not an acceptable form")
	errParameter       = errors.New("parameter is not acceptable")
	errCursor          = errors.New("cursor is not one of ours")
	errUnauthenticated = errors.New("no acceptable SVID or ID token")
	errProof           = errors.New("DPoP proof is not acceptable")
	errNonce           = errors.New("DPoP proof lacks the nonce")
	errBundle          = errors.New("bundle of the trust domain is not available")
	errPace            = errors.New("caller calls too often")
	errBusy            = errors.New("replica is as busy as it can be")
	errTooMany         = errors.New("caller asks for too much at a time")
	errProvider        = errors.New("provider of people is not available")
	errDenied          = errors.New("policy does not allow it")
	errNotAllowed      = errors.New("caller lacks the role")
	errForeignPage     = errors.New("page of another site calls")
	errToken           = errors.New("token does not prove anything")
	errUnclear         = errors.New("call that is asked about is not clear")
	errNoRoute         = errors.New("no such path")
	errMethod          = errors.New("method is not allowed")
	errTooLarge        = errors.New("body is too large")
	errMediaType       = errors.New("media type is not accepted")
	errMisdirected     = errors.New("host is not ours")
	errInvalid         = errors.New("request is not acceptable")
	errCatalogue       = errors.New("catalogue is not one")
	errUnconditional   = errors.New("change names no catalogue in force")
	errKeys            = errors.New("key set is not available")
	errFault           = errors.New("server fault")
)

// errCutOff: the answer with a credential was not written to its end.
var errCutOff = errors.New("answer was cut off")

// errSlow: somebody asked for events and does not read them.
var errSlow = errors.New("events are not read")

// requestError is a failure with what may be said about it: field goes to the caller and is never input, why goes to the
// caller and is fixed or the catalogue's text, detail is the fixed code for the record.
type requestError struct {
	kind               error
	field, why, detail string
	oauth              OAuthErrorCode // what OAuth calls it, where that is not what its kind is called
	unsigned           bool           // nothing that we have signed came with the call, or it was refused before that was looked at
}

func (f *requestError) Error() string { return f.kind.Error() + ": " + f.detail }

func (f *requestError) Unwrap() error { return f.kind }

// requestErrorOf looks into err for what may be said about it.
func requestErrorOf(err error) requestError {
	var f *requestError
	if errors.As(err, &f) {
		return *f
	}
	var ask *scopes.InvalidAsk
	if errors.As(err, &ask) {
		return requestError{kind: errInvalid, field: ask.Field, why: ask.Why, detail: ask.Field}
	}
	return requestError{}
}
