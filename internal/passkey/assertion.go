package passkey

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/go-webauthn/webauthn/protocol"
)

// Assertion is what a passkey has signed, which still has to be verified.
type Assertion struct {
	parsed *protocol.ParsedCredentialAssertionData
}

// kept is an assertion as it is recorded: what its signature is verified by, and nothing else that the browser has added.
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

// ParseAssertion takes apart a browser's answer, as its toJSON gives it, or what String has made of one. It is ErrMalformed
// when it is none.
func ParseAssertion(answer []byte) (Assertion, error) {
	if len(answer) > MaxAnswer {
		return Assertion{}, ErrMalformed
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(answer)
	if err != nil {
		return Assertion{}, fmt.Errorf("%w: parsing an assertion", ErrMalformed) // the cause may quote it
	}
	return Assertion{parsed}, nil
}

// Credential is the id of the key that is said to have made it.
func (a Assertion) Credential() []byte { return a.parsed.RawID }

// Origin is the page that it was made on, as the browser has said, and the signature covers.
func (a Assertion) Origin() string { return a.parsed.Response.CollectedClientData.Origin }

// String is its only form as JSON: what extensions have answered, which may be secret, is not in it.
func (a Assertion) String() string {
	from := a.parsed.Raw.AssertionResponse
	k := kept{ID: encode(a.parsed.RawID), RawID: encode(a.parsed.RawID), Type: string(protocol.PublicKeyCredentialType)}
	k.Response.AuthenticatorData = encode(from.AuthenticatorData)
	k.Response.ClientDataJSON = encode(from.ClientDataJSON)
	k.Response.Signature = encode(from.Signature)
	text, err := json.Marshal(k)
	if err != nil {
		return "" // strings only: it cannot be
	}
	return string(text)
}

// Verify is nil when a key has signed a challenge, on a page of the site and after its user was verified. Errors are
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
