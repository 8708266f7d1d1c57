package scopes_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// anything is the catalogue of a careless admin: its pattern allows everything.
func anything(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	return load(tb, `scopes:
  - name: any.thing
    title: Anything
    authority: read
    params:
      value: {type: string, pattern: '(?s).*|a', max_length: 1000}
    resource: any:{value}
    ttl: {default: 1m, max: 1m}
    credential: {kind: jwt, audience: urn:example:any}
  - name: any.pair
    title: Two values
    authority: read
    params:
      a: {type: string, pattern: '(?s).*'}
      b: {type: string, pattern: '(?s).*'}
    resource: any:pair/{a}--{b}
    ttl: {default: 1m, max: 1m}
    credential: {kind: jwt, audience: urn:example:any}
  - name: any.number
    title: A number
    authority: read
    params:
      n: {type: int, min: -9007199254740992, max: 9007199254740992}
      yes: {type: bool}
      choice: {type: enum, values: [red, blue]}
    resource: any:number/{n}
    ttl: {default: 1m, max: 1m}
    credential: {kind: jwt, audience: urn:example:any}
`, `@id("all") permit (principal, action, resource);`)
}

func ask(tb testing.TB, c *scopes.Catalogue, scope string, params map[string]any) (scopes.Decision, error) {
	tb.Helper()
	return c.Decide(subject("spiffe://td.example/a"), scopes.Ask{Scope: scope, Params: params, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
}

func TestBaselineRefusesHostileValuesWhateverThePattern(t *testing.T) {
	c := anything(t)
	hostile := []string{
		"../sys/seal", ".", "..", "%2e%2e", "a/../b", "a/./b", "a//b", "/a", "a/", "/", // H52
		"x/../../auth/token/create", // H53
		"a+b", "*", "acme/*", "+",   // H54
		"deploy,root", "a;b", // H55
		"a\r\nb", "a\n", "a#b", "a?b", // H57
		"{{identity.entity.id}}", "${env}", // H58
		"admin'; DROP ROLE x", `a"b`, "a`b", "a'b", // H59
		"ａcme", "acmé", "acme\u200b", "acme api", "acme\u00a0", " acme", "acme ", "acme\u202e", // H67
		"", "-rf", "--admin", "a\x00b", "a\x7f", "a\tb", "a\\b", "a|b", "a<b", "a>b", "a&b", "a=b", "a~b", "a!b", "a(b)", "a[b]", "a^b", "a%b", "\xff",
	}
	for _, value := range hostile {
		t.Run(fmt.Sprintf("%q", value), func(t *testing.T) {
			_, err := ask(t, c, "any.thing", map[string]any{"value": value})
			var bad *scopes.InvalidAsk
			if !errors.As(err, &bad) || bad.Field != "params.value" {
				t.Errorf("got %v, want params.value refused", err)
			}
		})
	}
	for _, value := range []string{"acme/api", "read-only", "v1.2.3", "team_a@acme.example", "10:20", "a", "A..b", "...", "ord_000001"} {
		t.Run(value, func(t *testing.T) {
			d, err := ask(t, c, "any.thing", map[string]any{"value": value})
			if err != nil || d.Resource != "any:"+value {
				t.Errorf("got %q and %v, want any:%s", d.Resource, err, value)
			}
		})
	}
}

// The alternatives of a pattern are anchored together: a|b does not match a-evil.
func TestPatternMatchesTheWholeValue(t *testing.T) {
	c := load(t, replace(t, worldScopes, "'[a-z0-9-]+/[a-z0-9._-]+'", "'acme|corp'"), worldPolicies)
	for value, want := range map[string]bool{"acme": true, "corp": true, "acme-evil": false, "evil-corp": false, "acmecorp": false, "ACME": false} {
		_, err := ask(t, c, "git.issues.read", repo(value))
		if (err == nil) != want {
			t.Errorf("%s: got error %v, want accepted %v", value, err, want)
		}
	}
}

func TestTypedValues(t *testing.T) {
	c := anything(t)
	tests := []struct {
		name  string
		field string
		value any
		want  any // nil if refused
	}{
		{"json number", "n", json.Number("42"), int64(42)},
		{"negative", "n", json.Number("-42"), int64(-42)},
		{"whole float", "n", 42.0, int64(42)},
		{"int", "n", 42, int64(42)},
		{"int64", "n", int64(42), int64(42)},
		{"largest", "n", json.Number("9007199254740992"), int64(1 << 53)},
		{"beyond", "n", json.Number("9007199254740993"), nil},
		{"beyond, float", "n", float64(1<<53) * 2, nil},
		{"2^63", "n", json.Number("9223372036854775808"), nil},
		{"1e400", "n", json.Number("1e400"), nil},
		{"exponent", "n", json.Number("1e3"), nil},
		{"fraction", "n", json.Number("1.5"), nil},
		{"fraction, float", "n", 1.5, nil},
		{"plus", "n", json.Number("+1"), nil},
		{"infinite", "n", math.Inf(1), nil},
		{"not a number", "n", math.NaN(), nil},
		{"text for number", "n", "42", nil},
		{"bool for number", "n", true, nil},
		{"null for number", "n", nil, nil},
		{"false", "yes", false, false},
		{"text for bool", "yes", "true", nil},
		{"number for bool", "yes", json.Number("1"), nil},
		{"choice", "choice", "blue", "blue"},
		{"no choice", "choice", "green", nil},
		{"other case", "choice", "Blue", nil},
		{"list of choices", "choice", []any{"blue"}, nil},
		{"object", "choice", map[string]any{"blue": true}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			params := map[string]any{"n": json.Number("1"), "yes": true, "choice": "red"}
			params[tt.field] = tt.value
			d, err := ask(t, c, "any.number", params)
			var bad *scopes.InvalidAsk
			if tt.want == nil && (!errors.As(err, &bad) || bad.Field != "params."+tt.field) {
				t.Errorf("got %v, want params.%s refused", err, tt.field)
			}
			if tt.want != nil && (err != nil || d.Params[tt.field] != tt.want) {
				t.Errorf("got %v (%T) and %v, want %v (%T)", d.Params[tt.field], d.Params[tt.field], err, tt.want, tt.want)
			}
		})
	}
}

// Two requests never get the same resource by moving text from one value to the next.
func TestResourceHasOneReading(t *testing.T) {
	c := anything(t)
	for _, pair := range [][2]string{{"x--y", "z"}, {"x-", "y"}, {"x--", "y"}} {
		_, err := ask(t, c, "any.pair", map[string]any{"a": pair[0], "b": pair[1]})
		if want := `params.a must not contain "--", which separates it from b in the resource`; err == nil || err.Error() != want {
			t.Errorf("%v: got %v, want %s", pair, err, want)
		}
	}
	d, err := ask(t, c, "any.pair", map[string]any{"a": "x", "b": "y--z"})
	if err != nil || d.Resource != "any:pair/x--y--z" {
		t.Errorf("got %q and %v, want any:pair/x--y--z", d.Resource, err)
	}
}

func TestResourceHasALongestName(t *testing.T) {
	value := make([]byte, 1000)
	for i := range value {
		value[i] = 'a'
	}
	_, err := ask(t, anything(t), "any.thing", map[string]any{"value": string(value)})
	if want := "params.value produces a resource that is longer than 1000 bytes"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Parameters of an unknown scope are bounded too, because the record of a denial stores them permanently.
func TestParamsAreBoundedForUnknownScopes(t *testing.T) {
	c := anything(t)
	for _, tc := range []struct {
		name   string
		params map[string]any
		field  string // of the refusal; empty if it is decided
	}{
		{"a few", map[string]any{"repo": "acme/api", "n": json.Number("3"), "b": true}, ""},
		{"as much as may be", map[string]any{"p": strings.Repeat("x", 4095)}, ""},
		{"one byte more", map[string]any{"p": strings.Repeat("x", 4096)}, "params"},
		{"a long name", map[string]any{strings.Repeat("x", 4096): "v"}, "params"},
		{"a long number", map[string]any{"p": json.Number(strings.Repeat("9", 4096))}, "params"},
		{"a list", map[string]any{"p": []any{"x"}}, "params"},
		{"an object", map[string]any{"p": map[string]any{}}, "params"},
		{"nothing", map[string]any{"p": nil}, "params"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			who := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://acme.example/research/r-1")}
			d, err := c.Decide(who, scopes.Ask{Scope: "no.such.scope", Params: tc.params, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
			var invalid *scopes.InvalidAsk
			switch {
			case tc.field == "" && (err != nil || d.Reason != scopes.ReasonUnknownScope):
				t.Errorf("got %v, %v; want a denial", d.Reason, err)
			case tc.field != "" && (!errors.As(err, &invalid) || invalid.Field != tc.field):
				t.Errorf("got %v, want %s refused", err, tc.field)
			}
		})
	}
}
