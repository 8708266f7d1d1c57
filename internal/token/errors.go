package token

import (
	"errors"

	"github.com/brevet-dev/brevet/internal/refusal"
)

// Every way in which a token is refused. The errors returned by Verify, Bound and StatusList wrap exactly one of these.
var (
	ErrMalformed   error = refusal.New("token", "token_malformed", "it is no access token of ours")
	ErrTooLarge    error = refusal.New("token", "token_too_large", "it is too large")
	ErrAlgorithm   error = refusal.New("token", "token_algorithm", "the signature algorithm is not accepted")
	ErrKey         error = refusal.New("token", "token_key", "no key of the issuer has its kid")
	ErrSignature   error = refusal.New("token", "token_signature", "the signature does not verify")
	ErrIssuer      error = refusal.New("token", "token_issuer", "another issuer's")
	ErrAudience    error = refusal.New("token", "token_audience", "it is for somebody else")
	ErrExpired     error = refusal.New("token", "token_expired", "it has expired")
	ErrNotYetValid error = refusal.New("token", "token_not_yet_valid", "it is not valid yet")
	ErrBinding     error = refusal.New("token", "token_binding", "its presenter did not prove the key that it is bound to")
	ErrStatusList  error = refusal.New("token", "status_list", "it is no status list of the issuer's that says anything of the token")
)

// Errors of what an operator or an issuer gives us, and not a caller.
var (
	ErrKeySet = errors.New("token: the JWKS is no set of the issuer's keys")
	ErrConfig = errors.New("token: a verifier needs an issuer, an audience, keys and a clock")
)
