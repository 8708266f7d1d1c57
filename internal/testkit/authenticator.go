package testkit

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math/big"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/go-webauthn/webauthn/protocol/webauthncbor"
)

// These are the flags in an authenticator's data: the user was present, the user was verified, and a public key is attached.
const (
	UserPresent  = 0x01
	UserVerified = 0x04
	attestedKey  = 0x40
)

// Authenticator is a WebAuthn authenticator with one passkey, together with the browser that uses it. Tests can change
// the fields to change its answers.
type Authenticator struct {
	ID           []byte
	RPID, Origin string
	Flags        byte
	Count        uint32 // the signature counter; zero means that the authenticator does not count
	Create, Get  string // the types of the client data for registration and for assertion
	Framed       bool   // the page is in a frame of another page

	signer crypto.Signer
	key    []byte // the public key as COSE_Key
}

// NewAuthenticator creates an authenticator with a new P-256 key.
func NewAuthenticator(t testing.TB, rpID, origin string) *Authenticator {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return newAuthenticator(t, rpID, origin, private, map[int]any{1: 2, 3: -7, -1: 1, -2: point[1:33], -3: point[33:]})
}

// NewEd25519Authenticator creates an authenticator with a new Ed25519 key.
func NewEd25519Authenticator(t testing.TB, rpID, origin string) *Authenticator {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newAuthenticator(t, rpID, origin, private, map[int]any{1: 1, 3: -8, -1: 6, -2: []byte(public)})
}

// NewRSAAuthenticator returns a function that creates authenticators with new RSA keys of the given size in bits.
func NewRSAAuthenticator(bits int) func(t testing.TB, rpID, origin string) *Authenticator {
	return func(t testing.TB, rpID, origin string) *Authenticator {
		t.Helper()
		private, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		return newAuthenticator(t, rpID, origin, private, map[int]any{
			1: 3, 3: -257, -1: private.N.Bytes(), -2: big.NewInt(int64(private.E)).Bytes(),
		})
	}
}

func newAuthenticator(t testing.TB, rpID, origin string, signer crypto.Signer, key map[int]any) *Authenticator {
	t.Helper()
	a := &Authenticator{
		ID: make([]byte, 16), RPID: rpID, Origin: origin, Flags: UserPresent | UserVerified,
		Create: "webauthn.create", Get: "webauthn.get", signer: signer, key: inCBOR(t, key),
	}
	if _, err := rand.Read(a.ID); err != nil {
		t.Fatal(err)
	}
	return a
}

// Register returns the response to the creation of the key, in the form of a browser's toJSON.
func (a *Authenticator) Register(t testing.TB, challenge []byte) []byte {
	t.Helper()
	data := a.says(a.Flags | attestedKey)
	data = append(data, make([]byte, 16)...) // a zero AAGUID does not reveal the authenticator's maker
	data = binary.BigEndian.AppendUint16(data, uint16(len(a.ID)))
	data = append(append(data, a.ID...), a.key...)
	object := inCBOR(t, map[string]any{"fmt": "none", "attStmt": map[string]any{}, "authData": data})
	return a.answer(t, map[string]any{
		"clientDataJSON": base64URL(a.client(t, a.Create, challenge)), "attestationObject": base64URL(object),
		"transports": []string{"internal", "hybrid", "telepathy"},
	})
}

// Assert signs a challenge and returns the response in the form of a browser's toJSON.
func (a *Authenticator) Assert(t testing.TB, challenge []byte) []byte {
	t.Helper()
	if a.Count > 0 {
		a.Count++
	}
	client, data := a.client(t, a.Get, challenge), a.says(a.Flags)
	digest := sha256.Sum256(client)
	signed := append(append([]byte{}, data...), digest[:]...)
	hash := crypto.Hash(0)
	if _, whole := a.signer.(ed25519.PrivateKey); !whole {
		sum := sha256.Sum256(signed)
		signed, hash = sum[:], crypto.SHA256
	}
	signature, err := a.signer.Sign(rand.Reader, signed, hash)
	if err != nil {
		t.Fatal(err)
	}
	return a.answer(t, map[string]any{
		"clientDataJSON": base64URL(client), "authenticatorData": base64URL(data), "signature": base64URL(signature),
	})
}

// says returns the authenticator's data: the hash of the site's id, the flags, and the counter.
func (a *Authenticator) says(flags byte) []byte {
	site := sha256.Sum256([]byte(a.RPID))
	return binary.BigEndian.AppendUint32(append(site[:], flags), a.Count)
}

// client returns the browser's client data. The authenticator signs its digest.
func (a *Authenticator) client(t testing.TB, kind string, challenge []byte) []byte {
	t.Helper()
	return inJSON(t, map[string]any{"type": kind, "challenge": base64URL(challenge), "origin": a.Origin, "crossOrigin": a.Framed})
}

func (a *Authenticator) answer(t testing.TB, response map[string]any) []byte {
	t.Helper()
	return inJSON(t, map[string]any{
		"id": base64URL(a.ID), "rawId": base64URL(a.ID), "type": "public-key", "response": response,
		"authenticatorAttachment": "platform", "clientExtensionResults": map[string]any{},
	})
}

func inCBOR(t testing.TB, value any) []byte {
	t.Helper()
	encoded, err := webauthncbor.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func inJSON(t testing.TB, value any) []byte {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func base64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Site is the relying party of a Stack: its host, and the only origin on it.
var Site = passkey.RelyingParty{ID: "brevet.test", Origins: []string{Audience}}

// Passkey registers a new authenticator for a person.
func (s *Stack) Passkey(t testing.TB, username string) *Authenticator {
	t.Helper()
	return s.PasskeyOf(t, username, NewAuthenticator(t, Site.ID, Site.Origins[0]))
}

// PasskeyOf registers the given authenticator for a person.
func (s *Stack) PasskeyOf(t testing.TB, username string, a *Authenticator) *Authenticator {
	t.Helper()
	challenge := make([]byte, 32)
	if _, err := rand.Read(challenge); err != nil {
		t.Fatal(err)
	}
	r := broker.Registration{Challenge: challenge, Response: a.Register(t, challenge), Name: "key of " + username}
	if first := s.vouches[username]; first != nil {
		r.Assertion = first.Assert(t, challenge)
	}
	if _, err := s.Broker.AddPasskey(t.Context(), s.Somebody(t, username), r); err != nil {
		t.Fatalf("registering a passkey of %s: %v", username, err)
	}
	if s.vouches == nil {
		s.vouches = map[string]*Authenticator{}
	}
	s.vouches[username] = a
	return a
}

// Somebody returns a logged-in person whom the stack's provider knows.
func (s *Stack) Somebody(t testing.TB, username string) people.Person {
	t.Helper()
	who, err := s.verifier(t).Identify(t.Context(), s.IDToken(t, username))
	if err != nil {
		t.Fatalf("recognising %s: %v", username, err)
	}
	return who
}
