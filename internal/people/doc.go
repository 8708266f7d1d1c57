// Package people turns an OpenID Connect ID token into a [Person], says what a person's groups entitle them to, and
// whose a sandbox is. Only the provider that an operator has named is asked for keys, and only when it has to be.
//
// The checks are those of OpenID Connect Core, section 3.1.3.7, done by go-oidc, and the ones on top that bearer use
// takes: exactly one audience, pinned algorithms, a bounded life, our own clock with a few seconds of leeway, and one
// reading of the token only. A nonce is checked where the login was begun here, in Login: elsewhere who presents the token is not who began it.
//
// It must never make a Person out of anything but a verified ID token (no access token, no logout token, no SVID),
// never fetch from where a token says, never turn a flood of bad tokens into a flood to the provider, and never put a
// byte of a token in an error. Roles and owners are pure: no I/O, no clock.
package people
