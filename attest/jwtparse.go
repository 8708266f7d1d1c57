package attest

import (
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxTokenBytes is far above the size of any real JWT-SVID and far below a size that makes parsing a denial of service.
const maxTokenBytes = 8 << 10

// tokenHeader has the only members that a JWT-SVID may have in its header (JWT-SVID, section 2). Any other, such as jku, jwk, x5c
// or crit, asks a verifier to trust what the token's sender says about keys.
type tokenHeader struct {
	Algorithm string         `json:"alg"`
	KeyID     string         `json:"kid"`
	Type      jsontext.Value `json:"typ"`
}

// tokenClaims are the claims that are checked. Times stay text until they are known to be integers.
type tokenClaims struct {
	Subject   string         `json:"sub"`
	Audience  jsontext.Value `json:"aud"`
	Expires   jsontext.Value `json:"exp"`
	NotBefore jsontext.Value `json:"nbf"`
	IssuedAt  jsontext.Value `json:"iat"`
}

// parseToken parses a token strictly, without verifying it.
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
	// Both calls reject duplicate members, invalid UTF-8 and trailing data, and match names case-sensitively.
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
