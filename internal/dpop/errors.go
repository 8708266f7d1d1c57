package dpop

import "errors"

// A refusal is an error with a reason code that is stable, so that it can be recorded and searched for. Its text never
// quotes the proof.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return "dpop: " + r.text }

// Every way in which a proof is refused. The errors returned by Check and Memory wrap exactly one of these.
var (
	ErrMissing   error = &refusal{"proof_missing", "there is no proof"}
	ErrMalformed error = &refusal{"proof_malformed", "it is no DPoP proof, or not the only one"}
	ErrAlgorithm error = &refusal{"proof_algorithm", "the signature algorithm is not accepted"}
	ErrKey       error = &refusal{"proof_key", "its key is not a public one that fits the algorithm"}
	ErrSignature error = &refusal{"proof_signature", "the signature does not verify"}
	ErrMethod    error = &refusal{"proof_method", "it is for another method"}
	ErrURL       error = &refusal{"proof_url", "it is for another address"}
	ErrTime      error = &refusal{"proof_time", "it was not made just now"}
	ErrNonce     error = &refusal{"proof_nonce", "it lacks a nonce that is valid now"}
	ErrToken     error = &refusal{"proof_token", "it is for another access token, or for none"}
	ErrBinding   error = &refusal{"proof_binding", "it is by another key than the token is bound to"}
	ErrReplayed  error = &refusal{"proof_replayed", "it was used before"}
	ErrCrowded   error = &refusal{"proof_crowded", "too many proofs at once to tell whether it was used before"}
)

// ErrConfig is what a Signer, or Nonces, cannot be made of.
var ErrConfig = errors.New("dpop: unfit key")

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
