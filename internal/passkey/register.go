package passkey

import (
	"fmt"
	"slices"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/protocol/webauthncose"
)

// transports are the transport hints that Register keeps.
var transports = []protocol.AuthenticatorTransport{
	protocol.USB, protocol.NFC, protocol.BLE, protocol.SmartCard, protocol.Hybrid, protocol.Internal,
}

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
	if !unattested(object) {
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
	for _, t := range transports {
		if slices.Contains(parsed.Response.Transports, t) {
			key.Transports = append(key.Transports, string(t))
		}
	}
	return key, nil
}

// unattested reports whether the attestation is none or self attestation, without a certificate chain.
func unattested(object protocol.AttestationObject) bool {
	_, chain := object.AttStatement["x5c"]
	format := protocol.AttestationFormat(object.Format)
	return format == protocol.AttestationFormatNone || format == protocol.AttestationFormatPacked && !chain
}
