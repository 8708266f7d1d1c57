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

// MaxAnswer is the largest size of a browser's response, in bytes.
const MaxAnswer = 16 << 10

const (
	maxPublicKey  = 2 << 10
	minRSAModulus = 256
)

// algorithms are the accepted COSE algorithms, in order of preference.
var algorithms = []webauthncose.COSEAlgorithmIdentifier{
	webauthncose.AlgES256, webauthncose.AlgEdDSA, webauthncose.AlgRS256,
}

// Algorithms returns the numbers of the COSE algorithms that Register accepts, in order of preference: ES256, EdDSA, RS256.
func Algorithms() []int64 {
	numbers := make([]int64, len(algorithms))
	for i, a := range algorithms {
		numbers[i] = int64(a)
	}
	return numbers
}

// RelyingParty is the site that passkeys are for. With the zero value, nothing can be registered or verified.
type RelyingParty struct {
	// ID is a domain: the host of the origins, or a parent domain.
	ID string
	// Origins are the origins of the pages that may use passkeys, such as "https://brevet.acme.example". They are compared
	// byte for byte.
	Origins []string
}

// Configured reports whether the relying party has an ID and an origin.
func (rp RelyingParty) Configured() bool { return rp.ID != "" && len(rp.Origins) > 0 }

// Key is the public key of a passkey, as registered.
type Key struct {
	// Credential is the authenticator's id of the key.
	Credential []byte
	// PublicKey is a COSE_Key (RFC 9052).
	PublicKey []byte
	// Algorithm is its COSE algorithm, such as -7 for ES256.
	Algorithm int64
	// SignCount is the authenticator's counter at registration, or zero if it does not count.
	SignCount uint32
	// Transports are the browser's hints on how to reach the authenticator. They prove nothing.
	Transports []string
}

// Digest returns the SHA-256 of the public key.
func (k Key) Digest() [32]byte { return sha256.Sum256(k.PublicKey) }

// check compares a response with what was requested. The library repeats most of these checks, but less exactly.
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

// sound returns the algorithm of a public key. It refuses weak keys and algorithms that are not accepted.
func sound(publicKey []byte) (algorithm int64, err error) {
	if len(publicKey) > maxPublicKey {
		return 0, ErrKey
	}
	parsed, err := webauthncose.ParsePublicKey(publicKey)
	if err != nil {
		return 0, ErrKey
	}
	// Accept only one encoding of each key, so that a key can be recognized again: the canonical CBOR of CTAP 2, with no
	// optional members and no leading zeros in numbers.
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
