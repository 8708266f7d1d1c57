package passkey_test

import (
	"bytes"
	"testing"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// No input causes a panic, the recorded form of an assertion is stable, and only what the key has signed verifies.
func FuzzAssertion(f *testing.F) {
	a, c := testkit.NewAuthenticator(f, site, origin), bytes.Repeat([]byte{7}, 32)
	key, err := passkey.Register(a.Register(f, c), c, party)
	if err != nil {
		f.Fatal(err)
	}
	signed := a.Assert(f, c)
	truth, err := passkey.ParseAssertion(signed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add([]byte(truth.String()))
	f.Add(a.Register(f, c))
	a.Flags |= 0xc0 // flags for a key and extensions that are missing
	f.Add(a.Assert(f, c))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if _, err := passkey.Register(answer, []byte("another challenge"), party); err == nil {
			t.Fatal("registered for another challenge")
		}
		got, err := passkey.ParseAssertion(answer)
		if err != nil {
			return
		}
		again, err := passkey.ParseAssertion([]byte(got.String()))
		if err != nil || again.String() != got.String() {
			t.Fatalf("kept as %s, read as %s: %v", got, again, err)
		}
		if passkey.Verify(key, got, c, party) == nil && got.String() != truth.String() {
			t.Fatalf("verifies: %s", answer)
		}
	})
}
