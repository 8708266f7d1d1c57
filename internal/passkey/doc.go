// Package passkey registers people's WebAuthn passkeys and verifies their signatures over a given challenge (Web
// Authentication, level 3). A library that does nothing else parses the input.
//
// The package never does I/O, reads a clock or chooses a challenge, and it does not know which person a key belongs to.
package passkey
