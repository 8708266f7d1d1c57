package passkey_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
)

const (
	site   = "brevet.acme.example"
	origin = "https://brevet.acme.example"
)

var party = passkey.RelyingParty{ID: site, Origins: []string{origin}}

// makers contains all kinds of authenticators.
var makers = map[string]func(t testing.TB, rpID, origin string) *testkit.Authenticator{
	"P-256": testkit.NewAuthenticator, "Ed25519": testkit.NewEd25519Authenticator, "RSA": testkit.NewRSAAuthenticator(2048),
}

func challenge(t testing.TB) []byte {
	t.Helper()
	c := make([]byte, 32)
	if _, err := rand.Read(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// registered registers an honest authenticator and returns its key.
func registered(t testing.TB, a *testkit.Authenticator) passkey.Key {
	t.Helper()
	c := challenge(t)
	key, err := passkey.Register(a.Register(t, c), c, party)
	if err != nil {
		t.Fatalf("registering: %v", err)
	}
	return key
}

func TestPasskeySignatureVerifies(t *testing.T) {
	for name, maker := range makers {
		a := maker(t, site, origin)
		a.Count = 7
		key := registered(t, a)
		if !bytes.Equal(key.Credential, a.ID) || key.SignCount != 7 || !slices.Equal(key.Transports, []string{"hybrid", "internal"}) {
			t.Errorf("%s: got %+v", name, key)
		}
		if !slices.Contains(passkey.Algorithms(), key.Algorithm) {
			t.Errorf("%s: algorithm %d is not one of those that are asked for", name, key.Algorithm)
		}
		digest := sha256.Sum256([]byte("what is approved"))
		answer := a.Assert(t, digest[:])
		assertion, err := passkey.ParseAssertion(answer)
		if err != nil {
			t.Fatal(err)
		}
		if err := passkey.Verify(key, assertion, digest[:], party); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, err := passkey.ParseAssertion([]byte(assertion.String()))
		if err != nil || passkey.Verify(key, again, digest[:], party) != nil || again.String() != assertion.String() {
			t.Errorf("%s: what is kept of an assertion does not verify: %v", name, err)
		}
		if again.Origin() != origin || !bytes.Equal(again.Credential(), a.ID) || strings.Contains(again.String(), "platform") {
			t.Errorf("%s: what is kept is %s", name, again)
		}
	}
}

// lie is one wrong detail in both kinds of responses.
type lie struct {
	tell func(a *testkit.Authenticator)
	want error
}

var lies = map[string]lie{
	"another page":              {func(a *testkit.Authenticator) { a.Origin = "https://brevet.acme.example.evil" }, passkey.ErrOrigin},
	"a page of another port":    {func(a *testkit.Authenticator) { a.Origin = origin + ":8443" }, passkey.ErrOrigin},
	"the usual port, spelt":     {func(a *testkit.Authenticator) { a.Origin = origin + ":443" }, passkey.ErrOrigin},
	"a page in capitals":        {func(a *testkit.Authenticator) { a.Origin = "https://BREVET.acme.example" }, passkey.ErrOrigin},
	"a page without TLS":        {func(a *testkit.Authenticator) { a.Origin = "http://brevet.acme.example" }, passkey.ErrOrigin},
	"in a frame":                {func(a *testkit.Authenticator) { a.Framed = true }, passkey.ErrOrigin},
	"another site":              {func(a *testkit.Authenticator) { a.RPID = "acme.example" }, passkey.ErrRelyingParty},
	"nobody was there":          {func(a *testkit.Authenticator) { a.Flags = testkit.UserVerified }, passkey.ErrUnverified},
	"anybody may have been":     {func(a *testkit.Authenticator) { a.Flags = testkit.UserPresent }, passkey.ErrUnverified},
	"an answer of another kind": {func(a *testkit.Authenticator) { a.Create, a.Get = a.Get, a.Create }, passkey.ErrCeremony},
}

func TestInvalidAuthenticatorResponsesAreRefused(t *testing.T) {
	for made, maker := range makers {
		for name, l := range lies {
			a, c := maker(t, site, origin), challenge(t)
			key := registered(t, a)
			l.tell(a)
			if _, err := passkey.Register(a.Register(t, c), c, party); !errors.Is(err, l.want) {
				t.Errorf("%s, %s: registering: got %v, want %v", made, name, err, l.want)
			}
			if err := verify(t, key, a.Assert(t, c), c, party); !errors.Is(err, l.want) {
				t.Errorf("%s, %s: verifying: got %v, want %v", made, name, err, l.want)
			}
		}
	}
}

func verify(t testing.TB, key passkey.Key, answer, challenge []byte, rp passkey.RelyingParty) error {
	t.Helper()
	a, err := passkey.ParseAssertion(answer)
	if err != nil {
		t.Fatal(err)
	}
	return passkey.Verify(key, a, challenge, rp)
}

func TestAssertionIsForOneChallengeAndKey(t *testing.T) {
	for name, maker := range makers {
		a, b := maker(t, site, origin), maker(t, site, origin)
		mine, other := registered(t, a), registered(t, b)
		c := challenge(t)
		answer := a.Assert(t, c)
		renamed := other
		renamed.Credential = mine.Credential // as if somebody had replaced the public key
		counted := mine
		counted.SignCount = 1
		unsound := mine
		unsound.PublicKey = mine.PublicKey[:len(mine.PublicKey)-1]
		for what, try := range map[string]struct {
			key  passkey.Key
			c    []byte
			rp   passkey.RelyingParty
			want error
		}{
			"another challenge":     {mine, challenge(t), party, passkey.ErrChallenge},
			"no challenge":          {mine, nil, party, passkey.ErrChallenge},
			"another key":           {other, c, party, passkey.ErrOtherKey},
			"no key":                {passkey.Key{}, c, party, passkey.ErrOtherKey},
			"another key's name":    {renamed, c, party, passkey.ErrSignature},
			"a counter that is old": {counted, c, party, passkey.ErrCounter},
			"half a key":            {unsound, c, party, passkey.ErrKey},
			"no site":               {mine, c, passkey.RelyingParty{}, passkey.ErrNoRelyingParty},
			"a site of no pages":    {mine, c, passkey.RelyingParty{ID: site}, passkey.ErrNoRelyingParty},
		} {
			if err := verify(t, try.key, answer, try.c, try.rp); !errors.Is(err, try.want) {
				t.Errorf("%s, %s: got %v, want %v", name, what, err, try.want)
			}
		}
		if _, err := passkey.Register(a.Register(t, c), challenge(t), party); !errors.Is(err, passkey.ErrChallenge) {
			t.Errorf("%s: registering for another challenge: got %v", name, err)
		}
		if _, err := passkey.Register(a.Register(t, c), c, passkey.RelyingParty{}); !errors.Is(err, passkey.ErrNoRelyingParty) {
			t.Errorf("%s: registering for no site: got %v", name, err)
		}
	}
}

// No character of a recorded assertion can change, except for padding bits.
func TestModifiedAssertionIsRefused(t *testing.T) {
	for name, maker := range makers {
		a, c := maker(t, site, origin), challenge(t)
		key := registered(t, a)
		assertion, err := passkey.ParseAssertion(a.Assert(t, c))
		if err != nil {
			t.Fatal(err)
		}
		text := assertion.String()
		from := strings.Index(text, `"response":`)
		for i := from; i < len(text); i++ {
			changed := []byte(text)
			changed[i] ^= 1
			other, err := passkey.ParseAssertion(changed)
			if err == nil && other.String() != text && passkey.Verify(key, other, c, party) == nil {
				t.Errorf("%s: verifies with another character %d: %s", name, i, changed)
			}
		}
	}
}

func TestMalformedAuthenticatorResponsesAreRefused(t *testing.T) {
	a, c := testkit.NewAuthenticator(t, site, origin), challenge(t)
	for _, answer := range []string{
		"", "null", "{}", "[]", `{"id":"AA","rawId":"AA","type":"public-key"}`,
		string(a.Assert(t, c)) + "{}", strings.Repeat(" ", passkey.MaxAnswer) + string(a.Assert(t, c)), string(a.Register(t, c)),
	} {
		if _, err := passkey.ParseAssertion([]byte(answer)); !errors.Is(err, passkey.ErrMalformed) {
			t.Errorf("%.40s…: got %v", answer, err)
		}
	}
	for _, answer := range []string{"", "null", "{}", string(a.Register(t, c)) + "{}", strings.Repeat(" ", passkey.MaxAnswer) + string(a.Register(t, c)), string(a.Assert(t, c))} {
		if _, err := passkey.Register([]byte(answer), c, party); !errors.Is(err, passkey.ErrMalformed) {
			t.Errorf("registering %.40s…: got %v", answer, err)
		}
	}
}

// A public key with two encodings could be registered twice.
func TestPublicKeyHasOneEncoding(t *testing.T) {
	for name, maker := range makers {
		a, c := maker(t, site, origin), challenge(t)
		key := registered(t, a)
		for what, rest := range map[string][]byte{
			"a length in two bytes": append([]byte{0xb8, key.PublicKey[0] & 0x1f}, key.PublicKey[1:]...),
			"one thing more":        append(append([]byte{key.PublicKey[0] + 1}, key.PublicKey[1:]...), 0x04, 0x80),
			"no curve":              append([]byte{key.PublicKey[0] - 1}, bytes.Replace(key.PublicKey[1:], []byte{0x20, 0x01}, nil, 1)...),
		} {
			again := key
			again.PublicKey = rest
			if err := verify(t, again, a.Assert(t, c), c, party); !errors.Is(err, passkey.ErrKey) {
				t.Errorf("%s, %s: got %v, want ErrKey", name, what, err)
			}
		}
	}
}

func TestWeakKeysAreRefused(t *testing.T) {
	a, c := testkit.NewRSAAuthenticator(1024)(t, site, origin), challenge(t)
	if _, err := passkey.Register(a.Register(t, c), c, party); !errors.Is(err, passkey.ErrKey) {
		t.Errorf("a key of 1024 bits: got %v", err)
	}
}
