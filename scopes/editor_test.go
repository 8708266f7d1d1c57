package scopes_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

func compiled(t *testing.T, schema []byte) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("brevet.json", document); err != nil {
		t.Fatal(err)
	}
	out, err := compiler.Compile("brevet.json")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asEditor validates YAML as an editor does: without tags, as the equivalent JSON.
func asEditor(schema *jsonschema.Schema, text string) error {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		return err
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return schema.Validate(document)
}

// notOfShape lists the mistakes of load_test.go that no schema can detect: they concern several fields, the words in a
// text, or YAML itself.
var notOfShape = []string{
	"duplicate scope", "bidi in title", "ttl over a day", "ttl of parts of a second", "ttl upside down", "approval waits too long", "break glass of the same group",
	"default shorter than the other system gives", "break glass shorter than the other system gives", "break glass for what is stored", "break glass without a lease",
	"limit of a moment", "limit over a week", "limit twice", "live limit twice", "audience with fragment", "undeclared placeholder",
	"resource dot segment", "adjacent placeholders", "int upside down", "pattern that closes our group",
	"more than an ask may hold", "alias", "merge key", "tag", "second document",
	"egress of another kind", "egress host with its own port", "egress host that is a number", "egress path of an unknown parameter",
	"egress of a key that is not sent", "egress of a key in no field", "egress by the host", "egress of a member of a token", "egress of a bound token",
	"egress that is signed by a token", "egress of a certificate in a header", "egress of a certificate that is not sent",
	"egress to a database without a port", "egress to a database on any host",
	"egress path with dots", "egress path with ** inside", "egress path with half a *", "egress path with dots after an escaped slash",
	"egress path with an escaped slash at the end of a segment", "egress path with half a * before an escaped slash",
	"egress path with half a * before a colon", "egress path with ** before a colon",
	"egress header that is the credential", "egress header of an API key", "egress header of a cookie", "egress header of the host", "egress header of a proxy",
	"egress headers of proxies", "egress headers of some proxies", "egress header of the next hop", "egress header of the connection", "egress header of an upgrade",
	"no credential without egress", "no credential that is sent", "no credential with a header that carries one",
	"egress header of another method", "egress header of another target", "egress header that the gateway sets",
}

// The schema rejects exactly those mistakes that Load rejects for their structure.
func TestScopesSchemaRefusesStructuralMistakes(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	if err := asEditor(schema, worldScopes); err != nil {
		t.Fatalf("the world: %v", err)
	}
	seen := 0
	for _, tt := range slices.Concat(mistakes, egressMistakes) {
		err := asEditor(schema, replace(t, worldScopes, tt.old, tt.with))
		visible := !slices.Contains(notOfShape, tt.name)
		if visible != (err != nil) {
			t.Errorf("%s: got %v, want an error: %v", tt.name, err, visible)
		}
		if !visible {
			seen++
		}
	}
	if seen != len(notOfShape) {
		t.Errorf("saw %d of the %d mistakes that are not of shape: the list is out of date", seen, len(notOfShape))
	}
}

// The schemas accept the files that we ship and the credentials of the tests.
func TestSchemasAcceptValidFiles(t *testing.T) {
	scopesSchema, examplesSchema := compiled(t, scopes.ScopesSchema()), compiled(t, scopes.ExamplesSchema())
	paths, err := filepath.Glob("../examples/catalog*/*.y*ml")
	if err != nil || len(paths) < 4 {
		t.Fatalf("got %v and %v: the examples are not being read", paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		schema, other := scopesSchema, examplesSchema
		if strings.HasSuffix(path, ".test.yaml") {
			schema, other = other, schema
		}
		if err := asEditor(schema, string(text)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := asEditor(other, string(text)); err == nil {
			t.Errorf("%s is accepted as the other sort of file too", path)
		}
	}
	if err := asEditor(scopesSchema, vaultScopes); err != nil {
		t.Errorf("credentials of every kind: %v", err)
	}
	for _, table := range []string{
		"examples:\n  - {name: a, as: spiffe://td.example/a, scope: a.b, want: maybe}\n",
		"examples:\n  - {name: a, as: spiffe://td.example/a, scope: a.b, want: {reason: x}}\n",
		"examples:\n  - {name: a, as: spiffe://td.example, scope: a.b, want: allow}\n",
		"examples:\n  - {name: a, as: spiffe://td.example/a, scope: a.b, want: allow, expect: x}\n",
		"examples:\n  - {name: a, as: spiffe://td.example/a, scope: a.b, want: allow, params: {a: [b]}}\n",
	} {
		if err := asEditor(examplesSchema, table); err == nil {
			t.Errorf("accepted %s", table)
		}
	}
}

var knownKeys = regexp.MustCompile(`(?m)unknown key "nonsense"; the keys are (.*)$`)

// The schema has the same keys as the message about an unknown key.
func TestScopesSchemaHasTheKeys(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(scopes.ScopesSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	scope := at(t, schema, "properties", "scopes", "items")
	keys := func(object map[string]any, but ...string) []string {
		names := slices.Sorted(maps.Keys(at(t, object, "properties")))
		for _, name := range names {
			if at(t, object, "properties")[name] == nil {
				t.Errorf("%s has no schema", name)
			}
		}
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(but, name) })
	}
	limit := keys(at(t, scope, "properties", "limits", "items", "oneOf", "0"))
	limit = slices.Compact(slices.Sorted(slices.Values(append(limit, keys(at(t, scope, "properties", "limits", "items", "oneOf", "1"))...))))
	params := at(t, scope, "properties", "params", "additionalProperties")
	for _, tc := range []struct {
		name, old, with string
		want            []string
	}{
		{"file", "scopes:\n", "nonsense: 1\nscopes:\n", keys(schema)},
		{"scope", "title: Read mail\n", "title: Read mail\n    nonsense: 1\n", keys(scope)},
		{"ttl", "default: 10m,", "default: 10m, nonsense: 1,", keys(at(t, scope, "properties", "ttl"))},
		{"approval", "group: oncall", "group: oncall, nonsense: 1", keys(at(t, scope, "properties", "approval"))},
		{"limit", "ttl: {default: 10m, max: 1h}\n", "ttl: {default: 10m, max: 1h}\n    limits: [{per: task, live: 1, nonsense: 1}]\n", limit},
		{"string", "max_length: 40", "max_length: 40, nonsense: 1", keys(at(t, params, "oneOf", "0"))},
		{"enum", "[EUR, USD]", "[EUR, USD], nonsense: 1", keys(at(t, params, "oneOf", "1"))},
		{"int", "min: 1", "min: 1, nonsense: 1", keys(at(t, params, "oneOf", "2"))},
		{"bool", "type: bool", "type: bool, nonsense: 1", keys(at(t, params, "oneOf", "3"))},
		{"egress", "bind: mtls}\n", "bind: mtls}\n    egress: [{hosts: [a.example], methods: [GET], paths: [/], nonsense: 1}]\n", keys(at(t, scope, "properties", "egress", "items", "anyOf", "0"))},
		{"login", mailJWT, "{kind: database, mount: database, role: mail}\n    egress: [{hosts: ['a.example:1'], databases: [a], nonsense: 1}]\n", keys(at(t, scope, "properties", "egress", "items", "anyOf", "1"))},
		{"send", mailJWT, withSend(", send: {as: bearer, field: a, nonsense: 1}"), []string{"as", "field", "name", "region", "service", "user"}},
		{"jwt", "bind: mtls", "bind: mtls, nonsense: 1", keys(at(t, scope, "properties", "credential", "oneOf", "0"))},
	} {
		got := knownKeys.FindStringSubmatch(refusal(t, file("s.yaml", replace(t, worldScopes, tc.old, tc.with)), file("p.cedar", worldPolicies)))
		if got == nil || !slices.Equal(slices.Sorted(slices.Values(strings.Split(got[1], ", "))), tc.want) {
			t.Errorf("%s: the schema has %v, and people are told of %v", tc.name, tc.want, got)
		}
	}
}

// at walks into a JSON document; a digit is an index into a list.
func at(t *testing.T, document map[string]any, path ...string) map[string]any {
	t.Helper()
	var value any = document
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			value = v[step]
		case []any:
			value = v[int(step[0]-'0')]
		}
	}
	out, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("there is no %v in the schema", path)
	}
	return out
}
