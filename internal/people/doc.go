// Package people verifies an OpenID Connect ID token and returns a [Person]. It also decides which roles the person's
// groups grant, and who owns a sandbox. It fetches keys only from the provider that the operator configures, and only when
// necessary.
//
// The checks are those of OpenID Connect Core, section 3.1.3.7, done by go-oidc, and additional ones for use as a bearer
// token: exactly one audience, pinned algorithms, a bounded lifetime, Brevet's own clock with a few seconds of leeway, and
// a single parse of the token. Login checks the nonce for logins that began here. Other callers cannot, because the
// presenter of the token did not begin the login here.
//
// The package must never make a Person out of anything but a verified ID token (no access token, no logout token, no SVID),
// never fetch from an address in a token, never turn a flood of bad tokens into a flood of requests to the provider, and
// never put a byte of a token in an error. Roles and owners are pure: no I/O, no clock.
package people
