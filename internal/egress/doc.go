// Package egress is the way out of a sandbox: it asks Brevet as the sandbox for the credential that a call needs, puts it in,
// and passes the call on.
//
// It must never let a call pass that no egress rule of the catalogue has, never give a credential to the sandbox, to another
// host than its rule names, to an address that is not open, or to a connection without TLS, never follow a redirect, never
// keep a credential anywhere but in memory, and never begin a call with one that Brevet has not called alive within the last second.
package egress
