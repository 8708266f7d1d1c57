package httpapi

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/getkin/kin-openapi/openapi3"
)

// TestTokenRequestHasTheMembersOfTheAPI checks that openapi.yaml accepts exactly what the handler reads, and that the form of
// the token endpoint has the same request context.
func TestTokenRequestHasTheMembersOfTheAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(maps.Keys(doc.Components.Schemas["TokenRequest"].Value.Properties))
	if got := slices.Sorted(slices.Values(members(reflect.TypeFor[tokenRequest]()))); !slices.Equal(got, want) {
		t.Errorf("the handler reads %q, openapi.yaml has %q", got, want)
	}
	for _, f := range (scopes.RequestContext{}).Fields() {
		if doc.Components.Schemas["TokenForm"].Value.AllOf[1].Value.Properties[f.Name] == nil {
			t.Errorf("the token endpoint reads %q, and TokenForm in openapi.yaml does not have it", f.Name)
		}
	}
}

func members(of reflect.Type) []string {
	var names []string
	for f := range of.Fields() {
		if f.Anonymous {
			names = append(names, members(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
