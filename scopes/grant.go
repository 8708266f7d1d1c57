package scopes

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
)

// recipe is a scope's credential, compiled. It makes the Grant.
type recipe struct {
	path                 template // for every kind but jwt, vault-token and none
	commonName           template
	dnsNames, principals []template
	subject              template // of a JWT with federation
	repositories         []template
	permissions          map[string]template
	data                 map[string]template
	rules                []rule      // vault-token
	policy               VaultPolicy // limits the token that calls Vault; a vault-token has one policy per combination instead
	// exchangeRole and exchangeAccount are set if the exchange of the federation has them.
	exchangeRole, exchangeAccount template
}

// keyProofs holds what a caller sent about its own keys. request parses the CSR once for all hints that are tried,
// because verifying its signature is expensive.
type keyProofs struct {
	request func() (request, *InvalidAsk)
	// Only Assess sets csr and publicKey: such a key was sent, but is not available.
	csr, publicKey bool
}

func newKeyProofs(ask Ask) keyProofs {
	return keyProofs{request: sync.OnceValues(func() (request, *InvalidAsk) { return parseCSR(ask.CSR) })}
}

// certifies reports which of the caller's own keys the credential is made for.
func (c Credential) certifies() (csr, publicKey bool) {
	return c.Kind == KindPKI && !c.ServerKey, c.Kind == KindSSH
}

// grant builds the request for Vault; nil for a JWT, and if there is no credential.
func (d *definition) grant(params map[string]any, ask Ask, sent keyProofs) (*Grant, *InvalidAsk) {
	c, r := d.scope.Credential, d.recipe
	csr, publicKey := c.certifies()
	switch {
	case csr && ask.CSR == "" && !sent.csr:
		return nil, invalid("csr", "is required")
	case !csr && ask.CSR != "":
		return nil, invalid("csr", "is not used by this scope; leave it out")
	case publicKey && ask.PublicKey == "" && !sent.publicKey:
		return nil, invalid("public_key", "is required")
	case !publicKey && ask.PublicKey != "":
		return nil, invalid("public_key", "is not used by this scope; leave it out")
	}
	g := &Grant{Policy: r.policy.Name, Method: MethodWrite, Leased: c.Leased(), Static: c.Static, MinTTL: c.MinTTL}
	var bad *InvalidAsk
	switch c.Kind {
	case KindVaultToken:
		p, bad := r.tokenPolicy(d.scope.Name, params)
		g.Policy, g.Method = p.Name, ""
		return g, bad
	case KindDatabase, KindKV:
		g.Method = MethodRead
	case KindPKI:
		g.Data, bad = r.certificate(params, csr, sent)
	case KindSSH:
		principals, bad := renderAll(r.principals, params)
		if bad != nil {
			return nil, bad
		}
		if !sent.publicKey {
			key, bad := parsePublicKey(ask.PublicKey)
			if bad != nil {
				return nil, bad
			}
			// No principal contains a comma, so joining them adds none (H55).
			g.Data = map[string]string{"public_key": key, "valid_principals": strings.Join(principals, ","), "cert_type": "user"}
		}
	case KindGitHub:
		g.Data, bad = r.installation(c, params)
	case KindVault:
		g.Method = c.Method
		if r.data != nil {
			g.Data = make(map[string]string, len(r.data))
		}
		for _, key := range sortedKeys(r.data) {
			if g.Data[key], bad = r.data[key].render(params); bad != nil {
				return nil, bad
			}
		}
	default:
		return nil, nil // a JWT: Vault is asked for a signature only; or no credential
	}
	if bad != nil {
		return nil, bad
	}
	g.Path, bad = r.path.render(params)
	return g, bad
}

// installation returns what an installation access token is for. Brevet asks GitHub, not Vault, for it.
func (r recipe) installation(c Credential, params map[string]any) (map[string]string, *InvalidAsk) {
	repositories, bad := renderAll(r.repositories, params)
	if bad != nil {
		return nil, bad
	}
	for _, name := range repositories {
		owner, _, full := strings.Cut(name, "/")
		first, _, _ := strings.Cut(repositories[0], "/")
		switch {
		case !full: // a parameter alone, whose value has no owner
			return nil, invalid("params", "produce a repository that is not a full name, such as acme/site")
		case !strings.EqualFold(owner, first):
			return nil, invalid("params", "produce repositories of two owners; an installation has one")
		}
	}
	permissions := make(map[string]string, len(r.permissions))
	for _, name := range sortedKeys(r.permissions) {
		if permissions[name], bad = r.permissions[name].render(params); bad != nil {
			return nil, bad
		}
	}
	return map[string]string{
		"app": c.App, "installation": strconv.FormatInt(c.Installation, 10),
		"repositories": strings.Join(repositories, ","), "permissions": joinPermissions(permissions),
	}, nil
}

// certificate returns the data for the pki engine. It contains every name, for a role that takes none from the CSR.
func (r recipe) certificate(params map[string]any, withCSR bool, sent keyProofs) (map[string]string, *InvalidAsk) {
	commonName, bad := r.commonName.render(params)
	if bad != nil {
		return nil, bad
	}
	dnsNames, bad := renderAll(r.dnsNames, params)
	if bad != nil {
		return nil, bad
	}
	data := map[string]string{"common_name": commonName, "exclude_cn_from_sans": "false", "format": "pem"}
	if len(dnsNames) > 0 {
		data["alt_names"] = strings.Join(dnsNames, ",")
	}
	if !withCSR || sent.csr {
		return data, nil
	}
	csr, bad := sent.request()
	if bad != nil {
		return nil, bad
	}
	// The request may name nothing but what the scope grants.
	other := func(name string) bool { return name != commonName }
	unlisted := func(name string) bool { return other(name) && !slices.Contains(dnsNames, name) }
	if slices.ContainsFunc(csr.commonNames, other) || slices.ContainsFunc(csr.dnsNames, unlisted) {
		return nil, invalid("csr", csrNames)
	}
	data["csr"] = csr.pem
	return data, nil
}

func renderAll(templates []template, params map[string]any) ([]string, *InvalidAsk) {
	var out []string
	for _, t := range templates {
		text, bad := t.render(params)
		if bad != nil {
			return nil, bad
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out, nil
}

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
// Most credentials are requested with a token that never leaves the broker, so one policy per scope is enough. It has the path of
// each combination of values. Where a parameter of type string is part of a path, or there are too many combinations, the policy
// allows any one segment. A credential of kind vault-token is itself handed out, so its policies are exact: one for each combination.
func (c *Catalogue) VaultPolicies() []VaultPolicy {
	var out []VaultPolicy
	for _, name := range c.names {
		d := c.scopes[name]
		switch d.scope.Credential.Kind {
		case KindJWT, KindNone:
		case KindVaultToken:
			for _, params := range d.combinations(d.recipe.ruleParams()) {
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

// Algorithms returns the JWS algorithms of this catalogue's tokens, sorted. For each, a key must exist in Vault as VaultPolicies must.
func (c *Catalogue) Algorithms() []string {
	var out []string
	for _, d := range c.scopes {
		if used := cmp.Or(d.scope.Credential.Algorithm, d.scope.Credential.Federation.Algorithm); used != "" {
			out = append(out, used)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// NeedsGitHub reports whether a scope of this catalogue issues tokens of GitHub, whose engines must be mounted in Vault.
func (c *Catalogue) NeedsGitHub() bool {
	for _, d := range c.scopes {
		if d.scope.Credential.Kind == KindGitHub {
			return true
		}
	}
	return false
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

// wrapperPolicy allows what the token that requests the credential needs: the paths of the scope. If their values cannot be listed, it
// has + in place of each segment that contains a parameter, because Vault has no pattern for part of a segment.
func (d *definition) wrapperPolicy() VaultPolicy {
	may := []string{"read"}
	if c := d.scope.Credential; c.Kind == KindPKI || c.Kind == KindSSH || c.Kind == KindGitHub || c.Method == MethodWrite {
		// Vault requires create if an engine can tell that nothing exists at the path yet.
		may = []string{"create", "update"}
	}
	if d.countable(d.recipe.path.names) {
		allowed := map[string][]string{}
		for _, params := range d.combinations(d.recipe.path.names) {
			if path, bad := d.recipe.path.render(params); bad == nil { // else no request has this combination
				allowed[path] = may
			}
		}
		return newVaultPolicy(d.scope.Name, allowed)
	}
	segments := strings.Split(strings.Join(d.recipe.path.literals, "{}"), "/")
	for i, segment := range segments {
		if strings.Contains(segment, "{}") {
			segments[i] = "+"
		}
	}
	return newVaultPolicy(d.scope.Name, map[string][]string{strings.Join(segments, "/"): may})
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

// ruleParams returns the names of the parameters in the rules, sorted.
func (r recipe) ruleParams() []string {
	var names []string
	for _, rule := range r.rules {
		names = append(names, rule.path.names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// countable reports whether each of the parameters has a list of values, and there are not too many combinations.
func (d *definition) countable(names []string) bool {
	count := 1
	for _, name := range names {
		if count *= len(d.scope.Params[name].all()); count == 0 || count > maxTokenPolicies {
			return false
		}
	}
	return true
}

// combinations returns every combination of values of the parameters. There must not be too many.
func (d *definition) combinations(names []string) []map[string]any {
	out := []map[string]any{{}}
	for _, name := range names {
		var longer []map[string]any
		for _, chosen := range out {
			for _, value := range d.scope.Params[name].all() {
				with := maps.Clone(chosen)
				with[name] = value
				longer = append(longer, with)
			}
		}
		out = longer
	}
	return out
}

// all returns the values of an enum, bool or int parameter, as many as a scope may have policies and one more.
func (p Param) all() []any {
	var out []any
	switch p.Type {
	case ParamEnum:
		for _, value := range p.Values {
			out = append(out, value)
		}
	case ParamBool:
		out = []any{false, true}
	case ParamInt:
		for n := p.Min; n <= p.Max && len(out) <= maxTokenPolicies; n++ {
			out = append(out, n)
		}
	case ParamString:
	}
	return out
}

// checkTokenPolicies builds every policy of a scope once, so that none fails later.
func (r *reader) checkTokenPolicies(n *yaml.Node, d *definition) {
	count := 1
	for _, name := range d.recipe.ruleParams() {
		count *= max(len(d.scope.Params[name].all()), 1) // 0 has been reported: a string, or no values
		if count > maxTokenPolicies {
			r.at(n, "credential.policy: the values of its parameters have more than %d combinations; each is a policy in Vault", maxTokenPolicies)
			return
		}
	}
	texts := map[string]string{}
	for _, params := range d.combinations(d.recipe.ruleParams()) {
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
