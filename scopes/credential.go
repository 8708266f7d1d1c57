package scopes

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	maxMount      = 200
	maxNames      = 20 // of one certificate
	maxDataKeys   = 32
	maxRules      = 16
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
		{KindJWT, []string{"audience"}, []string{"bind", "uses", "status_list"}, "{kind: jwt, audience: https://gateway.example}", (*credentialReader).jwt},
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
			[]string{"data", "static", keyWithinSVID},
			"{kind: vault, method: read, path: 'aws/creds/{role}'}", (*credentialReader).vault,
		},
	}
}

// credentialReader reads the credential of one scope.
type credentialReader struct {
	*reader
	node   *yaml.Node
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
	i := slices.IndexFunc(kinds, func(k credentialKind) bool { return k.name == name })
	if !ok || i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.name)
		}
		if ok {
			r.at(fields["kind"], "credential.kind %q is unknown; choose %s", name, either(names))
		}
		return Credential{}, recipe{}
	}
	return r.credentialOf(kinds[i], &credentialReader{reader: r, node: n, fields: fields, params: params})
}

func (k credentialKind) keys() []string { return slices.Concat([]string{"kind"}, k.needs, k.may) }

func (r *reader) credentialOf(kind credentialKind, c *credentialReader) (Credential, recipe) {
	r.onlyKeys(c.node, "credential of kind "+kind.name, kind.keys())
	for _, key := range kind.needs {
		if c.fields[key] == nil {
			r.at(c.node, "credential of kind %s: %s is missing; example: %s", kind.name, key, kind.example)
			return Credential{}, recipe{}
		}
	}
	c.out.Kind = kind.name
	c.out.WithinSVID = r.flag(c.fields[keyWithinSVID], "credential."+keyWithinSVID)
	kind.read(c)
	return c.out, c.recipe
}

func (c *credentialReader) jwt() {
	c.out.Audience = c.audience(c.fields["audience"])
	c.out.Bind = c.oneOf(c.fields["bind"], "credential.bind", BindNone, BindMTLS, BindDPoP)
	if n := c.fields["uses"]; n != nil {
		_, c.out.OneShot = c.integer(n, "credential.uses", 1, 1)
	}
	c.out.StatusList = c.flag(c.fields["status_list"], "credential.status_list")
}

func (r *reader) audience(n *yaml.Node) string {
	text, ok := r.text(n, "credential.audience")
	if !ok {
		return ""
	}
	u, err := url.Parse(text)
	unclear := func(c rune) bool { return c <= ' ' || c > '~' || c == '#' }
	if err != nil || !u.IsAbs() || (u.Host == "" && u.Opaque == "") || u.User != nil ||
		len(text) > maxAudience || strings.ContainsFunc(text, unclear) {
		r.at(n, "credential.audience must be an absolute URI without fragment or user, such as https://gateway.example")
	}
	return text
}

func (c *credentialReader) database() {
	c.out.Mount = c.mount()
	c.engine("creds")
}

func (c *credentialReader) pki() {
	c.out.Mount = c.mount()
	c.out.ServerKey = c.oneOf(c.fields["key"], "credential.key", "client", "server") == "server"
	if c.out.ServerKey {
		c.engine("issue")
	} else {
		c.engine("sign")
	}
	c.out.CommonName, c.recipe.commonName = c.template(c.fields["common_name"], "credential.common_name", &dnsPlace, c.params)
	c.out.DNSNames, c.recipe.dnsNames = c.templates("dns_names", &dnsPlace)
}

func (c *credentialReader) ssh() {
	c.out.Mount = c.mount()
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

// mount returns where the engine is mounted. A mount never contains parameters.
func (c *credentialReader) mount() string {
	n := c.fields["mount"]
	text, ok := c.text(n, "credential.mount")
	if !ok {
		return ""
	}
	if len(text) > maxMount || !mountSyntax.MatchString(text) {
		c.at(n, "credential.mount %q must be letters, digits and . _ - with / between parts, at most %d bytes, without parameters", text, maxMount)
		return ""
	}
	if why := refusePath(text); why != "" {
		c.at(n, "credential.mount %q %s", text, why)
		return ""
	}
	return text
}

// engine reads the role and compiles the path at which the engine is called.
func (c *credentialReader) engine(verb string) {
	before := len(*c.problems)
	c.out.Role, _ = c.template(c.fields["role"], "credential.role", &rolePlace, c.params)
	if len(*c.problems) > before || c.out.Mount == "" {
		return
	}
	path := c.out.Mount + "/" + verb + "/" + c.out.Role
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
