package scopes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// PolicyPrefix is the prefix of the name of every policy in VaultPolicies.
const PolicyPrefix = "brevet-scope."

// maxTokenPolicies bounds the policies of one vault-token scope. There is one policy for each combination of the values
// in its paths.
const maxTokenPolicies = 256

// rule is a Rule, compiled.
type rule struct {
	path         template
	capabilities []string
}

// VaultPolicies returns the policies that must exist in Vault before this catalogue is used, sorted by name.
//
// Most credentials are requested with a token that never leaves the broker, so one policy per scope is enough: where a
// parameter is part of a path, the policy allows any one segment. A credential of kind vault-token is itself handed out,
// so its policies are exact: one for each combination of values.
func (c *Catalogue) VaultPolicies() []VaultPolicy {
	var out []VaultPolicy
	for _, name := range c.names {
		d := c.scopes[name]
		switch d.scope.Credential.Kind {
		case KindJWT:
		case KindVaultToken:
			for params := range d.combinations() {
				// Load has already rendered every combination.
				if p, bad := d.recipe.tokenPolicy(name, params); bad == nil {
					out = append(out, p)
				}
			}
		default:
			out = append(out, d.recipe.policy)
		}
	}
	slices.SortFunc(out, func(a, b VaultPolicy) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// newVaultPolicy writes a Vault policy. Paths and capabilities contain only plain characters, so %q escapes nothing.
func newVaultPolicy(scope string, allowed map[string][]string) VaultPolicy {
	var text strings.Builder
	for _, path := range sortedKeys(allowed) {
		quoted := make([]string, len(allowed[path]))
		for i, capability := range allowed[path] {
			quoted[i] = fmt.Sprintf("%q", capability)
		}
		fmt.Fprintf(&text, "path %q {\n  capabilities = [%s]\n}\n", path, strings.Join(quoted, ", "))
	}
	sum := sha256.Sum256([]byte(text.String()))
	return VaultPolicy{Name: PolicyPrefix + scope + "." + hex.EncodeToString(sum[:4]), Text: text.String()}
}

// wrapperPolicy allows what the token that requests the credential needs: one path.
func (d *definition) wrapperPolicy() VaultPolicy {
	may := []string{"read"}
	if c := d.scope.Credential; c.Kind == KindPKI || c.Kind == KindSSH || c.Method == MethodWrite {
		// Vault requires create if an engine can tell that nothing exists at the path yet.
		may = []string{"create", "update"}
	}
	return newVaultPolicy(d.scope.Name, map[string][]string{d.recipe.path.segments(): may})
}

// segments returns the path with + in place of each segment that contains a parameter, because Vault has no pattern for
// part of a segment.
func (t template) segments() string {
	segments := strings.Split(strings.Join(t.literals, "{}"), "/")
	for i, segment := range segments {
		if strings.Contains(segment, "{}") {
			segments[i] = "+"
		}
	}
	return strings.Join(segments, "/")
}

// tokenPolicy returns the policy of a vault-token for the given values.
func (r recipe) tokenPolicy(scope string, params map[string]any) (VaultPolicy, *InvalidAsk) {
	allowed := map[string][]string{}
	for _, rule := range r.rules {
		path, bad := rule.path.render(params)
		if bad != nil {
			return VaultPolicy{}, bad
		}
		may := append(allowed[path], rule.capabilities...)
		slices.Sort(may)
		allowed[path] = slices.Compact(may)
	}
	return newVaultPolicy(scope, allowed), nil
}

// tokenPolicy returns the name of the policy that a vault-token gets.
func (d *definition) tokenPolicy(params map[string]any) (string, *InvalidAsk) {
	p, bad := d.recipe.tokenPolicy(d.scope.Name, params)
	return p.Name, bad
}

// ruleParams returns the names of the parameters in the rules, sorted.
func (r recipe) ruleParams() []string {
	var names []string
	for _, rule := range r.rules {
		names = append(names, rule.path.names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// combinations yields every combination of values of the parameters in the rules. Load has checked that there are not too
// many.
func (d *definition) combinations() iter.Seq[map[string]any] {
	names := d.recipe.ruleParams()
	return func(yield func(map[string]any) bool) { combine(d.scope.Params, names, map[string]any{}, yield) }
}

func combine(params map[string]Param, names []string, chosen map[string]any, yield func(map[string]any) bool) bool {
	if len(names) == 0 {
		return yield(maps.Clone(chosen))
	}
	for value := range params[names[0]].all() {
		chosen[names[0]] = value
		if !combine(params, names[1:], chosen, yield) {
			return false
		}
	}
	return true
}

// all yields every value of an enum, bool or int parameter.
func (p Param) all() iter.Seq[any] {
	return func(yield func(any) bool) {
		switch p.Type {
		case ParamEnum:
			for _, value := range p.Values {
				if !yield(value) {
					return
				}
			}
		case ParamBool:
			if yield(false) {
				yield(true)
			}
		case ParamInt:
			for n := p.Min; n <= p.Max; n++ {
				if !yield(n) {
					return
				}
			}
		case ParamString:
		}
	}
}

// size returns how many values a parameter has, or 0 if they cannot be counted.
func (p Param) size() int64 {
	switch p.Type {
	case ParamEnum:
		return int64(len(p.Values))
	case ParamBool:
		return 2
	case ParamInt:
		return p.Max - p.Min + 1
	case ParamString:
		return 0
	default:
		return 0
	}
}

func (c *credentialReader) vaultToken() {
	n := c.fields["policy"]
	items := c.list(n, "credential.policy")
	if n.Kind == yaml.SequenceNode && (len(items) == 0 || len(items) > maxRules) {
		c.at(n, "credential.policy must list 1 to %d paths", maxRules)
		return
	}
	for i, item := range items {
		c.rule(item, fmt.Sprintf("credential.policy[%d]", i))
	}
}

func (c *credentialReader) rule(n *yaml.Node, what string) {
	fields := c.mapping(n, what, "path", "capabilities")
	if fields == nil {
		return
	}
	if fields["path"] == nil || fields["capabilities"] == nil {
		c.at(n, "%s needs path and capabilities, such as {path: 'secret/data/agents/{agent}', capabilities: [read]}", what)
		return
	}
	text, t := c.template(fields["path"], what+".path", &rulePlace, c.params)
	for _, name := range t.names {
		if c.params[name].Type == ParamString {
			c.at(fields["path"], "%s.path has {%s}, a string; the paths of a token may contain only enum, int and bool parameters", what, name)
		}
	}
	// agents/{agent}* would match every agent whose name starts with the same text.
	if last := text[strings.LastIndexByte(text, '/')+1:]; strings.HasSuffix(last, "*") && strings.Contains(last, "{") {
		c.at(fields["path"], "%s.path has a parameter and a * in one segment; put a / between them", what)
	}
	if slices.ContainsFunc(c.out.Policy, func(r Rule) bool { return r.Path == text }) {
		c.at(fields["path"], "%s.path is listed twice", what)
	}
	may := c.capabilities(fields["capabilities"], what+".capabilities")
	c.out.Policy = append(c.out.Policy, Rule{Path: text, Capabilities: may})
	c.recipe.rules = append(c.recipe.rules, rule{path: t, capabilities: may})
}

func (c *credentialReader) capabilities(n *yaml.Node, what string) []string {
	var out []string
	items := c.list(n, what)
	if n.Kind == yaml.SequenceNode && len(items) == 0 {
		c.at(n, "%s is empty; choose %s", what, either(capabilities))
	}
	for _, item := range items {
		text, ok := c.text(item, what)
		if !ok {
			continue
		}
		if !slices.Contains(capabilities, text) {
			c.at(item, "%s: %q is not allowed; choose %s", what, text, either(capabilities))
		}
		if slices.Contains(out, text) {
			c.at(item, "%s: %s is listed twice", what, text)
		}
		out = append(out, text)
	}
	return out
}

// policiesOf builds the Vault policies of a scope whose credential is valid.
func (r *reader) policiesOf(n *yaml.Node, d *definition) {
	switch d.scope.Credential.Kind {
	case KindJWT:
	case KindVaultToken:
		r.checkTokenPolicies(n, d)
	default:
		d.recipe.policy = d.wrapperPolicy()
	}
}

// checkTokenPolicies builds every policy of a scope once, so that none fails later.
func (r *reader) checkTokenPolicies(n *yaml.Node, d *definition) {
	count := int64(1)
	for _, name := range d.recipe.ruleParams() {
		// Divide, so that the product does not overflow.
		size := d.scope.Params[name].size()
		if size > maxTokenPolicies/count {
			r.at(n, "credential.policy: the values of its parameters have more than %d combinations; each is a policy in Vault", maxTokenPolicies)
			return
		}
		count *= max(size, 1) // 0 has been reported: a string, or no values
	}
	texts := map[string]string{}
	for params := range d.combinations() {
		p, bad := d.recipe.tokenPolicy(d.scope.Name, params)
		if bad != nil {
			r.at(n, "credential.policy: %v", bad)
			return
		}
		if other, taken := texts[p.Name]; taken && other != p.Text {
			r.at(n, "credential.policy: two of its policies have the same name %s; add or remove a path", p.Name)
			return
		}
		texts[p.Name] = p.Text
	}
}
