// Package mint makes credentials through Vault. It logs in with the broker's own identity, keeps that login alive, tracks the
// versions of the signing key, and asks Vault's Transit engine to sign JWTs with exactly the version that the intent names. It
// verifies every signature before it releases it.
//
// It must never hold a private key, never ask twice for one order, never follow a redirect or a proxy, never take configuration
// from VAULT_* variables, and never release bytes that differ from the intent.
package mint
