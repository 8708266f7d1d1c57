package scopes

import (
	"errors"
	"regexp"
	"slices"
	"strconv"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// literals returns every entity that the policy names.
func (p policy) literals() []cedar.EntityUID {
	tree := p.tree()
	var out []cedar.EntityUID
	for _, head := range []ast.IsScopeNode{tree.Principal, tree.Action, tree.Resource} {
		out = append(out, headLiterals(head)...)
	}
	return append(out, p.conditionLiterals()...)
}

// conditionLiterals returns every entity that its conditions name.
func (p policy) conditionLiterals() []cedar.EntityUID {
	tree := p.tree()
	var out []cedar.EntityUID
	for _, condition := range tree.Conditions {
		ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
			if value, ok := n.(ast.NodeValue); ok {
				if uid, ok := value.Value.(cedar.EntityUID); ok {
					out = append(out, uid)
				}
			}
			return true
		})
	}
	return out
}

func headLiterals(head ast.IsScopeNode) []cedar.EntityUID {
	switch h := head.(type) {
	case ast.ScopeTypeEq:
		return []cedar.EntityUID{h.Entity}
	case ast.ScopeTypeIn:
		return []cedar.EntityUID{h.Entity}
	case ast.ScopeTypeIsIn:
		return []cedar.EntityUID{h.Entity}
	case ast.ScopeTypeInSet:
		return h.Entities
	default:
		return nil
	}
}

// equated returns every entity that the policy compares with ==, != or `action == X`. Such a comparison does not consider
// groups.
func (p policy) equated() []cedar.EntityUID {
	tree := p.tree()
	var out []cedar.EntityUID
	if head, ok := tree.Action.(ast.ScopeTypeEq); ok {
		out = append(out, head.Entity)
	}
	add := func(sides ast.BinaryNode) {
		for _, side := range []ast.IsNode{sides.Left, sides.Right} {
			if value, ok := side.(ast.NodeValue); ok {
				if uid, ok := value.Value.(cedar.EntityUID); ok {
					out = append(out, uid)
				}
			}
		}
	}
	for _, condition := range tree.Conditions {
		ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
			switch n := n.(type) {
			case ast.NodeTypeEquals:
				add(n.BinaryNode)
			case ast.NodeTypeNotEquals:
				add(n.BinaryNode)
			}
			return true
		})
	}
	return out
}

// actionGroup returns X if the policy's head is `action in X`.
func (p policy) actionGroup() (cedar.EntityUID, bool) {
	in, ok := p.tree().Action.(ast.ScopeTypeIn)
	return in.Entity, ok
}

// thresholds collects the numbers that policies compare context.ttl and parameters with, by "ttl" or parameter name,
// ascending. A denied request may pass on the other side of a threshold.
func (ps policies) thresholds() map[string][]int64 {
	out := map[string][]int64{}
	for _, p := range ps {
		for _, condition := range p.tree().Conditions {
			ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
				if name, at, ok := threshold(n); ok {
					out[name] = append(out[name], at)
				}
				return true
			})
		}
	}
	for name := range out {
		slices.Sort(out[name])
		out[name] = slices.Compact(out[name])
	}
	return out
}

func threshold(n ast.IsNode) (string, int64, bool) {
	left, right, ok := comparison(n)
	if !ok {
		return "", 0, false
	}
	value, isValue := right.(ast.NodeValue)
	if !isValue {
		left, right = right, left
		value, isValue = right.(ast.NodeValue)
	}
	at, isLong := value.Value.(cedar.Long)
	name, isContext := contextName(left)
	return name, int64(at), isValue && isLong && isContext
}

func comparison(n ast.IsNode) (left, right ast.IsNode, ok bool) {
	switch c := n.(type) {
	case ast.NodeTypeLessThan:
		return c.Left, c.Right, true
	case ast.NodeTypeLessThanOrEqual:
		return c.Left, c.Right, true
	case ast.NodeTypeGreaterThan:
		return c.Left, c.Right, true
	case ast.NodeTypeGreaterThanOrEqual:
		return c.Left, c.Right, true
	case ast.NodeTypeEquals:
		return c.Left, c.Right, true
	default:
		return nil, nil, false
	}
}

// contextName returns "ttl" for context.ttl and "params.x" for context.params.x.
func contextName(n ast.IsNode) (string, bool) {
	outer, ok := n.(ast.NodeTypeAccess)
	if !ok {
		return "", false
	}
	if isContext(outer.Arg) {
		return string(outer.Value), outer.Value == "ttl"
	}
	inner, ok := outer.Arg.(ast.NodeTypeAccess)
	return "params." + string(outer.Value), ok && isContext(inner.Arg) && inner.Value == "params"
}

func isContext(n ast.IsNode) bool {
	v, ok := n.(ast.NodeTypeVariable)
	return ok && v.Name == "context"
}

// cedarPosition finds the position in Cedar's error message, because its errors have no field for it.
var cedarPosition = regexp.MustCompile(`^(?:parser error: )?(?:parse error at )?<input>:(\d+):\d+:? ?(?:"": )?`)

func cedarLine(err error) int {
	if m := cedarPosition.FindStringSubmatch(cedarText(err)); m != nil {
		line, _ := strconv.Atoi(m[1]) // the expression matches only digits; 0 means unknown
		return line
	}
	return 0
}

func cedarMessage(err error) string { return cedarPosition.ReplaceAllString(cedarText(err), "") }

func cedarText(err error) string {
	if inner := errors.Unwrap(err); inner != nil {
		return inner.Error()
	}
	return err.Error()
}
