// Package attest turns an SVID into an [Identity]. It accepts an X.509-SVID from a mutual TLS connection and a
// JWT-SVID sent as a bearer token, and checks both against the bundle of the SVID's own trust domain. It also keeps
// those bundles current, from the Workload API, from files and from SPIFFE federation endpoints.
//
// The checks are those of the SPIFFE specifications, done by go-spiffe, and the ones on top that go-spiffe leaves to
// its caller: key usages, a path in the ID, our own clock with a few seconds of leeway, short lifetimes, exactly one
// audience, and headers that hold nothing but alg, kid and typ.
//
// It must never make an Identity out of anything but a verified SVID, never merge the bundles of two trust domains,
// never use the system's certificate store for an SVID, and never put a byte of a token in an error. Whatever goes
// wrong, the answer is a [Reason] and the zero Identity.
package attest
