package passkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"slices"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/protocol/webauthncbor"
	"github.com/go-webauthn/webauthn/protocol/webauthncose"
)

// MaxAnswer bounds what is read of a browser's answer, in bytes.
const MaxAnswer = 16 << 10

const (
	maxPublicKey  = 2 << 10
	minRSAModulus = 256
)

// algorithms are the COSE algorithms of keys that are accepted, the one that is preferred first.
var algorithms = []webauthncose.COSEAlgorithmIdentifier{
	webauthncose.AlgES256, webauthncose.AlgEdDSA, webauthncose.AlgRS256,
}

// Algorithms returns the numbers of the COSE algorithms that Register accepts, the preferred one first: ES256, EdDSA, RS256.
func Algorithms() []int64 {
	numbers := make([]int64, len(algorithms))
	for i, a := range algorithms {
		numbers[i] = int64(a)
	}
	return numbers
}

// RelyingParty is the site that passkeys are for. The zero value is none, for which nothing can be registered or signed.
type RelyingParty struct {
	// ID is a domain: the host of the origins, or one above it.
	ID string
	// Origins are the pages that may ask, such as "https://brevet.acme.example", compared byte for byte.
	Origins []string
}

// Configured tells whether there is one.
func (rp RelyingParty) Configured() bool { return rp.ID != "" && len(rp.Origins) > 0 }

// Key is a passkey's public half, as it was registered.
type Key struct {
	// Credential is the id by which the authenticator knows it.
	Credential []byte
	// PublicKey is a COSE_Key (RFC 9052).
	PublicKey []byte
	// Algorithm is its COSE algorithm, such as -7 for ES256.
	Algorithm int64
	// SignCount is what the authenticator had counted when it was registered; zero for one that does not count.
	SignCount uint32
	// Transports are how a browser may reach the authenticator, as the browser has said: a hint, and proof of nothing.
	Transports []string
}

// Digest is the SHA-256 of the public key.
func (k Key) Digest() [32]byte { return sha256.Sum256(k.PublicKey) }

// check holds what both kinds of answer say to what was asked. The library looks at most of it again, and less exactly.
func (rp RelyingParty) check(ceremony protocol.CeremonyType, challenge []byte, client protocol.CollectedClientData, data protocol.AuthenticatorData) error {
	site := sha256.Sum256([]byte(rp.ID))
	switch {
	case !rp.Configured():
		return ErrNoRelyingParty
	case client.Type != ceremony:
		return ErrCeremony
	case len(challenge) == 0 || client.Challenge != encode(challenge):
		return ErrChallenge
	case !slices.Contains(rp.Origins, client.Origin), client.CrossOrigin, client.TopOrigin != "":
		return ErrOrigin
	case !bytes.Equal(data.RPIDHash, site[:]):
		return ErrRelyingParty
	case !data.Flags.UserPresent(), !data.Flags.UserVerified():
		return ErrUnverified
	}
	return nil
}

// sound refuses public keys of other algorithms than those above, and weak ones.
func sound(publicKey []byte) (algorithm int64, err error) {
	if len(publicKey) > maxPublicKey {
		return 0, ErrKey
	}
	parsed, err := webauthncose.ParsePublicKey(publicKey)
	if err != nil {
		return 0, ErrKey
	}
	// A key is written in one way, by which it is known again: in the canonical CBOR of CTAP 2, with nothing optional and no
	// zeros before its numbers.
	again, err := webauthncbor.Marshal(parsed)
	if err != nil || !bytes.Equal(again, publicKey) {
		return 0, ErrKey
	}
	once := false
	switch key := parsed.(type) {
	case webauthncose.EC2PublicKeyData:
		algorithm, once = key.Algorithm, key.Curve != 0
	case webauthncose.OKPPublicKeyData:
		algorithm, once = key.Algorithm, key.Curve != 0
	case webauthncose.RSAPublicKeyData:
		algorithm = key.Algorithm
		once = len(key.Modulus) >= minRSAModulus && key.Modulus[0] != 0 && len(key.Exponent) > 0 && key.Exponent[0] != 0
	}
	if !once {
		return 0, ErrKey
	}
	if !slices.Contains(algorithms, webauthncose.COSEAlgorithmIdentifier(algorithm)) {
		return 0, ErrKey
	}
	return algorithm, nil
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
