package attest

import "github.com/brevet-dev/brevet/internal/refusal"

// The reasons for which an SVID is rejected. The errors returned by this package wrap exactly one of these. A client may learn
// what is wrong with its own SVID. The details, and everything that shows which authorities we trust, are for the log only.
var (
	ErrNoIdentity        error = refusal.New("attest", "no_identity", "neither a client certificate nor a token was presented")
	ErrMalformed         error = refusal.New("attest", "svid_malformed", "the SVID is malformed")
	ErrTooLarge          error = refusal.New("attest", "svid_too_large", "the SVID is too large")
	ErrProfile           error = refusal.New("attest", "svid_profile", "the certificate is not an X.509-SVID")
	ErrID                error = refusal.New("attest", "spiffe_id_invalid", "the SPIFFE ID is invalid")
	ErrTrustDomain       error = refusal.New("attest", "unknown_trust_domain", "the trust domain is not accepted")
	ErrAlgorithm         error = refusal.New("attest", "svid_algorithm", "the signature algorithm is not accepted")
	ErrWeakKey           error = refusal.New("attest", "svid_weak_key", "a key is too weak")
	ErrAuthority         error = refusal.New("attest", "svid_authority", "the bundle does not contain the signing key")
	ErrSignature         error = refusal.New("attest", "svid_signature", "the SVID does not verify against its trust domain's bundle")
	ErrExpired           error = refusal.New("attest", "svid_expired", "the SVID has expired")
	ErrNotYetValid       error = refusal.New("attest", "svid_not_yet_valid", "the SVID is not valid yet")
	ErrLifetime          error = refusal.New("attest", "svid_lifetime", "the lifetime of the SVID is too long")
	ErrAudience          error = refusal.New("attest", "svid_audience", "the audience is not exactly the configured one")
	ErrResumed           error = refusal.New("attest", "tls_resumed", "the TLS connection was resumed")
	ErrMismatch          error = refusal.New("attest", "identity_mismatch", "the certificate and the token have different identities")
	ErrBundleUnavailable error = refusal.New("attest", "bundle_unavailable", "the bundle of an accepted trust domain is not available at the moment")
)
