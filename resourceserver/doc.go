// Package resourceserver is for servers that take Brevet's access tokens: it lets a call pass when its token is one for them, valid
// now, and presented by whoever it is bound to (RFC 9068, RFC 8705, RFC 9449).
//
//	guard, err := resource.New(resource.Config{Issuer: issuer, Audience: audience, Origin: origin})
//	...
//	http.Handle("/", guard.Handler(mux))
//
// It knows nothing of revocations unless Config.StatusLists or Config.Confirm is set, and leaves it to the server what a token's details
// allow. It must never pass on a call when it cannot tell, and never say in an answer what was in the token.
package resourceserver
