package scopes_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// taken are names that policies, the API, forms of OAuth or pages of the console use for something else.
var taken = []string{
	"params", "ttl", "binding", "approved", "user", "scope", "reason", "csr", "public_key", "on_behalf_of", "idempotency_key", "jkt", "digest",
	"grant_type", "client_id", "client_secret", "client_assertion", "client_assertion_type", "authorization_details", "resource", "audience",
	"subject_token", "subject_token_type", "actor_token", "actor_token_type", "requested_token_type", "auth_req_id", "token",
	"as", "svid", "groups", "explain", "name", "at", "want",
}

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
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() != reflect.String || name == "" || (options != "omitempty") != (name == "task") {
			t.Errorf("%s: want a string with a JSON name and, unless it is the task, omitempty", f.Name)
		}
		if slices.Contains(taken, name) {
			t.Errorf("%s: the name has another meaning already", name)
		}
	}
}
