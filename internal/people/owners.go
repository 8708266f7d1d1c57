package people

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/text/unicode/norm"
)

// The placeholder segments of a template.
const (
	ownerSegment = "{owner}"
	anySegment   = "*"
	restSegments = "**"
)

// Owners derives the owner of a sandbox from its SPIFFE ID. The zero value knows no owners.
type Owners struct{ templates []template }

type template struct {
	domain   spiffeid.TrustDomain
	segments []string
}

// NewOwners parses templates such as spiffe://acme.example/users/{owner}/**. An ID may match several templates. {owner}
// occurs exactly once in a template and matches the segment that names the owner. * matches any one segment, and ** at the
// end matches one or more segments.
func NewOwners(templates []string) (Owners, error) {
	var parsed []template
	for _, text := range templates {
		t, err := parseTemplate(text)
		if err != nil {
			return Owners{}, fmt.Errorf("owner template %q: %w", text, err)
		}
		parsed = append(parsed, t)
	}
	return Owners{parsed}, nil
}

func parseTemplate(text string) (template, error) {
	rest, ok := strings.CutPrefix(text, "spiffe://")
	if !ok {
		return template{}, errors.New("it does not begin with spiffe://")
	}
	name, path, _ := strings.Cut(rest, "/")
	domain, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return template{}, err
	}
	t := template{domain: domain, segments: strings.Split(path, "/")}
	owners := 0
	for i, segment := range t.segments {
		switch {
		case segment == ownerSegment:
			owners++
		case segment == anySegment:
		case segment == restSegments && i == len(t.segments)-1:
		case segment == restSegments:
			return template{}, errors.New("** is allowed only at the end")
		default:
			if err := spiffeid.ValidatePathSegment(segment); err != nil {
				return template{}, fmt.Errorf("segment %d: %w", i+1, err)
			}
		}
	}
	if owners != 1 {
		return template{}, errors.New("{owner} must appear exactly once")
	}
	return t, nil
}

// Of returns the owner of a sandbox, as written in the SPIFFE ID, from the first template that matches.
func (o Owners) Of(id string) (owner string, ok bool) {
	for owner := range o.of(id) {
		return owner, true
	}
	return "", false
}

// Owns reports whether a person with this handle may be the owner of a sandbox, according to any template that matches. It
// keeps people from approving their own requests, so in doubt it returns true. Handles are equal if they differ only in
// case or in Unicode compatibility. An address such as alice@acme.example also equals alice. A person without a handle, or
// with a handle that no SPIFFE ID can contain, may be any owner. An ID that matches no template has no owner.
func (o Owners) Owns(handle, id string) bool {
	key, comparable := fold(handle)
	for owner := range o.of(id) {
		if folded, ok := fold(owner); !comparable || !ok || folded == key {
			return true
		}
	}
	return false
}

func (o Owners) of(id string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		parsed, err := spiffeid.FromString(id)
		if err != nil || parsed.Path() == "" {
			return
		}
		segments := strings.Split(parsed.Path()[1:], "/")
		for _, t := range o.templates {
			if t.domain != parsed.TrustDomain() {
				continue
			}
			if owner, ok := t.match(segments); ok && !yield(owner) {
				return
			}
		}
	}
}

func (t template) match(segments []string) (owner string, ok bool) {
	want := t.segments
	if last := len(want) - 1; want[last] == restSegments {
		if len(segments) < len(want) {
			return "", false
		}
		want, segments = want[:last], segments[:last]
	}
	if len(segments) != len(want) {
		return "", false
	}
	for i, segment := range want {
		if segment != ownerSegment && segment != anySegment && segment != segments[i] {
			return "", false
		}
	}
	return segments[slices.Index(want, ownerSegment)], true
}

// fold normalizes a handle for comparison. It reports false if the handle cannot be compared: segments of SPIFFE IDs are
// ASCII, so a handle that is not a valid segment after NFKC cannot equal one.
func fold(handle string) (string, bool) {
	name, _, _ := strings.Cut(norm.NFKC.String(handle), "@")
	if spiffeid.ValidatePathSegment(name) != nil {
		return "", false
	}
	return strings.ToLower(name), true
}
