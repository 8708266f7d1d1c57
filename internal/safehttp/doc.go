// Package safehttp calls servers of others: over TLS, and at addresses that the operator has opened.
//
// It must never connect to an address that is not open, whatever a name resolves to, never follow a redirect, never take a
// proxy from the environment, and never quote a URL, which may be a secret.
package safehttp
