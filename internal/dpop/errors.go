package dpop

import (
	"errors"

	"github.com/brevet-dev/brevet/internal/refusal"
)

// The reasons to refuse a proof. An error from Check or ReplayCache wraps exactly one of these.
var (
	ErrMissing   error = refusal.New("dpop", "proof_missing", "the proof is missing")
	ErrMalformed error = refusal.New("dpop", "proof_malformed", "the header does not hold exactly one DPoP proof")
	ErrAlgorithm error = refusal.New("dpop", "proof_algorithm", "the signature algorithm is not supported")
	ErrKey       error = refusal.New("dpop", "proof_key", "the key is not a public key for the algorithm")
	ErrSignature error = refusal.New("dpop", "proof_signature", "the signature is invalid")
	ErrMethod    error = refusal.New("dpop", "proof_method", "the proof is for another method")
	ErrURL       error = refusal.New("dpop", "proof_url", "the proof is for another URL")
	ErrTime      error = refusal.New("dpop", "proof_time", "the proof is too old or from the future")
	ErrNonce     error = refusal.New("dpop", "proof_nonce", "the proof has no valid nonce")
	ErrToken     error = refusal.New("dpop", "proof_token", "the proof is not for this access token")
	ErrBinding   error = refusal.New("dpop", "proof_binding", "the proof is signed by a key that the token is not bound to")
	ErrReplayed  error = refusal.New("dpop", "proof_replayed", "the proof was used before")
	ErrCrowded   error = refusal.New("dpop", "proof_crowded", "too many proofs to check for replay")
)

// ErrConfig means that a Signer or Nonces cannot be made from the given key.
var ErrConfig = errors.New("dpop: unsuitable key")
