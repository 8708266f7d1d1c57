package scopes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// comparison is a part of a condition that compares a field of the context with values.
type comparison struct {
	field  string // params.<name> or binding
	values []cedar.Value
	like   *ast.NodeTypeLike // instead of values
}

// compares returns the comparison that a node makes, if it makes one.
func compares(n ast.IsNode) (comparison, bool) {
	var sides ast.BinaryNode
	switch n := n.(type) {
	case ast.NodeTypeEquals:
		sides = n.BinaryNode
	case ast.NodeTypeNotEquals:
		sides = n.BinaryNode
	case ast.NodeTypeContains:
		set, _ := n.Left.(ast.NodeTypeSet)
		var values []cedar.Value
		for _, element := range set.Elements {
			if v, ok := element.(ast.NodeValue); ok {
				values = append(values, v.Value)
			}
		}
		field, ok := contextField(n.Right)
		return comparison{field: field, values: values}, ok
	case ast.NodeTypeLike:
		field, ok := contextField(n.Arg)
		return comparison{field: field, like: &n}, ok
	default:
		return comparison{}, false
	}
	value, isValue := sides.Right.(ast.NodeValue)
	if !isValue {
		value, isValue = sides.Left.(ast.NodeValue)
		sides.Left = sides.Right
	}
	field, ok := contextField(sides.Left)
	return comparison{field: field, values: []cedar.Value{value.Value}}, ok && isValue
}

// contextField returns "ttl" for context.ttl and "params.x" for context.params.x.
func contextField(n ast.IsNode) (string, bool) {
	outer, ok := n.(ast.NodeTypeAccess)
	if !ok {
		return "", false
	}
	if isContext(outer.Arg) {
		return string(outer.Value), outer.Value != "params"
	}
	inner, ok := outer.Arg.(ast.NodeTypeAccess)
	return "params." + string(outer.Value), ok && isContext(inner.Arg) && inner.Value == "params"
}

// bindings stands for context.binding, whose values no scope declares.
var bindings = Param{Type: ParamEnum, Values: []string{BindNone, BindMTLS, BindDPoP}}

// checkValues reports each value with which the policy compares a field, although no request for a scope of the policy can have it.
// Such a comparison is a typing error. In a forbid, it would let everything pass.
func (c *Catalogue) checkValues(p policy, problems *Problems) {
	for n := range p.expressions() {
		compared, ok := compares(n)
		if !ok {
			continue
		}
		if compared.like != nil {
			if why := c.refusedBy(p, compared.field, func(param Param, _ *definition) string { return param.unlike(compared.like) }); why != "" {
				problems.add(p.File, p.Line, "policy %s: no request has %s like this: %s", p.name(), compared.field, why)
			}
			continue
		}
		for _, value := range compared.values {
			var plain any
			shown := value.String()
			switch v := value.(type) {
			case cedar.String:
				plain, shown = string(v), strconv.Quote(string(v))
			case cedar.Long:
				plain = int64(v)
			default:
				continue // both booleans occur
			}
			name := strings.TrimPrefix(compared.field, "params.")
			why := c.refusedBy(p, compared.field, func(param Param, def *definition) string {
				_, why := param.canonical(plain, def.patterns[name])
				return why
			})
			if why != "" {
				problems.add(p.File, p.lineOf(shown), "policy %s: no request has %s %s: it %s", p.name(), compared.field, shown, why)
			}
		}
	}
}

// refusedBy returns why every scope of the policy's head that has a field refuses something about it, or "" if one does not.
func (c *Catalogue) refusedBy(p policy, field string, refuse func(Param, *definition) string) (why string) {
	if field == "binding" {
		return refuse(bindings, &definition{})
	}
	name, isParam := strings.CutPrefix(field, "params.")
	for _, scope := range c.names {
		def := c.scopes[scope]
		param, has := def.scope.Params[name]
		if !isParam || !has || !p.admits(def) {
			continue
		}
		refused := refuse(param, def)
		if refused == "" {
			return ""
		}
		if why == "" {
			why = fmt.Sprintf("%s in %s", refused, scope)
		}
	}
	return why
}

// unlike returns why no value of an enum matches a pattern. It does not compare the pattern of a string with another one.
func (p Param) unlike(like *ast.NodeTypeLike) string {
	matches := func(value string) bool { return like.Value.Match(cedar.String(value)) }
	if p.Type != ParamEnum || slices.ContainsFunc(p.Values, matches) {
		return ""
	}
	return "it must be one of " + strings.Join(p.Values, ", ")
}

// lineOf returns the line in which a policy first has a text, or its first line.
func (p policy) lineOf(text string) int {
	before, _, found := strings.Cut(p.Text, text)
	if !found {
		return p.Line
	}
	return p.Line + strings.Count(before, "\n")
}

// name is the id of the policy, for messages.
func (p policy) name() string {
	if p.ID == "" {
		return "without @id"
	}
	return p.ID
}
