package httpapi

import (
	"errors"

	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// Errors of a call before it reaches the broker. problems.go maps each to a problem.
var (
	errMalformedBody   = errors.New("invalid JSON body")
	errForm            = errors.New("invalid form")
	errParameter       = errors.New("invalid parameter")
	errCursor          = errors.New("invalid cursor")
	errUnauthenticated = errors.New("authentication required")
	errProof           = errors.New("invalid DPoP proof")
	errNonce           = errors.New("DPoP proof has no valid nonce")
	errBundle          = errors.New("trust bundle is unavailable")
	errPace            = errors.New("rate limit exceeded")
	errBusy            = errors.New("replica is overloaded")
	errTooMany         = errors.New("too many concurrent requests")
	errProvider        = errors.New("OpenID provider is unavailable")
	errDenied          = errors.New("denied by policy")
	errNotAllowed      = errors.New("permission denied")
	errForeignPage     = errors.New("cross-origin request refused")
	errToken           = errors.New("invalid access token")
	errUnclear         = errors.New("ambiguous forwarded request")
	errNoRoute         = errors.New("no such route")
	errMethod          = errors.New("method not allowed")
	errTooLarge        = errors.New("body is too large")
	errMediaType       = errors.New("unsupported media type")
	errMisdirected     = errors.New("unknown host")
	errInvalid         = errors.New("invalid request")
	errCatalogue       = errors.New("invalid catalogue")
	errUnconditional   = errors.New("If-Match is required")
	errKeys            = errors.New("key set is unavailable")
	errFault           = errors.New("internal error")
)

// errCutOff: the response with a credential was not written completely.
var errCutOff = errors.New("response was cut off")

// errSlow: a client opened an event stream and does not read it.
var errSlow = errors.New("client does not read its events")

// requestError is a failure with what may be said about it. field goes to the caller and never contains input. why goes to the
// caller and is a fixed text or a text of the catalogue. detail is the fixed code for the record.
type requestError struct {
	kind               error
	field, why, detail string
	oauth              OAuthErrorCode // the OAuth error code, if it differs from that of kind
	unsigned           bool           // the call has nothing that Brevet signed, or was refused before that was checked
}

func (f *requestError) Error() string { return f.kind.Error() + ": " + f.detail }

func (f *requestError) Unwrap() error { return f.kind }

// requestErrorOf returns what may be said about err.
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
