// Package console serves the web pages for approvers, admins and auditors: a dashboard, pending approvals, live
// credentials, the audit log, and the proofs of the record. The server renders the pages. They work without scripts, except
// for features that need one: a passkey, a proof that the browser checks, a chart.
//
// People log in at their OpenID Connect provider. A session keeps the ID token, sealed, and every request verifies the
// token again. A page shows nothing that the API would not show to the same person.
//
// The console must never change anything on a GET, never show outside text in a way that a reader could take for a fact,
// never run or load a script that is not in this binary, and never send a secret.
package console
