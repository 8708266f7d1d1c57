// Package dpop makes and checks DPoP proofs (RFC 9449). With a proof, the sender of a request shows that it holds the key
// that its token is bound to, or will be bound to.
//
// It is pure: it does no I/O and reads no clock directly. It must never take the URL of a request from the request
// itself: a proof is valid only for an origin that the operator has configured.
package dpop
