// Package egress is the gateway for the outgoing calls of a sandbox. For each call, it requests the credential that the call
// needs from Brevet with the sandbox's identity, adds the credential, and forwards the call.
//
// It must never forward a call that matches no egress rule of the catalogue. It must never give a credential to the sandbox, to
// a host that its rule does not name, to an address that is not allowed, or to a connection without TLS. It must never follow a
// redirect, and never store a credential outside memory. It must never start a call with a credential that Brevet has not
// confirmed as alive within the last second.
package egress
