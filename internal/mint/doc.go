// Package mint makes credentials through Vault: it logs in with the broker's own identity, keeps that login
// alive, knows the versions of the signing key, and has Vault's Transit engine sign JWTs with exactly the
// version that the intent names. Every signature is verified before it is released.
//
// It must never hold a private key, never ask twice for one order, never follow a redirect or a proxy, never
// take configuration from VAULT_* variables, and never release bytes that differ from the intent.
package mint
