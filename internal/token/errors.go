package token

import (
	"errors"

	"github.com/brevet-dev/brevet/internal/refusal"
)

// The reasons to refuse a token. An error from Verify, Bound or StatusList wraps exactly one of these.
var (
	ErrMalformed   error = refusal.New("token", "token_malformed", "the token is not an access token of this issuer")
	ErrTooLarge    error = refusal.New("token", "token_too_large", "the token is too large")
	ErrAlgorithm   error = refusal.New("token", "token_algorithm", "the signature algorithm is not supported")
	ErrKey         error = refusal.New("token", "token_key", "the issuer has no key with the token's kid")
	ErrSignature   error = refusal.New("token", "token_signature", "the signature is invalid")
	ErrIssuer      error = refusal.New("token", "token_issuer", "the token has another issuer")
	ErrAudience    error = refusal.New("token", "token_audience", "the token is for another audience")
	ErrExpired     error = refusal.New("token", "token_expired", "the token has expired")
	ErrNotYetValid error = refusal.New("token", "token_not_yet_valid", "the token is not valid yet")
	ErrBinding     error = refusal.New("token", "token_binding", "the caller did not prove the key that the token is bound to")
	ErrStatusList  error = refusal.New("token", "status_list", "the status list is not a list of the issuer for this token")
)

// Errors in what an operator or an issuer provides, rather than a caller.
var (
	ErrKeySet = errors.New("token: the JWKS is not a valid key set of the issuer")
	ErrConfig = errors.New("token: a verifier requires an issuer, an audience, keys and a clock")
)
