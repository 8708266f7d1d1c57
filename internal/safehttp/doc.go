// Package safehttp calls third-party servers over TLS, and only at addresses that are public or that the operator allows.
//
// It must never connect to an address that is not allowed, whatever a name resolves to. It must never follow a redirect, take a
// proxy from the environment, or quote a URL, which may be a secret.
package safehttp
