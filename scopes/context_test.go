package scopes_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// TestPoliciesReadEveryContextField checks that a policy can decide by each field of the request context, that its value has the
// syntax of a task, and that its JSON form is the one of the API and of the record.
func TestPoliciesReadEveryContextField(t *testing.T) {
	for i, field := range (scopes.RequestContext{}).Fields() {
		files := []scopes.File{{Name: "s.yaml", Data: []byte(`
scopes:
  - name: clock.read
    title: Read the clock
    authority: read
    resource: clock:utc
    credential: {kind: jwt, audience: https://clock.example}
    ttl: {default: 1m, max: 1m}
`)}, {Name: "p.cedar", Data: []byte(`@id("stated") permit (principal, action, resource) when { context.` + field.Name + ` == "stated" };`)}}
		c, err := scopes.Load(files)
		if err != nil {
			t.Fatalf("%s: %v", field.Name, err)
		}
		who := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://td.example/a"), Expires: testscopes.Noon.AddDate(1, 0, 0), Bound: true}
		ask := scopes.Ask{Scope: "clock.read", RequestContext: scopes.RequestContext{Task: "t"}}
		for value, want := range map[string]scopes.Outcome{"stated": scopes.Allow, "other": scopes.Deny, "no spaces": scopes.Invalid} {
			ask.Set(field.Name, value)
			got := scopes.Invalid
			if d, err := c.Decide(who, ask, testscopes.Noon); err == nil {
				got = d.Outcome
			}
			if got != want {
				t.Errorf("%s %q: got %s, want %s", field.Name, value, got, want)
			}
		}
		var decoded scopes.RequestContext
		if err := json.Unmarshal([]byte(`{"`+field.Name+`":"x"}`), &decoded); err != nil || decoded.Fields()[i].Value != "x" {
			t.Errorf("%s: got %+v, %v from JSON", field.Name, decoded, err)
		}
	}
	for f := range reflect.TypeFor[scopes.RequestContext]().Fields() {
		if f.Type.Kind() != reflect.String || f.Tag.Get("json") == "" {
			t.Errorf("%s: want a string with a JSON name", f.Name)
		}
	}
}
