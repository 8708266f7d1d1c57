package passkey_test

import (
	"bytes"
	"testing"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// Whatever somebody sends, nothing panics, what is kept of it stays as it is, and nothing verifies but what the key has signed.
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
	a.Flags |= 0xc0 // a key and extensions that are not there
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
