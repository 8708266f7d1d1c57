package passkey

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/go-webauthn/webauthn/protocol"
)

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
