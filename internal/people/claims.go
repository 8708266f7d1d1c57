package people

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/go-json-experiment/json"
)

const (
	maxSubjectBytes = 255
	maxNameBytes    = 200
	maxHandleBytes  = 255
	maxGroups       = 500
	maxGroupBytes   = 255
)

// read checks the claims against the rules for an ID token for one of the audiences, and returns the person that they
// describe and the audience. The caller must still verify the signature.
func (v *Verifier) read(c claims, audiences []string) (p Person, audience string, err error) {
	if c.Issuer != v.cfg.Issuer {
		return Person{}, "", errIssuer
	}
	at := slices.IndexFunc(audiences, c.audienceIs)
	if at < 0 {
		return Person{}, "", errAudience
	}
	if err := c.checkType(); err != nil {
		return Person{}, "", err
	}
	if err := checkSubject(c.Subject); err != nil {
		return Person{}, "", err
	}
	p = Person{issuer: c.Issuer, subject: c.Subject, name: displayName(c)}
	if p.issued, p.expires, err = v.times(c); err != nil {
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
func (v *Verifier) times(c claims) (issued, expires time.Time, err error) {
	now := v.cfg.Now()
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
	for _, name := range []string{c.Name, c.Username, c.Email, c.Subject} {
		if name = strings.TrimSpace(strings.Map(visible, name)); name != "" {
			return truncate(name, maxNameBytes)
		}
	}
	return ""
}

func visible(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
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
