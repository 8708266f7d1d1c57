package people

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Person is a person with a verified ID token. Only a [Verifier] makes one; the zero value is nobody.
type Person struct {
	issuer  string
	subject string
	name    string
	handle  string
	groups  []string
	issued  time.Time
	expires time.Time
}

// ID returns the permanent ID of the person: the issuer, a #, and the subject. Neither part contains another #.
func (p Person) ID() string {
	if p.IsZero() {
		return ""
	}
	return p.issuer + "#" + p.subject
}

// ParseID returns the ID of a person of the issuer. text is that ID or the subject alone.
func ParseID(issuer, text string) (string, error) {
	subject := strings.TrimPrefix(text, issuer+"#")
	if err := checkSubject(subject); err != nil {
		return "", fmt.Errorf("%q is not a person of %s: %w", text, issuer, err)
	}
	return issuer + "#" + subject, nil
}

// Issuer returns the provider that issued the token.
func (p Person) Issuer() string { return p.issuer }

// Subject returns the provider's identifier of the person: printable ASCII without spaces, at most 255 bytes.
func (p Person) Subject() string { return p.subject }

// Name returns the display name, at most 200 bytes long and without control characters. It is untrusted text: people may be
// able to choose their name, so show it as inert text and never compare it.
func (p Person) Name() string { return p.name }

// Handle returns the owner claim, or "" if the token has none. [Owners.Owns] compares it.
func (p Person) Handle() string { return p.handle }

// Groups returns the person's groups at the time of the login, sorted and without duplicates. The caller may modify the
// slice.
func (p Person) Groups() []string { return slices.Clone(p.groups) }

// Issued returns the time at which the provider issued the token.
func (p Person) Issued() time.Time { return p.issued }

// Expires returns the expiry time of the token. Because of the leeway it can be a few seconds in the past.
func (p Person) Expires() time.Time { return p.expires }

// IsZero reports whether p is the zero value.
func (p Person) IsZero() bool { return p.subject == "" }
