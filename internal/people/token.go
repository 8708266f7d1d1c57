package people

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

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
	LoggedIn   jsontext.Value `json:"auth_time"`
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

const (
	// maxTokenBytes leaves room for a few hundred groups. Servers do not accept larger headers.
	maxTokenBytes   = 16 << 10
	maxSubjectBytes = 255
	maxNameBytes    = 200
	maxHandleBytes  = 255
	maxGroups       = 500
	maxGroupBytes   = 255
)

// read checks the claims against the rules for an ID token for one of the audiences, and returns the person that they
// describe and the audience. The caller must still verify the signature.
func (v *Verifier) read(c claims, audiences []string, now time.Time) (p Person, audience string, err error) {
	if c.Issuer != v.cfg.Issuer {
		return Person{}, "", errIssuer
	}
	at := slices.IndexFunc(audiences, c.audienceIs)
	if at < 0 {
		return Person{}, "", errAudience
	}
	// Some providers sign other tokens with the same key, under the same header and for the same audience: logout tokens
	// (Back-Channel Logout, section 2.4), and Keycloak's access and refresh tokens, which differ only in a claim.
	if typ := string(c.Type); c.Events != nil || typ != "" && typ != `"ID"` {
		return Person{}, "", errType
	}
	if err := checkSubject(c.Subject); err != nil {
		return Person{}, "", err
	}
	p = Person{issuer: c.Issuer, subject: c.Subject, name: displayName(c)}
	if p.issued, p.expires, err = c.times(now); err != nil {
		return Person{}, "", err
	}
	if p.loggedIn, err = c.loggedIn(now); err != nil {
		return Person{}, "", err
	}
	if p.groups, err = c.groups(v.cfg.GroupsClaim); err != nil {
		return Person{}, "", err
	}
	if p.handle, err = c.text(v.cfg.OwnerClaim); err != nil {
		return Person{}, "", err
	}
	return p, audiences[at], nil
}

// times returns when the token was issued and when it expires. Each check allows for the leeway between clocks.
func (c claims) times(now time.Time) (issued, expires time.Time, err error) {
	if expires, err = jws.Seconds(c.Expires); err != nil {
		return issued, expires, fmt.Errorf("%w: exp", errMalformed)
	}
	if issued, err = jws.Seconds(c.IssuedAt); err != nil {
		return issued, expires, fmt.Errorf("%w: iat", errMalformed)
	}
	notBefore := issued
	if c.NotBefore != nil {
		if notBefore, err = jws.Seconds(c.NotBefore); err != nil {
			return issued, expires, fmt.Errorf("%w: nbf", errMalformed)
		}
	}
	switch {
	case expires.Before(now.Add(-leeway)):
		err = errExpired
	case issued.After(now.Add(leeway)) || notBefore.After(now.Add(leeway)):
		err = errNotYetValid
	case expires.Before(issued):
		err = fmt.Errorf("%w: exp before iat", errMalformed)
	case expires.Sub(issued) > maxLife:
		err = fmt.Errorf("%w: %s", errLifetime, expires.Sub(issued))
	}
	return issued, expires, err
}

// loggedIn returns when the person proved to the provider who they are, or zero if the token does not say.
func (c claims) loggedIn(now time.Time) (time.Time, error) {
	if c.LoggedIn == nil {
		return time.Time{}, nil
	}
	at, err := jws.Seconds(c.LoggedIn)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("%w: auth_time", errMalformed)
	case at.After(now.Add(leeway)):
		return time.Time{}, errNotYetValid
	}
	return at, nil
}

// checkSubject refuses subjects that could make two IDs ambiguous or control a terminal.
func checkSubject(sub string) error {
	if sub == "" || len(sub) > maxSubjectBytes {
		return fmt.Errorf("%w: %d bytes long", errSubject, len(sub))
	}
	for i := range len(sub) {
		if sub[i] <= ' ' || sub[i] > '~' || sub[i] == '#' {
			return fmt.Errorf("%w: byte %d", errSubject, i)
		}
	}
	return nil
}

// displayName returns the first usable name, truncated at a character boundary. Nothing depends on it, so control
// characters are replaced and not refused.
func displayName(c claims) string {
	visible := func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}
	for _, name := range []string{c.Name, c.Username, c.Email, c.Subject} {
		if name = strings.TrimSpace(strings.Map(visible, name)); name != "" {
			return truncate(name, maxNameBytes)
		}
	}
	return ""
}

// hasControl reports whether text contains a control character: PostgreSQL cannot store NUL in text, and others control a
// terminal.
func hasControl(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }

func truncate(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// groups returns the person's groups. A token without the claim means no groups. Some providers also omit the claim if
// there are too many groups and refer to another address; Brevet never fetches from an address in a token.
func (c claims) groups(name string) ([]string, error) {
	value, ok := c.all[name]
	if !ok {
		return nil, nil
	}
	var groups []string
	if value.Kind() != '[' || json.Unmarshal(value, &groups) != nil {
		return nil, fmt.Errorf("%w: the groups are not an array of strings", errClaims)
	}
	if len(groups) > maxGroups {
		return nil, fmt.Errorf("%w: %d groups", errClaims, len(groups))
	}
	for _, group := range groups {
		if group == "" || len(group) > maxGroupBytes {
			return nil, fmt.Errorf("%w: a group of %d bytes", errClaims, len(group))
		}
		if hasControl(group) {
			return nil, fmt.Errorf("%w: a group with a control character", errClaims)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

// text returns an optional string claim.
func (c claims) text(name string) (string, error) {
	value, ok := c.all[name]
	if !ok {
		return "", nil
	}
	var text string
	if value.Kind() != '"' || json.Unmarshal(value, &text) != nil || len(text) > maxHandleBytes {
		return "", fmt.Errorf("%w: the owner claim is not a string of at most %d bytes", errClaims, maxHandleBytes)
	}
	if hasControl(text) {
		return "", fmt.Errorf("%w: the owner claim has a control character", errClaims)
	}
	return text, nil
}
