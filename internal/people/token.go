package people

import (
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxTokenBytes leaves room for a few hundred groups. Servers do not accept larger headers.
const maxTokenBytes = 16 << 10

// header contains the checked members of a token's header. Other members, such as a thumbprint, are harmless: nothing uses
// them.
type header struct {
	Algorithm string         `json:"alg"`
	KeyID     string         `json:"kid"`
	Type      jsontext.Value `json:"typ"`
	// These ask the verifier to trust the sender's claims about keys, or to read the token in another way.
	Critical    jsontext.Value `json:"crit"`
	KeyURL      jsontext.Value `json:"jku"`
	Key         jsontext.Value `json:"jwk"`
	CertURL     jsontext.Value `json:"x5u"`
	Certs       jsontext.Value `json:"x5c"`
	Unencoded   jsontext.Value `json:"b64"`
	Compression jsontext.Value `json:"zip"`
	Encryption  jsontext.Value `json:"enc"`
	Content     jsontext.Value `json:"cty"`
}

// claims contains the claims that Brevet reads. Times stay text until they are known to be integers.
type claims struct {
	Issuer     string         `json:"iss"`
	Subject    string         `json:"sub"`
	Audience   jsontext.Value `json:"aud"`
	Authorized jsontext.Value `json:"azp"`
	Expires    jsontext.Value `json:"exp"`
	NotBefore  jsontext.Value `json:"nbf"`
	IssuedAt   jsontext.Value `json:"iat"`
	Events     jsontext.Value `json:"events"`
	Type       jsontext.Value `json:"typ"`
	Nonce      string         `json:"nonce"`
	Name       string         `json:"name"`
	Username   string         `json:"preferred_username"`
	Email      string         `json:"email"`
	// all contains every claim by name, for the claims whose names are configured.
	all map[string]jsontext.Value
}

// parse parses a token strictly. It verifies nothing.
func parse(raw string) (header, claims, error) {
	var h header
	var c claims
	parts, err := jws.Split(raw, maxTokenBytes)
	switch {
	case errors.Is(err, jws.ErrTooLarge):
		return h, c, fmt.Errorf("%w: %w", errTooLarge, err)
	case err != nil:
		return h, c, fmt.Errorf("%w: %w", errMalformed, err)
	}
	// All calls refuse duplicate members, invalid UTF-8 and trailing data. They match names case-sensitively.
	if json.Unmarshal(parts[0], &h) != nil {
		return h, c, fmt.Errorf("%w: header", errMalformed)
	}
	if json.Unmarshal(parts[1], &c) != nil || json.Unmarshal(parts[1], &c.all) != nil {
		return h, c, fmt.Errorf("%w: claims", errMalformed)
	}
	return h, c, nil
}

// check refuses headers that an ID token must not have.
func (h header) check() error {
	for _, member := range []jsontext.Value{
		h.Critical, h.KeyURL, h.Key, h.CertURL, h.Certs, h.Unencoded, h.Compression, h.Encryption, h.Content,
	} {
		if member != nil {
			return errHeader
		}
	}
	if typ := string(h.Type); typ != "" && typ != `"JWT"` {
		return errType // at+jwt, logout+jwt and any other type
	}
	if keyFits[h.Algorithm] == nil {
		return errAlgorithm
	}
	if h.KeyID == "" {
		return fmt.Errorf("%w: no key id", errHeader)
	}
	return nil
}

// checkType refuses tokens that some providers sign with the same key, under the same header and for the same audience:
// logout tokens (Back-Channel Logout, section 2.4), and Keycloak's access and refresh tokens, which differ from its ID
// tokens only in a claim.
func (c claims) checkType() error {
	if c.Events != nil {
		return errType
	}
	if typ := string(c.Type); typ != "" && typ != `"ID"` {
		return errType
	}
	return nil
}

// audienceIs reports whether aud is want, as a string or as an array of one string, and azp is absent or equal to want.
func (c claims) audienceIs(want string) bool {
	if audience, ok := jws.SoleAudience(c.Audience); !ok || audience != want {
		return false
	}
	if c.Authorized == nil {
		return true
	}
	var party string
	return c.Authorized.Kind() == '"' && json.Unmarshal(c.Authorized, &party) == nil && party == want
}
