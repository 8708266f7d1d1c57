package people

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/text/unicode/norm"
)

// Role is a set of permissions of a person.
type Role string

// The roles of people.
const (
	RoleAdmin    Role = "admin"    // changes scopes and policy, revokes and quarantines
	RoleApprover Role = "approver" // votes on pending requests
	RoleAuditor  Role = "auditor"  // reads the record
)

// Everywhere is a prefix of every SPIFFE ID. [Rules.Within] returns it for a role without limits. A rule cannot name it.
const Everywhere = "spiffe://"

// Rule grants a role to a group.
type Rule struct {
	Role  Role
	Group string
	// Within limits the role to SPIFFE IDs at or below these, such as spiffe://acme.example or spiffe://acme.example/research.
	// If it is empty, the role has no limit.
	Within []string
}

// Rules maps groups to roles, and to where they hold them. The zero value grants nothing.
type Rules struct{ rules []Rule }

// NewRules checks the rules. Several rules for one group and role add up.
func NewRules(rules []Rule) (Rules, error) {
	rules = slices.Clone(rules)
	for i, rule := range rules {
		if err := rule.check(); err != nil {
			return Rules{}, fmt.Errorf("rule %d: %w", i+1, err)
		}
		rules[i].Within = slices.Clone(rule.Within)
	}
	return Rules{rules}, nil
}

func (r Rule) check() error {
	switch {
	case r.Role != RoleAdmin && r.Role != RoleApprover && r.Role != RoleAuditor:
		return fmt.Errorf("role %q is not one of %s, %s and %s", r.Role, RoleAdmin, RoleApprover, RoleAuditor)
	case r.Group == "" || len(r.Group) > maxGroupBytes:
		return fmt.Errorf("a group must have 1 to %d bytes", maxGroupBytes)
	}
	for _, prefix := range r.Within {
		if _, err := spiffeid.FromString(prefix); err != nil {
			return fmt.Errorf("within %q: %w", prefix, err)
		}
	}
	return nil
}

// May reports whether a person with these groups holds the role for id, which is a SPIFFE ID or a trust domain. It returns
// false if id is neither.
func (r Rules) May(groups []string, role Role, id string) bool {
	if _, err := spiffeid.FromString(id); err != nil {
		return false
	}
	return slices.ContainsFunc(r.Within(groups, role), func(prefix string) bool { return below(id, prefix) })
}

// Within returns the prefixes under which a person with these groups holds the role. The prefixes end at a segment and are
// sorted, and none is below another. The result is nil if the role is held nowhere, and [Everywhere] alone if it has no
// limit.
func (r Rules) Within(groups []string, role Role) []string {
	var all []string
	for _, rule := range r.rules {
		if rule.Role != role || !slices.Contains(groups, rule.Group) {
			continue
		}
		if len(rule.Within) == 0 {
			return []string{Everywhere}
		}
		all = append(all, rule.Within...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(slices.Clone(all), func(prefix string) bool {
		return slices.ContainsFunc(all, func(wider string) bool { return wider != prefix && below(prefix, wider) })
	})
}

// below reports whether id is prefix or below it. A prefix ends at a segment boundary: /agents/a does not contain
// /agents/ab.
func below(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && (rest == "" || rest[0] == '/' || prefix == Everywhere)
}

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
		case segment == "{owner}":
			owners++
		case segment == "*":
		case segment == "**" && i == len(t.segments)-1:
		case segment == "**":
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
	if last := len(want) - 1; want[last] == "**" {
		if len(segments) < len(want) {
			return "", false
		}
		want, segments = want[:last], segments[:last]
	}
	if len(segments) != len(want) {
		return "", false
	}
	for i, segment := range want {
		if segment != "{owner}" && segment != "*" && segment != segments[i] {
			return "", false
		}
	}
	return segments[slices.Index(want, "{owner}")], true
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
