package scopes

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

const (
	maxMount      = 200
	maxNames      = 20 // of one certificate
	maxDataKeys   = 32
	maxRules      = 16
	maxSubject    = 255 // bytes of the claim sub (OpenID Connect Core, section 2)
	keyWithinSVID = "within_svid"
)

var (
	mountSyntax   = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
	dataKeySyntax = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
)

var capabilities = []string{"create", "read", "update", "patch", "delete", "list"}

// credentialKind is one kind of credential as a catalogue writes it.
type credentialKind struct {
	name       string
	needs, may []string // its keys, in addition to kind
	example    string
	read       func(*credentialReader)
}

// credentialKinds returns the kinds in the order in which messages list them.
func credentialKinds() []credentialKind {
	return []credentialKind{
		{KindJWT, []string{"audience"}, []string{"algorithm", "bind", "uses", "status_list", "federation"}, "{kind: jwt, audience: https://gateway.example}", (*credentialReader).jwt},
		{
			KindVaultToken,
			[]string{"policy"},
			[]string{keyWithinSVID},
			"{kind: vault-token, policy: [{path: 'secret/data/agents/{agent}', capabilities: [read]}]}", (*credentialReader).vaultToken,
		},
		{
			KindDatabase,
			[]string{"mount", "role"},
			[]string{keyWithinSVID},
			"{kind: database, mount: database, role: reporting}", (*credentialReader).database,
		},
		{
			KindPKI,
			[]string{"mount", "role", "common_name"},
			[]string{"dns_names", "key", keyWithinSVID},
			"{kind: pki, mount: pki, role: web, common_name: '{service}.svc.acme.example'}", (*credentialReader).pki,
		},
		{
			KindSSH,
			[]string{"mount", "role", "principals"},
			[]string{keyWithinSVID},
			"{kind: ssh, mount: ssh, role: deploy, principals: ['{user}']}", (*credentialReader).ssh,
		},
		{KindKV, []string{"path"}, []string{keyWithinSVID}, "{kind: kv, path: 'secret/data/agents/{name}'}", (*credentialReader).kv},
		{
			KindVault,
			[]string{"method", "path"},
			[]string{"data", "static", "revocable", "min_ttl", keyWithinSVID},
			"{kind: vault, method: read, path: 'aws/creds/{role}'}", (*credentialReader).vault,
		},
		{
			KindGitHub,
			[]string{"app", "installation", "repositories", "permissions"},
			[]string{keyWithinSVID},
			"{kind: github, app: acme, installation: 48872301, repositories: ['acme/{repo}'], permissions: {issues: read}}", (*credentialReader).github,
		},
		{KindNone, nil, nil, "{kind: none}", func(*credentialReader) {}},
	}
}

// credentialReader reads the credential of one scope.
type credentialReader struct {
	*reader
	fields map[string]*yaml.Node
	params map[string]Param
	out    Credential
	recipe recipe
}

func (r *reader) credential(n *yaml.Node, params map[string]Param) (Credential, recipe) {
	if n == nil {
		return Credential{}, recipe{}
	}
	fields := r.entries(n, "credential")
	if fields == nil {
		return Credential{}, recipe{}
	}
	kinds := credentialKinds()
	if fields["kind"] == nil {
		r.at(n, "credential needs a kind, such as %s", kinds[0].example)
		return Credential{}, recipe{}
	}
	name, ok := r.text(fields["kind"], "credential.kind")
	if !ok {
		return Credential{}, recipe{}
	}
	i := slices.IndexFunc(kinds, func(k credentialKind) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.name)
		}
		r.at(fields["kind"], "credential.kind %q is unknown; choose %s", name, either(names))
		return Credential{}, recipe{}
	}
	kind := kinds[i]
	r.onlyKeys(n, "credential of kind "+name, slices.Concat([]string{"kind"}, kind.needs, kind.may))
	for _, key := range kind.needs {
		if fields[key] == nil {
			r.at(n, "credential of kind %s: %s is missing; example: %s", name, key, kind.example)
			return Credential{}, recipe{}
		}
	}
	c := &credentialReader{reader: r, fields: fields, params: params}
	c.out.Kind = name
	c.out.WithinSVID = r.flag(fields[keyWithinSVID], "credential."+keyWithinSVID)
	kind.read(c)
	return c.out, c.recipe
}

func (c *credentialReader) jwt() {
	audience, ok := c.text(c.fields["audience"], "credential.audience")
	u, err := url.Parse(audience)
	unclear := func(c rune) bool { return c <= ' ' || c > '~' || c == '#' }
	visible := len(audience) <= maxAudience && !strings.ContainsFunc(audience, unclear)
	switch federated := c.fields["federation"] != nil; {
	case !ok:
	case federated && (audience == "" || !visible): // other systems choose names such as sts.amazonaws.com
		c.at(c.fields["audience"], "credential.audience must be what the other system expects, visible ASCII without #, such as sts.amazonaws.com")
	case !federated && (err != nil || !u.IsAbs() || (u.Host == "" && u.Opaque == "") || u.User != nil || !visible):
		c.at(c.fields["audience"], "credential.audience must be an absolute URI without fragment or user, such as https://gateway.example")
	}
	c.out.Audience = audience
	c.out.Bind = c.oneOf(c.fields["bind"], "credential.bind", BindNone, BindMTLS, BindDPoP)
	_, c.out.OneShot = c.integer(c.fields["uses"], "credential.uses", 1, 1)
	c.out.StatusList = c.flag(c.fields["status_list"], "credential.status_list")
	if c.fields["federation"] != nil {
		c.federation(c.fields["federation"])
		return
	}
	c.out.Algorithm = c.oneOf(c.fields["algorithm"], "credential.algorithm", AlgorithmES256, AlgorithmEdDSA)
}

const federationExample = "{subject: 'repo:{repo}:task', algorithm: RS256}"

// federation reads how another system identifies the sandbox. Such a system knows neither Brevet's introspection nor its status
// lists, and does not check a binding, so the scope must not promise them.
func (c *credentialReader) federation(n *yaml.Node) {
	fields := c.mapping(n, "credential.federation", "subject", "algorithm", "exchange")
	if fields == nil {
		return
	}
	for _, key := range []string{"bind", "uses", "status_list"} {
		if c.fields[key] != nil {
			c.at(c.fields[key], "credential.%s cannot be used with federation: the other system does not check it", key)
		}
	}
	if c.fields["algorithm"] != nil {
		c.at(c.fields["algorithm"], "credential.algorithm cannot be used with federation: set credential.federation.algorithm")
	}
	if fields["subject"] == nil {
		c.at(n, "credential.federation needs a subject, such as %s", federationExample)
		return
	}
	c.out.Federation.Subject, c.recipe.subject = c.template(fields["subject"], "credential.federation.subject", &subjectPlace, c.params)
	c.out.Federation.Algorithm = c.oneOf(fields["algorithm"], "credential.federation.algorithm", AlgorithmRS256, AlgorithmES256)
	if fields["exchange"] != nil {
		c.exchange(fields["exchange"])
	}
}

func (c *credentialReader) vaultToken() {
	for i, item := range c.listOf(c.fields["policy"], "credential.policy", maxRules, "paths") {
		what := fmt.Sprintf("credential.policy[%d]", i)
		fields := c.mapping(item, what, "path", "capabilities")
		if fields == nil {
			continue
		}
		if fields["path"] == nil || fields["capabilities"] == nil {
			c.at(item, "%s needs path and capabilities, such as {path: 'secret/data/agents/{agent}', capabilities: [read]}", what)
			continue
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

func (c *credentialReader) database() { c.engine("creds") }

func (c *credentialReader) pki() {
	verb := "sign"
	if c.oneOf(c.fields["key"], "credential.key", "client", "server") == "server" {
		c.out.ServerKey, verb = true, "issue"
	}
	c.engine(verb)
	c.out.CommonName, c.recipe.commonName = c.template(c.fields["common_name"], "credential.common_name", &dnsPlace, c.params)
	c.out.DNSNames, c.recipe.dnsNames = c.templates("dns_names", &dnsPlace)
}

func (c *credentialReader) ssh() {
	c.engine("sign")
	c.out.Principals, c.recipe.principals = c.templates("principals", &principalPlace)
	if n := c.fields["principals"]; n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		c.at(n, "credential.principals is empty; a certificate without principals would be valid for every user")
	}
}

func (c *credentialReader) kv() {
	c.out.Path, c.recipe.path = c.template(c.fields["path"], "credential.path", &pathPlace, c.params)
	c.out.Static = true
}

func (c *credentialReader) vault() {
	c.out.Method = c.oneOf(c.fields["method"], "credential.method", MethodRead, MethodWrite)
	c.out.Path, c.recipe.path = c.template(c.fields["path"], "credential.path", &pathPlace, c.params)
	c.out.Static = c.flag(c.fields["static"], "credential.static")
	c.irrevocable()
	n := c.fields["data"]
	if n == nil {
		return
	}
	if c.out.Method == MethodRead {
		c.at(n, "credential.data requires method: write")
	}
	entries := c.entries(n, "credential.data")
	if len(entries) > maxDataKeys {
		c.at(n, "credential.data: %d keys are too many; at most %d", len(entries), maxDataKeys)
		return
	}
	c.out.Data, c.recipe.data = map[string]string{}, map[string]template{}
	for _, key := range sortedKeys(entries) {
		if !dataKeySyntax.MatchString(key) {
			c.at(entries[key], "credential.data: key %q must be letters, digits, _ and -, at most 64", key)
			continue
		}
		c.out.Data[key], c.recipe.data[key] = c.template(entries[key], "credential.data."+key, &dataPlace, c.params)
	}
}

// The mounts in Vault of the keys of GitHub Apps (Transit engine), and of the tokens that GitHub has issued and that are to be
// revoked (KV engine, version 1). No other kind of credential may use them.
const (
	GitHubKeys   = "brevet-github"
	GitHubTokens = "brevet-github-tokens" //nolint:gosec // a path
)

// GitHubTokenLife is how long GitHub accepts an installation access token that nobody revokes.
const GitHubTokenLife = time.Hour

const (
	maxRepositories = 50
	maxPermissions  = 50
)

var (
	appSyntax        = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	permissionSyntax = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
)

func (c *credentialReader) github() {
	app, ok := c.text(c.fields["app"], "credential.app")
	if ok && !appSyntax.MatchString(app) {
		c.at(c.fields["app"], "credential.app %q must be the name of an App in the server's configuration: lower-case letters, digits and inner dashes", app)
		return
	}
	c.out.App = app
	c.out.Installation, _ = c.integer(c.fields["installation"], "credential.installation", 1, maxSafeInt)
	c.recipe.path = template{at: &keyPlace, literals: []string{GitHubKeys + "/sign/" + app + "/sha2-256"}}
	for i, item := range c.listOf(c.fields["repositories"], "credential.repositories", maxRepositories, "full names of repositories, such as acme/{repo}") {
		text, t := c.template(item, fmt.Sprintf("credential.repositories[%d]", i), &repositoryPlace, c.params)
		c.out.Repositories, c.recipe.repositories = append(c.out.Repositories, text), append(c.recipe.repositories, t)
	}
	n := c.fields["permissions"]
	entries := c.entries(n, "credential.permissions")
	if n.Kind == yaml.MappingNode && (len(entries) == 0 || len(entries) > maxPermissions) {
		c.at(n, "credential.permissions must have 1 to %d permissions, such as {issues: read}", maxPermissions)
		return
	}
	c.out.Permissions, c.recipe.permissions = map[string]string{}, map[string]template{}
	for _, name := range sortedKeys(entries) {
		if !permissionSyntax.MatchString(name) || len(name) > maxSendText {
			c.at(entries[name], "credential.permissions: %q must be the name of a permission of GitHub Apps, such as issues or pull_requests", name)
			continue
		}
		c.out.Permissions[name], c.recipe.permissions[name] = c.template(entries[name], "credential.permissions."+name, &permissionPlace, c.params)
	}
}

// IsApp reports whether a name can be that of a GitHub App in the server's configuration.
func IsApp(name string) bool { return appSyntax.MatchString(name) }

// joinPermissions writes permissions as in contents=read,issues=write, sorted by name.
func joinPermissions(permissions map[string]string) string {
	pairs := make([]string, 0, len(permissions))
	for _, name := range sortedKeys(permissions) {
		pairs = append(pairs, name+"="+permissions[name])
	}
	return strings.Join(pairs, ",")
}

// irrevocable reads whether the credential ends only at its expiry. Then Brevet sends the granted lifetime, because nothing can
// shorten it later.
func (c *credentialReader) irrevocable() {
	n, shortest := c.fields["revocable"], c.fields["min_ttl"]
	c.out.Irrevocable = n != nil && !c.flag(n, "credential.revocable")
	if !c.out.Irrevocable {
		if shortest != nil {
			c.at(shortest, "credential.min_ttl requires revocable: false; Brevet can end every other credential earlier")
		}
		return
	}
	if c.out.Method == MethodRead {
		c.at(n, "credential.revocable: false requires method: write, because Brevet sends the lifetime as ttl")
	}
	if c.out.Static {
		c.at(n, "credential.revocable: false cannot be used with static: true, which is for secrets that do not expire")
	}
	if data := c.fields["data"]; data != nil && data.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(data.Content); i += 2 {
			if data.Content[i].Value == "ttl" {
				c.at(data.Content[i], "credential.data.ttl cannot be used with revocable: false: Brevet sends the granted lifetime as ttl")
			}
		}
	}
	if shortest != nil {
		c.out.MinTTL, _ = c.duration(shortest, "credential.min_ttl", minTTL)
	}
}

// engine reads where an engine is mounted, which never depends on parameters, and the role. It compiles the path at which
// the engine is called.
func (c *credentialReader) engine(verb string) {
	before, n := len(*c.problems), c.fields["mount"]
	mount, ok := c.text(n, "credential.mount")
	switch why := refusePath(mount); {
	case !ok:
	case len(mount) > maxMount || !mountSyntax.MatchString(mount):
		c.at(n, "credential.mount %q must be letters, digits and . _ - with / between parts, at most %d bytes, without parameters", mount, maxMount)
	case why != "":
		c.at(n, "credential.mount %q %s", mount, why)
	}
	c.out.Mount = mount
	c.out.Role, _ = c.template(c.fields["role"], "credential.role", &rolePlace, c.params)
	if len(*c.problems) > before {
		return
	}
	path := mount + "/" + verb + "/" + c.out.Role
	t, err := parseTemplate(path, &pathPlace)
	if err != nil {
		c.at(c.fields["role"], "credential.role makes the path %q, which %v", path, err)
	}
	c.recipe.path = t
}

func (c *credentialReader) templates(key string, at *place) ([]string, []template) {
	if c.fields[key] == nil {
		return nil, nil
	}
	items := c.list(c.fields[key], "credential."+key)
	if len(items) > maxNames {
		c.at(c.fields[key], "credential.%s: %d are too many; at most %d", key, len(items), maxNames)
		return nil, nil
	}
	var texts []string
	var parsed []template
	for i, item := range items {
		text, t := c.template(item, fmt.Sprintf("credential.%s[%d]", key, i), at, c.params)
		texts, parsed = append(texts, text), append(parsed, t)
	}
	return texts, parsed
}

// template reads a text with parameters and checks it against the rules of its place.
func (r *reader) template(n *yaml.Node, what string, at *place, params map[string]Param) (string, template) {
	text, ok := r.text(n, what)
	if !ok {
		return "", template{at: at, literals: []string{""}}
	}
	t, err := parseTemplate(text, at)
	if err != nil {
		r.at(n, "%s %q %v", what, text, err)
	} else if why := t.uses(params); why != "" {
		r.at(n, "%s %s", what, why)
	}
	return text, t
}
