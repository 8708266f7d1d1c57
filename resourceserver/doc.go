// Package resourceserver is for servers that accept Brevet's access tokens. It lets a request pass if its token is for this
// server, valid now, and presented by the client that it is bound to (RFC 9068, RFC 8705, RFC 9449).
//
//	guard, err := resourceserver.New(resourceserver.Config{Issuer: issuer, Audience: audience, Origin: origin})
//	...
//	http.Handle("/", guard.Handler(mux))
//
// It sees revocations only if Config.StatusLists or Config.Confirm is set. The server itself decides what a token's details
// allow. The package must never pass on a request that it can't check, and never reveal the contents of a token in a response.
package resourceserver
