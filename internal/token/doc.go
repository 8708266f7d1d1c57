// Package token defines Brevet's access tokens (RFC 9068), the list of revoked ones (Token Status List), and the one
// strict parser for both. The broker uses it to fix what tokens contain, and introspection and resource servers to read
// them.
//
// It is pure: it does no I/O and reads no clock directly. It must never accept a token that has two interpretations, a
// token of another type, or a token whose audience the caller did not ask for.
package token
