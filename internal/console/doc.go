// Package console is the web pages of approvers, admins and auditors: what waits for them, what is alive, what was, and the
// proof of it. Pages are made on the server and work without scripts, except where a script is the point: a passkey, a proof
// that the browser checks, a chart.
//
// People log in at their OpenID Connect provider. A session keeps the ID token, sealed, and each call verifies it anew: a page
// shows nothing that the API would not tell the same person.
//
// It must never change anything by GET, never show text from elsewhere in a way that could be taken for a fact, never run or
// load a script that is not in this binary, and never send a secret.
package console
