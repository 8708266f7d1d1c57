package attest

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxTokenBytes is far above any real JWT-SVID and far below what would make parsing one an attack.
const maxTokenBytes = 8 << 10

// maxUnixTime is the end of the year 9999. It keeps times within what RFC 3339 can print.
const maxUnixTime = 253402300799

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

// parseToken reads a token in compact serialisation, strictly and without verifying anything. It exists because two
// parsers that read one token differently are a way around both: what it lets through has only one reading.
func parseToken(token string) (tokenHeader, tokenClaims, error) {
	var header tokenHeader
	var claims tokenClaims
	if len(token) > maxTokenBytes {
		return header, claims, fmt.Errorf("%w: a token of %d bytes", ErrTooLarge, len(token))
	}
	parts, err := tokenParts(token)
	if err != nil {
		return header, claims, err
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

// tokenParts splits and decodes. Go's decoder skips line breaks, and its lax mode ignores stray bits at the end, so
// that many texts would be one token: strict mode and the alphabet are both needed.
func tokenParts(token string) ([3][]byte, error) {
	var decoded [3][]byte
	if strings.Count(token, ".") != len(decoded)-1 {
		return decoded, fmt.Errorf("%w: not three parts", ErrMalformed)
	}
	for i, part := range strings.Split(token, ".") {
		if part == "" || strings.ContainsAny(part, "\r\n") {
			return decoded, fmt.Errorf("%w: part %d", ErrMalformed, i)
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil {
			return decoded, fmt.Errorf("%w: part %d", ErrMalformed, i)
		}
		decoded[i] = b
	}
	return decoded, nil
}

// audienceIs reports whether aud is want, as a string or as an array of one string.
func (c tokenClaims) audienceIs(want string) bool {
	var list []string
	if c.Audience.Kind() == '"' {
		list = make([]string, 1)
		if json.Unmarshal(c.Audience, &list[0]) != nil {
			return false
		}
	} else if c.Audience.Kind() != '[' || json.Unmarshal(c.Audience, &list) != nil {
		return false
	}
	return len(list) == 1 && list[0] == want
}

// seconds reads a NumericDate (RFC 7519, section 2). It takes whole seconds only: a fraction, an exponent or a string
// is read differently by different libraries.
func seconds(v jsontext.Value) (time.Time, error) {
	text := string(v)
	if len(text) == 0 || text[0] < '0' || text[0] > '9' {
		return time.Time{}, ErrMalformed
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > maxUnixTime {
		return time.Time{}, ErrMalformed
	}
	return time.Unix(n, 0).UTC(), nil
}
