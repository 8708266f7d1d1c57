package people

import "github.com/brevet-dev/brevet/internal/refusal"

var (
	// ErrToken means that the token is invalid. The person has to log in again.
	ErrToken error = refusal.New("people", "id_token_invalid", "the ID token is invalid")
	// ErrNoDelegation means that no delegation audience is configured, so nobody can act on behalf of another person.
	ErrNoDelegation error = refusal.New("people", "delegation_off", "no delegation audience is configured")
	// ErrProviderUnavailable means that the provider's keys are not available at the moment, so no token can be verified.
	ErrProviderUnavailable error = refusal.New("people", "provider_unavailable", "the provider's keys are not available at the moment")
)

// The reasons to refuse an ID token. Each wraps ErrToken. Do not show them to clients: the details belong in the record.
var (
	errMalformed   = refusal.Of(ErrToken, "people", "id_token_malformed", "the ID token is malformed")
	errTooLarge    = refusal.Of(ErrToken, "people", "id_token_too_large", "the ID token is too large")
	errHeader      = refusal.Of(ErrToken, "people", "id_token_header", "the ID token's header has an unsupported parameter")
	errType        = refusal.Of(ErrToken, "people", "id_token_type", "the token is not an ID token")
	errAlgorithm   = refusal.Of(ErrToken, "people", "id_token_algorithm", "the signature algorithm is not accepted")
	errIssuer      = refusal.Of(ErrToken, "people", "id_token_issuer", "the issuer is not exactly the configured one")
	errAudience    = refusal.Of(ErrToken, "people", "id_token_audience", "the audience is not exactly the expected one")
	errExpired     = refusal.Of(ErrToken, "people", "id_token_expired", "the ID token has expired")
	errNotYetValid = refusal.Of(ErrToken, "people", "id_token_not_yet_valid", "the ID token is not valid yet")
	errLifetime    = refusal.Of(ErrToken, "people", "id_token_lifetime", "the lifetime of the ID token is too long")
	errSubject     = refusal.Of(ErrToken, "people", "id_token_subject", "the subject is not accepted")
	errPairwise    = refusal.Of(ErrToken, "people", "id_token_pairwise", "the provider uses pairwise subjects")
	errClaims      = refusal.Of(ErrToken, "people", "id_token_claims", "a claim is not accepted")
	errKey         = refusal.Of(ErrToken, "people", "id_token_key", "the provider has no such key")
	errNonce       = refusal.Of(ErrToken, "people", "id_token_nonce", "the ID token does not belong to this login")
	errSignature   = refusal.Of(ErrToken, "people", "id_token_signature", "the ID token does not verify")
)
