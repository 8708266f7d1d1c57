// Package attest turns an SVID into an [Identity]. It accepts an X.509-SVID from a mutual TLS connection and a JWT-SVID sent as a
// bearer token, and checks both against the bundle of the SVID's own trust domain. It also keeps those bundles current, from the
// Workload API, from files and from SPIFFE federation endpoints.
//
// go-spiffe does the checks of the SPIFFE specifications. This package adds the checks that go-spiffe leaves to its caller: key
// usages, a path in the ID, our own clock with a few seconds of leeway, short lifetimes, exactly one audience, and headers with
// no members but alg, kid and typ.
//
// It must never create an Identity from anything but a verified SVID, never merge the bundles of two trust domains, never use the
// system's certificate store for an SVID, and never put a byte of a token in an error. On any failure it returns an error that
// wraps one of the Err variables, and the zero Identity.
package attest
