package attest

import (
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxTokenBytes is far above any real JWT-SVID and far below what would make parsing one an attack.
const maxTokenBytes = 8 << 10

// tokenHeader is all that a JWT-SVID may have in its header (JWT-SVID, section 2). Anything else, such as jku, jwk,
// x5c or crit, asks a verifier to trust what the token's sender says about keys.
type tokenHeader struct {
	Algorithm string         `json:"alg"`
	KeyID     string         `json:"kid"`
	Type      jsontext.Value `json:"typ"`
}

// tokenClaims are the claims that are looked at. Times are kept as text until it is known that they are integers.
type tokenClaims struct {
	Subject   string         `json:"sub"`
	Audience  jsontext.Value `json:"aud"`
	Expires   jsontext.Value `json:"exp"`
	NotBefore jsontext.Value `json:"nbf"`
	IssuedAt  jsontext.Value `json:"iat"`
}

// parseToken reads a token strictly, without verifying anything.
func parseToken(token string) (tokenHeader, tokenClaims, error) {
	var header tokenHeader
	var claims tokenClaims
	parts, err := jws.Split(token, maxTokenBytes)
	switch {
	case errors.Is(err, jws.ErrTooLarge):
		return header, claims, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		return header, claims, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	// Both calls refuse duplicate members, invalid UTF-8 and trailing data; names are matched with their case.
	if err := json.Unmarshal(parts[0], &header, json.RejectUnknownMembers(true)); err != nil {
		return header, claims, fmt.Errorf("%w: header", ErrMalformed)
	}
	if err := json.Unmarshal(parts[1], &claims); err != nil {
		return header, claims, fmt.Errorf("%w: claims", ErrMalformed)
	}
	if header.KeyID == "" {
		return header, claims, fmt.Errorf("%w: no key id", ErrMalformed)
	}
	if typ := string(header.Type); typ != "" && typ != `"JWT"` && typ != `"JOSE"` {
		return header, claims, fmt.Errorf("%w: its type is not that of a JWT-SVID", ErrMalformed)
	}
	return header, claims, nil
}
