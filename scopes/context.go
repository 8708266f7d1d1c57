package scopes

import (
	"reflect"
	"slices"
	"strings"
)

// RequestContext is what a sandbox states about a request besides the action that it asks for. The sandbox chooses the values and
// proves none of them. So a policy can use them to permit less, and must not take them for an identity.
//
// Each field is a string with a JSON name. Policies read it as context.<name>, where "" means that the sandbox stated nothing. A
// value has the syntax of a task. Every field but the task has omitempty, so that a request without it keeps its digest. Everything
// that carries a request embeds RequestContext or compares it as a whole: the API, the record, what approvers see, the request
// digest, redemption, token exchange, replay and the verifier. CONTRIBUTING.md lists what a new field needs besides.
type RequestContext struct {
	Task string `json:"task"`
}

// ContextField is one field of a RequestContext.
type ContextField struct{ Name, Value string }

// Label returns the name for people.
func (f ContextField) Label() string {
	return strings.ToUpper(f.Name[:1]) + strings.ReplaceAll(f.Name[1:], "_", " ")
}

// Fields returns all fields, in the order in which people see them.
func (c RequestContext) Fields() []ContextField {
	fields, v := make([]ContextField, len(contextNames)), reflect.ValueOf(c)
	for i, name := range contextNames {
		fields[i] = ContextField{name, v.Field(i).String()}
	}
	return fields
}

// Stated returns the values that are not empty, by name.
func (c RequestContext) Stated() map[string]string {
	stated := map[string]string{}
	for _, f := range c.Fields() {
		if f.Value != "" {
			stated[f.Name] = f.Value
		}
	}
	return stated
}

// Set sets the field of that name. It does nothing if there is none.
func (c *RequestContext) Set(name, value string) {
	if i := slices.Index(contextNames, name); i >= 0 {
		reflect.ValueOf(c).Elem().Field(i).SetString(value)
	}
}

// contextNames are the JSON names of the fields.
var contextNames = func() []string {
	var names []string
	for f := range reflect.TypeFor[RequestContext]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}()
