// Package passkey takes in WebAuthn passkeys of people, and tells whether one of them has signed exactly what was to be
// signed (Web Authentication, level 3). What it is told it takes apart by a library that does nothing else.
//
// It never does I/O, reads a clock or chooses a challenge, and it does not know whose a key is.
package passkey
