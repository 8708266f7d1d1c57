// Package token is the access token as Brevet issues it (RFC 9068), the list that tells which were ended (Token Status List),
// and the one strict way to read them: for the broker that fixes what they say, for introspection, and for resource servers.
//
// It is pure: no I/O and no clock of its own. It must never accept what has two readings, a token of another kind, or one
// whose audience nobody asked about.
package token
