package dpop

import (
	"errors"

	"github.com/brevet-dev/brevet/internal/refusal"
)

// Every way in which a proof is refused. The errors returned by Check and Memory wrap exactly one of these.
var (
	ErrMissing   error = refusal.New("dpop", "proof_missing", "there is no proof")
	ErrMalformed error = refusal.New("dpop", "proof_malformed", "it is no DPoP proof, or not the only one")
	ErrAlgorithm error = refusal.New("dpop", "proof_algorithm", "the signature algorithm is not accepted")
	ErrKey       error = refusal.New("dpop", "proof_key", "its key is not a public one that fits the algorithm")
	ErrSignature error = refusal.New("dpop", "proof_signature", "the signature does not verify")
	ErrMethod    error = refusal.New("dpop", "proof_method", "it is for another method")
	ErrURL       error = refusal.New("dpop", "proof_url", "it is for another address")
	ErrTime      error = refusal.New("dpop", "proof_time", "it was not made just now")
	ErrNonce     error = refusal.New("dpop", "proof_nonce", "it lacks a nonce that is valid now")
	ErrToken     error = refusal.New("dpop", "proof_token", "it is for another access token, or for none")
	ErrBinding   error = refusal.New("dpop", "proof_binding", "it is by another key than the token is bound to")
	ErrReplayed  error = refusal.New("dpop", "proof_replayed", "it was used before")
	ErrCrowded   error = refusal.New("dpop", "proof_crowded", "too many proofs at once to tell whether it was used before")
)

// ErrConfig is what a Signer, or Nonces, cannot be made of.
var ErrConfig = errors.New("dpop: unfit key")
