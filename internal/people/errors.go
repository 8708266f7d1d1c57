package people

import "errors"

// A refusal is an error with a reason code that is stable, so that it can be recorded and searched for.
type refusal struct {
	reason string
	text   string
	kind   error
}

func (r *refusal) Error() string { return "people: " + r.text }

// Unwrap tells the sentinel that the refusal is one of.
func (r *refusal) Unwrap() error { return r.kind }

var (
	// ErrToken means that the token proves nobody. Whoever presented it has to log in anew.
	ErrToken error = &refusal{"id_token_invalid", "the ID token proves nobody", nil}
	// ErrNoDelegation means that nobody can act on behalf of anybody: no audience is configured for that.
	ErrNoDelegation error = &refusal{"delegation_off", "no audience to delegate by is configured", nil}
	// ErrProviderUnavailable means that nobody can be told at the moment: the provider's keys are not to be had.
	ErrProviderUnavailable error = &refusal{"provider_unavailable", "the provider's keys are not available at the moment", nil}
)

// Every way in which an ID token is refused. Each is an ErrToken. A client is to see none of it: the details belong in
// the record.
var (
	errMalformed   = &refusal{"id_token_malformed", "the ID token is malformed", ErrToken}
	errTooLarge    = &refusal{"id_token_too_large", "the ID token is too large", ErrToken}
	errHeader      = &refusal{"id_token_header", "the ID token's header asks for what is not granted", ErrToken}
	errType        = &refusal{"id_token_type", "the token is not an ID token", ErrToken}
	errAlgorithm   = &refusal{"id_token_algorithm", "the signature algorithm is not accepted", ErrToken}
	errIssuer      = &refusal{"id_token_issuer", "the issuer is not exactly the configured one", ErrToken}
	errAudience    = &refusal{"id_token_audience", "the audience is not exactly the one that is wanted", ErrToken}
	errExpired     = &refusal{"id_token_expired", "the ID token has expired", ErrToken}
	errNotYetValid = &refusal{"id_token_not_yet_valid", "the ID token is not valid yet", ErrToken}
	errLifetime    = &refusal{"id_token_lifetime", "the ID token lives too long", ErrToken}
	errSubject     = &refusal{"id_token_subject", "the subject is not acceptable", ErrToken}
	errPairwise    = &refusal{"id_token_pairwise", "the provider has another subject of a person for each client", ErrToken}
	errClaims      = &refusal{"id_token_claims", "a claim is not acceptable", ErrToken}
	errKey         = &refusal{"id_token_key", "the provider has no such key", ErrToken}
	errNonce       = &refusal{"id_token_nonce", "the ID token is not of the login that was begun", ErrToken}
	errSignature   = &refusal{"id_token_signature", "the ID token does not verify", ErrToken}
)

// Reason returns the stable code of err for the record, "" for nil, and "internal" for an error that is not a
// refusal by this package.
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
