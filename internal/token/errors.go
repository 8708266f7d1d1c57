package token

import "errors"

// A refusal is an error with a reason code that is stable, so that it can be recorded and searched for. Its text never
// quotes the token.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return "token: " + r.text }

// Every way in which a token is refused. The errors returned by Verify, Bound and StatusList wrap exactly one of these.
var (
	ErrMalformed   error = &refusal{"token_malformed", "it is no access token of ours"}
	ErrTooLarge    error = &refusal{"token_too_large", "it is too large"}
	ErrAlgorithm   error = &refusal{"token_algorithm", "the signature algorithm is not accepted"}
	ErrKey         error = &refusal{"token_key", "no key of the issuer has its kid"}
	ErrSignature   error = &refusal{"token_signature", "the signature does not verify"}
	ErrIssuer      error = &refusal{"token_issuer", "another issuer's"}
	ErrAudience    error = &refusal{"token_audience", "it is for somebody else"}
	ErrExpired     error = &refusal{"token_expired", "it has expired"}
	ErrNotYetValid error = &refusal{"token_not_yet_valid", "it is not valid yet"}
	ErrBinding     error = &refusal{"token_binding", "its presenter did not prove the key that it is bound to"}
	ErrStatusList  error = &refusal{"status_list", "it is no status list of the issuer's that says anything of the token"}
)

// Errors of what an operator or an issuer gives us, and not a caller.
var (
	ErrKeySet = errors.New("token: the JWKS is no set of the issuer's keys")
	ErrConfig = errors.New("token: a verifier needs an issuer, an audience, keys and a clock")
)

// Reason returns the stable code of err for the record, "" for nil, and "internal" for an error that is not a refusal by
// this package.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return "internal"
}
