// Package passkey registers people's WebAuthn passkeys and verifies their signatures over a given challenge (Web
// Authentication, level 3). A library that does nothing else parses the input.
//
// The package never does I/O, reads a clock or chooses a challenge, and it does not know which person a key belongs to.
package passkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
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
	if !once || !slices.Contains(algorithms, webauthncose.COSEAlgorithmIdentifier(algorithm)) {
		return 0, ErrKey
	}
	return algorithm, nil
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Register verifies a browser's response, in the format of toJSON, to the creation of a passkey for a site and a challenge.
// It returns the key. Brevet requests no attestation of authenticators, so the attestation must be none or self
// attestation. Errors are ErrNoRelyingParty, ErrMalformed, ErrCeremony, ErrChallenge, ErrOrigin, ErrRelyingParty,
// ErrUnverified, ErrKey and ErrSignature.
func Register(answer, challenge []byte, rp RelyingParty) (Key, error) {
	if len(answer) > MaxAnswer {
		return Key{}, ErrMalformed
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(answer)
	if err != nil {
		return Key{}, fmt.Errorf("%w: parsing a registration", ErrMalformed) // the cause may quote the response
	}
	object := parsed.Response.AttestationObject
	if err := rp.check(protocol.CreateCeremony, challenge, parsed.Response.CollectedClientData, object.AuthData); err != nil {
		return Key{}, err
	}
	// The attestation must be none, or self attestation without a certificate chain.
	_, chain := object.AttStatement["x5c"]
	switch format := protocol.AttestationFormat(object.Format); {
	case format == protocol.AttestationFormatNone, format == protocol.AttestationFormatPacked && !chain:
	default:
		return Key{}, fmt.Errorf("%w: it has an attestation that was not requested", ErrMalformed)
	}
	algorithm, err := sound(object.AuthData.AttData.CredentialPublicKey)
	if err != nil {
		return Key{}, err
	}
	_, err = parsed.Verify(encode(challenge), rp.ID, rp.Origins, nil, nil, protocol.TopOriginExplicitVerificationMode, false, true, true,
		nil, []protocol.CredentialParameter{{
			Type: protocol.PublicKeyCredentialType, Algorithm: webauthncose.COSEAlgorithmIdentifier(algorithm),
		}}, protocol.AttestationPolicy{}, protocol.SignaturePolicy{})
	if err != nil {
		return Key{}, fmt.Errorf("%w: verifying a registration", ErrSignature)
	}
	key := Key{
		Credential: object.AuthData.AttData.CredentialID, PublicKey: object.AuthData.AttData.CredentialPublicKey,
		Algorithm: algorithm, SignCount: object.AuthData.Counter,
	}
	for _, t := range []protocol.AuthenticatorTransport{
		protocol.USB, protocol.NFC, protocol.BLE, protocol.SmartCard, protocol.Hybrid, protocol.Internal,
	} {
		if slices.Contains(parsed.Response.Transports, t) {
			key.Transports = append(key.Transports, string(t))
		}
	}
	return key, nil
}

// Assertion is a parsed passkey signature that is not verified yet.
type Assertion struct {
	parsed *protocol.ParsedCredentialAssertionData
}

// kept is the recorded form of an assertion. It has only what is needed to verify the signature, and nothing else from the
// browser.
type kept struct {
	ID       string `json:"id"`
	RawID    string `json:"rawId"`
	Type     string `json:"type"`
	Response struct {
		AuthenticatorData string `json:"authenticatorData"`
		ClientDataJSON    string `json:"clientDataJSON"`
		Signature         string `json:"signature"`
	} `json:"response"`
}

// ParseAssertion parses a browser's response in the format of toJSON, or the result of String. It returns ErrMalformed if
// it is not an assertion.
func ParseAssertion(answer []byte) (Assertion, error) {
	if len(answer) > MaxAnswer {
		return Assertion{}, ErrMalformed
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(answer)
	if err != nil {
		return Assertion{}, fmt.Errorf("%w: parsing an assertion", ErrMalformed) // the cause may quote the response
	}
	return Assertion{parsed}, nil
}

// Credential returns the id of the key that claims to have made the assertion.
func (a Assertion) Credential() []byte { return a.parsed.RawID }

// Origin returns the origin of the page that made the assertion. The browser reports it, and the signature covers it.
func (a Assertion) Origin() string { return a.parsed.Response.CollectedClientData.Origin }

// String returns the canonical JSON form. It omits extension results, which may be secret.
func (a Assertion) String() string {
	from := a.parsed.Raw.AssertionResponse
	k := kept{ID: encode(a.parsed.RawID), RawID: encode(a.parsed.RawID), Type: string(protocol.PublicKeyCredentialType)}
	k.Response.AuthenticatorData = encode(from.AuthenticatorData)
	k.Response.ClientDataJSON = encode(from.ClientDataJSON)
	k.Response.Signature = encode(from.Signature)
	text, err := json.Marshal(k)
	if err != nil {
		return "" // strings only, so it cannot fail
	}
	return string(text)
}

// Verify returns nil if the key signed the challenge on a page of the site after its user was verified. Errors are
// ErrNoRelyingParty, ErrOtherKey, ErrCeremony, ErrChallenge, ErrOrigin, ErrRelyingParty, ErrUnverified, ErrCounter, ErrKey
// and ErrSignature.
func Verify(key Key, a Assertion, challenge []byte, rp RelyingParty) error {
	response := a.parsed.Response
	if len(key.Credential) == 0 || !bytes.Equal(key.Credential, a.parsed.RawID) {
		return ErrOtherKey
	}
	if err := rp.check(protocol.AssertCeremony, challenge, response.CollectedClientData, response.AuthenticatorData); err != nil {
		return err
	}
	if _, err := sound(key.PublicKey); err != nil {
		return err
	}
	err := a.parsed.Verify(encode(challenge), rp.ID, "", rp.Origins, nil, nil, protocol.TopOriginExplicitVerificationMode, false, true, true,
		key.PublicKey, protocol.SignaturePolicy{})
	if err != nil {
		return fmt.Errorf("%w: verifying an assertion", ErrSignature)
	}
	if count := response.AuthenticatorData.Counter; (count != 0 || key.SignCount != 0) && count <= key.SignCount {
		return ErrCounter
	}
	return nil
}

// The reasons to refuse a registration or an assertion. Each error of this package wraps exactly one of these, and none
// quotes the input.
var (
	// ErrNoRelyingParty means that no relying party is configured.
	ErrNoRelyingParty = errors.New("passkey: no relying party is configured")
	// ErrMalformed means that the input is not the response of a browser.
	ErrMalformed = errors.New("passkey: not the response of an authenticator")
	// ErrCeremony means that a registration was presented as an assertion, or the reverse.
	ErrCeremony = errors.New("passkey: response to another ceremony")
	// ErrChallenge means that another challenge was signed.
	ErrChallenge = errors.New("passkey: response to another challenge")
	// ErrOrigin means that it was made on a page of another origin, or in a cross-origin frame.
	ErrOrigin = errors.New("passkey: made on a page of another origin")
	// ErrRelyingParty means that it was made for another relying party.
	ErrRelyingParty = errors.New("passkey: made for another relying party")
	// ErrUnverified means that the authenticator does not confirm that the person was present and was verified as its user.
	ErrUnverified = errors.New("passkey: user was not verified")
	// ErrKey means that the key has an algorithm that is not accepted, or is not sound.
	ErrKey = errors.New("passkey: the key is not supported or not valid")
	// ErrOtherKey means that another key made the assertion.
	ErrOtherKey = errors.New("passkey: made with another key")
	// ErrCounter means that the authenticator's counter did not increase, as with a copy of the authenticator.
	ErrCounter = errors.New("passkey: the signature counter did not increase")
	// ErrSignature means that the signature does not verify.
	ErrSignature = errors.New("passkey: the signature is invalid")
)
