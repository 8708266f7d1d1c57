package people

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Person is somebody whose ID token was verified. Only a [Verifier] makes one; the zero value is nobody.
type Person struct {
	issuer  string
	subject string
	name    string
	handle  string
	groups  []string
	issued  time.Time
	expires time.Time
}

// ID names the person for good: the issuer, a #, and the subject. Neither part holds another #.
func (p Person) ID() string {
	if p.IsZero() {
		return ""
	}
	return p.issuer + "#" + p.subject
}

// ParseID returns the ID of a person of the issuer who is named by it, or by the subject alone.
func ParseID(issuer, text string) (string, error) {
	subject := strings.TrimPrefix(text, issuer+"#")
	if err := checkSubject(subject); err != nil {
		return "", fmt.Errorf("%q names nobody of %s: %w", text, issuer, err)
	}
	return issuer + "#" + subject, nil
}

// Issuer is the provider that vouches for the person.
func (p Person) Issuer() string { return p.issuer }

// Subject is what the provider calls the person: printable ASCII without spaces, at most 255 bytes.
func (p Person) Subject() string { return p.subject }

// Name is for display, at most 200 bytes long and without control characters. It is untrusted text: people may be able
// to choose theirs, so that it must be shown as inert and never be compared.
func (p Person) Name() string { return p.name }

// Handle is the owner claim, and "" if the token has none. [Owners.Owns] compares it.
func (p Person) Handle() string { return p.handle }

// Groups are the person's groups at the time of the login, sorted and each once. The slice is the caller's own.
func (p Person) Groups() []string { return slices.Clone(p.groups) }

// Issued is when the provider made the token.
func (p Person) Issued() time.Time { return p.issued }

// Expires is the end of the token's life. It can lie in the past by the leeway that clocks are given.
func (p Person) Expires() time.Time { return p.expires }

// IsZero reports whether this is nobody.
func (p Person) IsZero() bool { return p.subject == "" }
