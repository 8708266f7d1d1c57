package scopes

import (
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	cedarast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Policy is one Cedar policy as written.
type Policy struct {
	ID     string
	Effect string // EffectPermit or EffectForbid
	File   string
	Line   int    // where it begins, including annotations
	Text   string // from its first annotation to its semicolon
}

// The effects of a policy.
const (
	EffectPermit = "permit"
	EffectForbid = "forbid"
)

// Policy returns the policy with that @id.
func (c *Catalogue) Policy(id string) (Policy, bool) {
	i, ok := slices.BinarySearchFunc(c.policies, id, func(p policy, id string) int { return strings.Compare(p.id, id) })
	if !ok {
		return Policy{}, false
	}
	return c.policies[i].source(), true
}

// PoliciesAbout returns the policies whose head may match requests for a scope, sorted by id. It ignores their
// conditions.
func (c *Catalogue) PoliciesAbout(scope string) []Policy {
	def, ok := c.scopes[scope]
	if !ok {
		return nil
	}
	var about []Policy
	for _, p := range c.policies {
		if o := (outlook{def: def}); p.admits(def) && o.resource(p.tree().Resource).yes {
			about = append(about, p.source())
		}
	}
	return about
}

func (p policy) source() Policy {
	return Policy{ID: p.id, Effect: p.effect(), File: p.file, Line: p.line, Text: p.text}
}

func (p policy) effect() string {
	if p.cedar.Effect() == cedar.Permit {
		return EffectPermit
	}
	return EffectForbid
}

// meaning returns the same text for two policies that differ only in layout, comments and annotations.
func (p policy) meaning() string {
	bare := *(*ast.Policy)(p.cedar.AST())
	bare.Annotations, bare.Position = nil, ast.Position{}
	data, err := cedar.NewPolicyFromAST((*cedarast.Policy)(&bare)).MarshalJSON()
	if err != nil {
		return p.text // a policy that cannot be compared counts as different
	}
	return string(data)
}

// policyText returns the first policy in text: up to the first semicolon outside strings and comments.
func policyText(text string) string {
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == ';':
			return text[:i+1]
		case text[i] == '"':
			i += stringLength(text[i:]) - 1
		case strings.HasPrefix(text[i:], "//"):
			i += endAfter(text[i:], "\n") - 1
		case strings.HasPrefix(text[i:], "/*"):
			i += endAfter(text[i:], "*/") - 1
		}
	}
	return text
}

// stringLength returns the length of the string literal at the start of text, including quotes.
func stringLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

func endAfter(text, end string) int {
	before, _, found := strings.Cut(text[1:], end)
	if !found {
		return len(text)
	}
	return 1 + len(before) + len(end)
}

// admits reports whether the head of the policy matches a scope. Conditions can only narrow that.
func (p policy) admits(d *definition) bool {
	return heads(p.tree().Action, cedar.Entity{UID: d.action, Parents: d.parents}).yes
}

// permittable reports whether any policy could permit the scope to any sandbox.
func (ps policies) permittable(d *definition) bool {
	return slices.ContainsFunc(ps, func(p policy) bool { return p.effect() == EffectPermit && p.admits(d) })
}
