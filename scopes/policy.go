package scopes

import (
	"errors"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	cedarast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
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

// Policy is one Cedar policy as written. Decisions name it by its @id.
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

// policy is a Policy, parsed.
type policy struct {
	Policy
	cedar *cedar.Policy
}

// cedarPosition finds the position in Cedar's error message, because its errors have no field for it.
var cedarPosition = regexp.MustCompile(`^(?:parser error: )?(?:parse error at )?<input>:(\d+):\d+:? ?(?:"": )?`)

// maxSyntaxErrors is how many mistakes of one file readPolicies reports.
const maxSyntaxErrors = 20

// readPolicies parses one file. Cedar stops at the first mistake, so after one it parses the policies one by one.
func readPolicies(f File, problems *Problems) (out []policy) {
	if parsed, err := cedar.NewPolicyListFromBytes(f.Name, f.Data); err == nil {
		return identify(f.Name, string(f.Data), 1, parsed, problems)
	}
	before := len(*problems)
	for text, line := string(f.Data), 1; text != "" && len(*problems) < before+maxSyntaxErrors; {
		one := policyText(text)
		parsed, err := cedar.NewPolicyListFromBytes(f.Name, []byte(one))
		if err == nil {
			out = append(out, identify(f.Name, one, line, parsed, problems)...)
		} else if addSyntaxError(f.Name, line, err, problems); strings.Contains(err.Error(), "not terminated") {
			break // where the next policy begins is not known
		}
		line += strings.Count(one, "\n")
		text = text[len(one):]
	}
	return out
}

// addSyntaxError adds an error of Cedar's parser about text that begins in a line.
func addSyntaxError(file string, line int, err error, problems *Problems) {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	if m := cedarPosition.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.Atoi(m[1]) // the expression matches only digits
		line += n - 1
	} else {
		line = 0 // unknown
	}
	problems.add(file, line, "not a Cedar policy: %s", cedarPosition.ReplaceAllString(err.Error(), ""))
}

// identify returns the policies of a text that begins in a line of a file. One without a valid @id has none, and is a problem.
func identify(file, text string, line int, parsed cedar.PolicyList, problems *Problems) (out []policy) {
	for _, p := range parsed {
		at := line + p.Position().Line - 1
		id, ok := p.Annotations()["id"]
		switch {
		case !ok:
			problems.add(file, at, `policy has no @id; put @id("a-name-for-it") before it`)
		case !idSyntax.MatchString(string(id)):
			problems.add(file, at, "policy @id %q must be lower-case letters, digits and dashes, at most 100", string(id))
			id = ""
		}
		effect := EffectForbid
		if p.Effect() == cedar.Permit {
			effect = EffectPermit
		}
		out = append(out, policy{Policy{ID: string(id), Effect: effect, File: file, Line: at, Text: policyText(text[p.Position().Offset:])}, p})
	}
	return out
}

// policyText returns the first policy in text: up to the first semicolon outside strings and comments.
func policyText(text string) string {
	for i := 0; i < len(text); i++ {
		end := "" // of a comment
		switch {
		case text[i] == ';':
			return text[:i+1]
		case text[i] == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(text[i:], "//"):
			end = "\n"
		case strings.HasPrefix(text[i:], "/*"):
			end = "*/"
		}
		if end != "" {
			at := strings.Index(text[i+1:], end)
			if at < 0 {
				return text
			}
			i += at + len(end)
		}
	}
	return text
}

// checkPolicies checks every policy against the schema of the scopes. broken are the scopes that could not be read. With partial, not
// all scopes are known, so it does not report what may be right once they are.
func (c *Catalogue) checkPolicies(problems *Problems, broken []*definition, partial bool) {
	schema := newSchema(c)
	c.schema = schema.text
	for _, p := range c.policies {
		before := len(*problems)
		unclear := slices.ContainsFunc(broken, p.admits)
		for _, uid := range p.literals() {
			why := c.refuseLiteral(uid, schema)
			if why != "" && partial && (uid.Type == typeAction || uid.Type == typeResource) {
				unclear = true
			} else if why != "" {
				problems.add(p.File, p.Line, "policy %s: %s", p.name(), why)
			}
		}
		for _, uid := range p.equated() {
			if _, scope := c.scopes[string(uid.ID)]; uid.Type == typeAction && schema.actions[string(uid.ID)] && !scope {
				problems.add(p.File, p.Line, "policy %s: %s is a group, which no action equals; write `action in` instead of ==", p.name(), uid)
			}
		}
		// The validator would report the same mistake again, without the advice.
		if len(*problems) > before || unclear || partial && len(c.names) == 0 || c.idle(p) {
			continue
		}
		for _, why := range schema.validate(p) {
			problems.add(p.File, p.Line, "policy %s: %s", p.name(), why)
		}
		if len(*problems) == before {
			c.checkValues(p, problems)
		}
	}
}

// idle reports whether p is about an authority that no scope has at present. Such a rule ("nobody gets permission
// scopes") is written before the scopes exist. It cannot match any request yet, and is validated as soon as it can.
func (c *Catalogue) idle(p policy) bool {
	head, ok := p.tree().Action.(ast.ScopeTypeIn)
	return ok && isAuthorityGroup(head.Entity) && !slices.ContainsFunc(c.names, func(name string) bool {
		return c.scopes[name].parents.Contains(head.Entity)
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
			advice, least := "use the name of a scope, a group such as github.*, or authority:read", maxTypo+1
			for _, known := range sortedKeys(schema.actions) {
				if d := distance(id, known); d < least {
					advice, least = "did you mean "+known+"?", d
				}
			}
			return uid.String() + " is neither a scope nor a group of scopes; " + advice
		}
	case typeResource:
		if !slices.ContainsFunc(c.names, func(name string) bool { return c.scopes[name].shape.MatchString(id) }) {
			return uid.String() + " is a resource that no scope can produce; compare it with the resource: templates"
		}
	}
	return ""
}

// Policies returns the ids of all policies, sorted.
func (c *Catalogue) Policies() []string {
	out := make([]string, len(c.policies))
	for i, p := range c.policies {
		out[i] = p.ID
	}
	return out
}

// Policy returns the policy with that @id.
func (c *Catalogue) Policy(id string) (Policy, bool) {
	p, ok := c.policy(id)
	return p.Policy, ok
}

func (c *Catalogue) policy(id string) (policy, bool) {
	i, ok := slices.BinarySearchFunc(c.policies, id, func(p policy, id string) int { return strings.Compare(p.ID, id) })
	if !ok {
		return policy{}, false
	}
	return c.policies[i], true
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
		if p.admits(def) && def.resourceMatches(p.tree().Resource).yes {
			about = append(about, p.Policy)
		}
	}
	return about
}

// Permittable reports whether any policy could permit a scope to any sandbox. It ignores conditions and resources.
func (c *Catalogue) Permittable(scope string) bool {
	def, ok := c.scopes[scope]
	return ok && slices.ContainsFunc(c.policies, func(p policy) bool { return p.Effect == EffectPermit && p.admits(def) })
}

// FavoursHigher reports whether a policy may allow more for a scope in the higher of two authority classes than in the
// lower one. It takes two versions of the scope.
func (c *Catalogue) FavoursHigher(lower, higher *Scope) bool {
	low, high := &definition{}, &definition{}
	low.action, low.parents = actionOf(*lower)
	high.action, high.parents = actionOf(*higher)
	return slices.ContainsFunc(c.policies, func(p policy) bool {
		inLow, inHigh := p.admits(low), p.admits(high)
		if inLow != inHigh && inHigh == (p.Effect == EffectPermit) {
			return true
		}
		return slices.ContainsFunc(p.conditionLiterals(), func(uid cedar.EntityUID) bool {
			return isAuthorityGroup(uid) && low.parents.Contains(uid) != high.parents.Contains(uid)
		})
	})
}

// SamePolicy reports whether a policy of this catalogue and the one with the same id in another catalogue differ only in
// layout, comments and annotations.
func (c *Catalogue) SamePolicy(other *Catalogue, id string) bool {
	a, inC := c.policy(id)
	b, inOther := other.policy(id)
	return inC && inOther && a.meaning() == b.meaning()
}

func (p policy) meaning() string {
	bare := *p.tree()
	bare.Annotations, bare.Position = nil, ast.Position{}
	data, err := cedar.NewPolicyFromAST((*cedarast.Policy)(&bare)).MarshalJSON()
	if err != nil {
		return p.Text // a policy that cannot be compared counts as different
	}
	return string(data)
}

// ReadsTask reports whether the decision about a scope may depend on the task: whether any policy about the scope uses
// context other than for fields that are not the task.
func (c *Catalogue) ReadsTask(scope string) bool {
	def, ok := c.scopes[scope]
	return ok && slices.ContainsFunc(c.policies, func(p policy) bool {
		if !p.admits(def) {
			return false
		}
		used, elsewhere := 0, 0
		for n := range p.expressions() {
			if isContext(n) {
				used++
			}
			switch field := n.(type) {
			case ast.NodeTypeAccess:
				if isContext(field.Arg) && field.Value != "task" {
					elsewhere++
				}
			case ast.NodeTypeHas:
				if isContext(field.Arg) {
					elsewhere++ // the task is always set
				}
			}
		}
		return used != elsewhere
	})
}

func (p policy) tree() *ast.Policy { return (*ast.Policy)(p.cedar.AST()) }

// admits reports whether the head of the policy matches a scope. Conditions can only narrow that.
func (p policy) admits(d *definition) bool {
	return heads(p.tree().Action, cedar.Entity{UID: d.action, Parents: d.parents}).yes
}

// expressions yields every node of the policy's conditions.
func (p policy) expressions() iter.Seq[ast.IsNode] {
	return func(yield func(ast.IsNode) bool) {
		more := true
		for _, condition := range p.tree().Conditions {
			ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
				more = more && yield(n)
				return more
			})
		}
	}
}

// literals returns every entity that the policy names.
func (p policy) literals() []cedar.EntityUID {
	tree := p.tree()
	return slices.Concat(headLiterals(tree.Principal), headLiterals(tree.Action), headLiterals(tree.Resource), p.conditionLiterals())
}

// conditionLiterals returns every entity that its conditions name.
func (p policy) conditionLiterals() []cedar.EntityUID {
	var out []cedar.EntityUID
	for n := range p.expressions() {
		if uid, ok := entityIn(n); ok {
			out = append(out, uid)
		}
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

func entityIn(n ast.IsNode) (cedar.EntityUID, bool) {
	literal, _ := n.(ast.NodeValue)
	uid, ok := literal.Value.(cedar.EntityUID)
	return uid, ok
}

// equated returns every entity that the policy compares with ==, != or `action == X`. Such a comparison does not consider
// groups.
func (p policy) equated() []cedar.EntityUID {
	var out []cedar.EntityUID
	if head, ok := p.tree().Action.(ast.ScopeTypeEq); ok {
		out = append(out, head.Entity)
	}
	for n := range p.expressions() {
		var sides ast.BinaryNode
		switch n := n.(type) {
		case ast.NodeTypeEquals:
			sides = n.BinaryNode
		case ast.NodeTypeNotEquals:
			sides = n.BinaryNode
		}
		for _, side := range []ast.IsNode{sides.Left, sides.Right} {
			if uid, ok := entityIn(side); ok {
				out = append(out, uid)
			}
		}
	}
	return out
}

// findThresholds collects the numbers that policies compare context.ttl and parameters with, by "ttl" or parameter name,
// ascending. A denied request may pass on the other side of a threshold.
func findThresholds(all []policy) map[string][]int64 {
	out := map[string][]int64{}
	for _, p := range all {
		for n := range p.expressions() {
			var sides ast.BinaryNode
			switch c := n.(type) {
			case ast.NodeTypeLessThan:
				sides = c.BinaryNode
			case ast.NodeTypeLessThanOrEqual:
				sides = c.BinaryNode
			case ast.NodeTypeGreaterThan:
				sides = c.BinaryNode
			case ast.NodeTypeGreaterThanOrEqual:
				sides = c.BinaryNode
			case ast.NodeTypeEquals:
				sides = c.BinaryNode
			}
			value, isValue := sides.Right.(ast.NodeValue)
			if !isValue {
				sides.Left, sides.Right = sides.Right, sides.Left
				value, _ = sides.Right.(ast.NodeValue)
			}
			at, isLong := value.Value.(cedar.Long)
			if name, inContext := contextName(sides.Left); isLong && inContext {
				out[name] = append(out[name], int64(at))
			}
		}
	}
	for name := range out {
		slices.Sort(out[name])
		out[name] = slices.Compact(out[name])
	}
	return out
}

// contextName is contextField for the fields that findThresholds collects.
func contextName(n ast.IsNode) (string, bool) {
	field, ok := contextField(n)
	return field, ok && (field == "ttl" || strings.HasPrefix(field, "params."))
}

func isContext(n ast.IsNode) bool {
	v, ok := n.(ast.NodeTypeVariable)
	return ok && v.Name == "context"
}

// index finds the policies whose head may match a request without checking the others. It looks them up by the action or
// group that the head names, then by the principal or group. The zero EntityUID stands for a head that names none.
// Skipping the other policies changes nothing: a policy whose head does not match neither permits nor forbids, and never
// errs.
type index map[cedar.EntityUID]map[cedar.EntityUID][]int // positions in the policies

func newIndex(all []policy) index {
	namedOrAny := func(head ast.IsScopeNode) []cedar.EntityUID {
		if named := headLiterals(head); len(named) > 0 {
			return named
		}
		return []cedar.EntityUID{{}}
	}
	x := index{}
	for i, p := range all {
		for _, action := range namedOrAny(p.tree().Action) {
			if x[action] == nil {
				x[action] = map[cedar.EntityUID][]int{}
			}
			for _, principal := range namedOrAny(p.tree().Principal) {
				x[action][principal] = append(x[action][principal], i)
			}
		}
	}
	return x
}

// about returns the positions, in order, of the policies that may match a principal and an action. All groups of both
// must be their direct parents.
func (x index) about(principal, action cedar.Entity) []int {
	var places []int
	for a := range selfAndGroups(action) {
		byPrincipal := x[a]
		if len(byPrincipal) == 0 {
			continue
		}
		for p := range selfAndGroups(principal) {
			places = append(places, byPrincipal[p]...)
		}
	}
	slices.Sort(places)
	return slices.Compact(places) // a head can name two groups of one action
}

// selfAndGroups yields what a head that matches an entity may name: nothing, the entity, or one of its groups.
func selfAndGroups(e cedar.Entity) iter.Seq[cedar.EntityUID] {
	return func(yield func(cedar.EntityUID) bool) {
		if yield(cedar.EntityUID{}) && yield(e.UID) {
			e.Parents.All()(yield)
		}
	}
}

// some is the subset of the policies at these positions.
type some struct {
	policies []policy
	places   []int
}

// All yields the policies by id, in order. Cedar's own sets number policies by their position in a file, which means
// nothing in a record.
func (s some) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, i := range s.places {
			if !yield(cedar.PolicyID(s.policies[i].ID), s.policies[i].cedar) {
				return
			}
		}
	}
}
