package attest

import "errors"

// A refusal is an error with a reason code that is stable, so that it can be recorded and searched for.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return "attest: " + r.text }

// Every way in which an SVID is refused. The errors returned by this package wrap exactly one of these.
// A client may be told what it can see too. The details, and whom we trust, belong in the record.
var (
	ErrNoIdentity        error = &refusal{"no_identity", "neither a client certificate nor a token was presented"}
	ErrMalformed         error = &refusal{"svid_malformed", "the SVID is malformed"}
	ErrTooLarge          error = &refusal{"svid_too_large", "the SVID is too large"}
	ErrProfile           error = &refusal{"svid_profile", "the certificate is not an X.509-SVID"}
	ErrID                error = &refusal{"spiffe_id_invalid", "the SPIFFE ID is invalid"}
	ErrTrustDomain       error = &refusal{"unknown_trust_domain", "the trust domain is not accepted"}
	ErrAlgorithm         error = &refusal{"svid_algorithm", "the signature algorithm is not accepted"}
	ErrWeakKey           error = &refusal{"svid_weak_key", "a key is too weak"}
	ErrAuthority         error = &refusal{"svid_authority", "the bundle holds no such key"}
	ErrSignature         error = &refusal{"svid_signature", "the SVID does not verify against its trust domain's bundle"}
	ErrExpired           error = &refusal{"svid_expired", "the SVID has expired"}
	ErrNotYetValid       error = &refusal{"svid_not_yet_valid", "the SVID is not valid yet"}
	ErrLifetime          error = &refusal{"svid_lifetime", "the SVID lives too long"}
	ErrAudience          error = &refusal{"svid_audience", "the audience is not exactly ours"}
	ErrResumed           error = &refusal{"tls_resumed", "the TLS connection was resumed"}
	ErrMismatch          error = &refusal{"identity_mismatch", "the certificate and the token are of different identities"}
	ErrBundleUnavailable error = &refusal{"bundle_unavailable", "there is no bundle for an accepted trust domain at the moment"}
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
