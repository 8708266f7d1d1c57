package scopes

import (
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	cedarast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
)

// maxMisses bounds how many near misses of each kind a decision names, and maxMissTries how many permits it tries to find them.
const (
	maxMisses    = 3
	maxMissTries = 64
)

// NearMiss is a permit whose head matches a denied request, but whose condition does not hold.
//
// A sandbox may learn Policy and Fields if Told is set. Both are then the same for every request of this sandbox for the scope, so
// no series of requests finds a value in a condition. It may not learn Failed, because a condition can name repositories, people
// and limits of others. Only people who have the catalogue see Failed, and the permits that are not told.
type NearMiss struct {
	Policy string   // the @id
	Fields []string // what the whole condition depends on, such as "params.repo" and "ttl"; sorted
	Failed string   // the first part of the condition that does not hold, in Cedar
	Told   bool     // whether the sandbox may learn of the permit
}

// nearMisses returns the permits that nearly permitted a request that no policy permits, sorted by id.
func (c *Catalogue) nearMisses(q question, approved bool) []NearMiss {
	q.context["approved"] = cedar.Boolean(approved)
	env := eval.Env{
		Entities: q, Principal: q.principal.UID, Action: q.action.UID, Resource: q.resource, Context: cedar.NewRecord(q.context),
	}
	var out []NearMiss
	tries, found := map[bool]int{}, map[bool]int{}
	for _, i := range q.about.places {
		p := c.policies[i]
		tree := p.tree()
		if p.Effect != EffectPermit || !heads(tree.Principal, q.principal).and(heads(tree.Action, q.action)).yes || !namesResource(tree.Resource, q.resource) {
			continue
		}
		// What the sandbox is told must not depend on how many other permits there are for the values of its request.
		pinned := len(headLiterals(tree.Resource)) > 0
		if tries[pinned]++; tries[pinned] > maxMissTries {
			continue
		}
		told := !pinned && aboutSandbox(tree.Conditions, env)
		failed, ok := failedPart(tree.Conditions, env)
		if found[told]++; !ok || found[told] > maxMisses {
			continue
		}
		out = append(out, NearMiss{Policy: p.ID, Fields: fieldsOf(tree.Conditions), Failed: cedarText(failed), Told: told})
	}
	return out
}

// aboutSandbox reports whether each part of a permit's conditions that reads principal holds. The answer must not depend on what
// the sandbox chooses, so it is no if such a part reads anything else.
func aboutSandbox(conditions []ast.ConditionType, env eval.Env) bool {
	for _, condition := range conditions {
		wanted := condition.Condition == ast.ConditionWhen
		for _, part := range parts(condition.Body, wanted) {
			principal, others := false, false
			ast.Inspect(ast.NewNode(part), func(n ast.IsNode) bool {
				if v, ok := n.(ast.NodeTypeVariable); ok {
					principal, others = principal || v.Name == "principal", others || v.Name != "principal"
				}
				return true
			})
			if principal && (others || !holds(part, wanted, env)) {
				return false
			}
		}
	}
	return true
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
			if !holds(part, wanted, env) {
				return ast.ConditionType{Condition: condition.Condition, Body: part}, true
			}
		}
	}
	return ast.ConditionType{}, false
}

// holds reports whether a part of a condition has the value that the policy wants.
func holds(part ast.IsNode, wanted bool, env eval.Env) bool {
	value, err := eval.Eval(part, env)
	return err == nil && value == cedar.Value(cedar.Boolean(wanted))
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

// fieldsOf returns what conditions depend on.
func fieldsOf(conditions []ast.ConditionType) []string {
	var out []string
	for _, condition := range conditions {
		ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
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
	}
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
