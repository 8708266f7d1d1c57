package people

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
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
	var checked []Rule
	for i, rule := range rules {
		if err := rule.check(); err != nil {
			return Rules{}, fmt.Errorf("rule %d: %w", i+1, err)
		}
		rule.Within = slices.Clone(rule.Within)
		checked = append(checked, rule)
	}
	return Rules{checked}, nil
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
