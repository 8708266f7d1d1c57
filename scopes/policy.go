package scopes

import (
	"regexp"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const maxSPIFFEID = 2048 // bytes, SPIFFE-ID section 2.3

// The entity types that policies use.
const (
	typeSandbox     cedar.EntityType = "Sandbox"
	typePath        cedar.EntityType = "Path"
	typeTrustDomain cedar.EntityType = "TrustDomain"
	typeAction      cedar.EntityType = "Action"
	typeResource    cedar.EntityType = "Resource"
)

var idSyntax = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,99}$`)

// policy is one Cedar policy. Decisions name it by its @id.
type policy struct {
	id    string
	cedar *cedar.Policy
	file  string
	line  int
	text  string // as written
}

type policies []policy

// readPolicies parses one file. Cedar stops at the first mistake in the file.
func readPolicies(f File, problems *Problems) policies {
	parsed, err := cedar.NewPolicyListFromBytes(f.Name, f.Data)
	if err != nil {
		problems.add(f.Name, cedarLine(err), "not a Cedar policy: %s", cedarMessage(err))
		return nil
	}
	var out policies
	for _, p := range parsed {
		at := p.Position().Line
		id, ok := p.Annotations()["id"]
		switch {
		case !ok:
			problems.add(f.Name, at, `policy has no @id; put @id("a-name-for-it") before it`)
		case !idSyntax.MatchString(string(id)):
			problems.add(f.Name, at, "policy @id %q must be lower-case letters, digits and dashes, at most 100", string(id))
		default:
			text := policyText(string(f.Data[p.Position().Offset:]))
			out = append(out, policy{id: string(id), cedar: p, file: f.Name, line: at, text: text})
		}
	}
	return out
}

// sort orders the policies by id and reports duplicate ids.
func (ps policies) sort(problems *Problems) {
	slices.SortStableFunc(ps, func(a, b policy) int { return strings.Compare(a.id, b.id) })
	first := 0
	for i := 1; i < len(ps); i++ {
		if ps[i].id != ps[first].id {
			first = i
			continue
		}
		problems.add(ps[i].file, ps[i].line, "policy @id %q is used twice; the first is at %s:%d", ps[i].id, ps[first].file, ps[first].line)
	}
}

// checkPolicies checks every policy against the schema of the scopes.
func (c *Catalogue) checkPolicies(problems *Problems) {
	schema := newSchema(c)
	c.schema = schema.text
	for _, p := range c.policies {
		before := len(*problems)
		for _, uid := range p.literals() {
			if why := c.refuseLiteral(uid, schema); why != "" {
				problems.add(p.file, p.line, "policy %s: %s", p.id, why)
			}
		}
		for _, uid := range p.equated() {
			if _, scope := c.scopes[string(uid.ID)]; uid.Type == typeAction && schema.actions[string(uid.ID)] && !scope {
				problems.add(p.file, p.line, "policy %s: %s is a group, which no action equals; write `action in` instead of ==", p.id, uid)
			}
		}
		// The validator would report the same mistake again, without the advice.
		if len(*problems) > before || c.idle(p) {
			continue
		}
		for _, why := range schema.validate(p) {
			problems.add(p.file, p.line, "policy %s: %s", p.id, why)
		}
	}
}

// idle reports whether p is about an authority that no scope has at present. Such a rule ("nobody gets permission
// scopes") is written before the scopes exist. It cannot match any request yet, and is validated as soon as it can.
func (c *Catalogue) idle(p policy) bool {
	group, ok := p.actionGroup()
	return ok && isAuthorityGroup(group) && !slices.ContainsFunc(c.names, func(name string) bool {
		return c.scopes[name].parents.Contains(group)
	})
}

// refuseLiteral returns why an entity named in a policy can never match, or "". The validator checks types and actions
// but accepts any id of the other types.
func (c *Catalogue) refuseLiteral(uid cedar.EntityUID, schema *schema) string {
	id := string(uid.ID)
	switch uid.Type {
	case typeSandbox, typePath:
		parsed, err := spiffeid.FromString(id)
		if err != nil || parsed.String() != id || parsed.Path() == "" || len(id) > maxSPIFFEID {
			return uid.String() + " is not a SPIFFE ID with a path; write it as spiffe://trust-domain/path, without a trailing slash"
		}
	case typeTrustDomain:
		parsed, err := spiffeid.TrustDomainFromString(id)
		if err != nil || parsed.Name() != id {
			return uid.String() + " is not a trust domain; write its name alone, such as acme.example"
		}
	case typeAction:
		if !schema.actions[id] {
			return uid.String() + " is neither a scope nor a group of scopes" + didYouMean(id, schema.actions)
		}
	case typeResource:
		if !slices.ContainsFunc(c.names, func(name string) bool { return c.scopes[name].shape.MatchString(id) }) {
			return uid.String() + " is a resource that no scope can produce; compare it with the resource: templates"
		}
	}
	return ""
}
