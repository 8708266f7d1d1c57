// Package dpop makes and checks DPoP proofs (RFC 9449): with one, the sender of a request shows that it holds the key that
// its token is bound to, or that its token is to be bound to.
//
// It is pure: no I/O and no clock of its own. It must never take the address that a request was sent to from the request:
// a proof is only for the origin that the operator has configured.
package dpop
