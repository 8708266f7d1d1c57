package scopes

import (
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	cedarast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// maxMisses bounds how many near misses a decision names, and maxMissTries how many permits it tries to find them.
const (
	maxMisses    = 3
	maxMissTries = 64
)

// NearMiss is a permit whose head matches a denied request, but whose condition does not hold.
//
// A sandbox may learn Policy and Fields: such a permit is about this sandbox, and the fields are those of its own request. It may not
// learn Failed, because a condition can name repositories, people and limits of others. Only people who have the catalogue see that.
type NearMiss struct {
	Policy string   // the @id
	Fields []string // what the part of the condition that does not hold depends on, such as "params.repo" and "ttl"; sorted
	Failed string   // that part, in Cedar
}

// nearMisses returns the permits that nearly permitted a request that no policy permits, sorted by id.
func (c *Catalogue) nearMisses(q question, approved bool) []NearMiss {
	q.context["approved"] = cedar.Boolean(approved)
	env := eval.Env{
		Entities: q, Principal: q.principal.UID, Action: q.action.UID, Resource: q.resource, Context: cedar.NewRecord(q.context),
	}
	var out []NearMiss
	tries := 0
	for _, i := range q.about.places {
		p := c.policies[i]
		tree := p.tree()
		if p.Effect != EffectPermit || !heads(tree.Principal, q.principal).and(heads(tree.Action, q.action)).yes || !namesResource(tree.Resource, q.resource) {
			continue
		}
		if tries++; tries > maxMissTries || len(out) == maxMisses {
			break
		}
		if failed, ok := failedPart(tree.Conditions, env); ok {
			out = append(out, NearMiss{Policy: p.ID, Fields: fieldsOf(failed.Body), Failed: cedarText(failed)})
		}
	}
	return out
}

// namesResource reports whether a head matches a resource, which has no groups.
func namesResource(head ast.IsScopeNode, resource cedar.EntityUID) bool {
	return heads(head, cedar.Entity{UID: resource}).yes
}

// failedPart returns the first part of a policy's conditions that does not hold: one side of && in a when, or of || in an unless.
func failedPart(conditions []ast.ConditionType, env eval.Env) (ast.ConditionType, bool) {
	for _, condition := range conditions {
		wanted := condition.Condition == ast.ConditionWhen
		for _, part := range parts(condition.Body, wanted) {
			value, err := eval.Eval(part, env)
			if holds, isBool := value.(cedar.Boolean); err != nil || isBool && bool(holds) != wanted {
				return ast.ConditionType{Condition: condition.Condition, Body: part}, true
			}
		}
	}
	return ast.ConditionType{}, false
}

// parts returns the sides of && or ||, in the order in which Cedar evaluates them.
func parts(n ast.IsNode, and bool) []ast.IsNode {
	switch n := n.(type) {
	case ast.NodeTypeAnd:
		if and {
			return slices.Concat(parts(n.Left, and), parts(n.Right, and))
		}
	case ast.NodeTypeOr:
		if !and {
			return slices.Concat(parts(n.Left, and), parts(n.Right, and))
		}
	}
	return []ast.IsNode{n}
}

// fieldsOf returns what an expression depends on.
func fieldsOf(body ast.IsNode) []string {
	var out []string
	ast.Inspect(ast.NewNode(body), func(n ast.IsNode) bool {
		if field, ok := contextField(n); ok {
			out = append(out, field)
		}
		switch n := n.(type) {
		case ast.NodeTypeHas:
			if isContext(n.Arg) {
				out = append(out, string(n.Value))
			}
		case ast.NodeTypeVariable:
			if n.Name != "context" {
				out = append(out, string(n.Name))
			}
		}
		return true
	})
	slices.Sort(out)
	return slices.Compact(out)
}

// cedarText returns a condition as people write it.
func cedarText(condition ast.ConditionType) string {
	bare := ast.Policy{
		Effect: ast.EffectPermit, Principal: ast.ScopeTypeAll{}, Action: ast.ScopeTypeAll{}, Resource: ast.ScopeTypeAll{},
		Conditions: []ast.ConditionType{condition},
	}
	text := string(cedar.NewPolicyFromAST((*cedarast.Policy)(&bare)).MarshalCedar())
	_, text, _ = strings.Cut(text, ")")
	return strings.TrimSuffix(strings.TrimSpace(text), ";")
}
