package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/openapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// rules holds every call to openapi.yaml.
type rules struct {
	routes map[string]*routers.Route  // by operation id
	query  map[string]map[string]bool // names of query parameters, by operation id
	body   map[string]map[string]bool // names of the body's members, by operation id
	params map[string]bool            // operations whose query takes params.NAME, as their x-parameter-filters says
}

// sharedRules reads openapi.yaml once: the servers of a process share the result, which nobody changes.
var sharedRules = sync.OnceValues(readRules)

func readRules() (*rules, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Spec)
	if err != nil {
		return nil, fmt.Errorf("reading openapi.yaml: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("checking openapi.yaml: %w", err)
	}
	r := &rules{routes: map[string]*routers.Route{}, query: map[string]map[string]bool{}, body: map[string]map[string]bool{}, params: map[string]bool{}}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			r.routes[op.OperationID] = &routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: op}
			r.query[op.OperationID] = queryNames(append(slices.Clone(item.Parameters), op.Parameters...))
			r.body[op.OperationID] = memberNames(op)
			r.params[op.OperationID] = op.Extensions["x-parameter-filters"] == true
		}
	}
	return r, nil
}

// operation is the id of an operation by its method and path, "none" when there is no such.
func (ru *rules) operation(method, path string) string {
	for id, route := range ru.routes {
		if route.Method == method && route.Path == path {
			return id
		}
	}
	return "none"
}

func queryNames(parameters openapi3.Parameters) map[string]bool {
	names := map[string]bool{}
	for _, p := range parameters {
		if p.Value.In == openapi3.ParameterInQuery {
			names[p.Value.Name] = true
		}
	}
	return names
}

func memberNames(op *openapi3.Operation) map[string]bool {
	names := map[string]bool{}
	if op.RequestBody == nil {
		return names
	}
	if body := op.RequestBody.Value.Content.Get("application/json"); body != nil { // else a form, which says more than we read
		for name := range body.Schema.Value.Properties {
			names[name] = true
		}
	}
	return names
}

// check holds a call by who to the description of its operation. body has passed readBody, and is nil when there is
// none.
func (ru *rules) check(r *http.Request, who caller, operation string, body []byte) error {
	if body == nil && r.ContentLength != 0 {
		return malformed("body_unexpected")
	}
	values, err := ru.readQuery(r, operation)
	if err != nil {
		return err
	}
	input := &openapi3filter.RequestValidationInput{
		Request:     r,
		QueryParams: values,
		Route:       ru.routes[operation],
		PathParams:  ru.path(r, operation),
		Options: &openapi3filter.Options{
			SkipSettingDefaults: true,
			AuthenticationFunc: func(context.Context, *openapi3filter.AuthenticationInput) error {
				if who.IsZero() {
					return errUnauthenticated
				}
				return nil
			},
		},
	}
	if body != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return ruleError(openapi3filter.ValidateRequest(r.Context(), input))
}

// path is the values of the path's parameters.
func (ru *rules) path(r *http.Request, operation string) map[string]string {
	values := map[string]string{}
	for _, p := range ru.routes[operation].Operation.Parameters {
		if p.Value.In == openapi3.ParameterInPath {
			values[p.Value.Name] = r.PathValue(p.Value.Name)
		}
	}
	return values
}

// readQuery refuses what the validator lets pass: unknown and repeated parameters.
func (ru *rules) readQuery(r *http.Request, operation string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &requestError{kind: errParameter, detail: "query_encoding"}
	}
	for name, given := range values {
		if strings.HasPrefix(name, paramPrefix) && ru.params[operation] {
			name = "params" // the rest of it is the caller's
		} else if !ru.query[operation][name] {
			return nil, &requestError{kind: errParameter, detail: "query_unknown"}
		}
		if !utf8.ValidString(given[0]) || strings.ContainsRune(given[0], 0) {
			return nil, &requestError{kind: errParameter, field: name, detail: "query_encoding"}
		}
		if len(given) != 1 {
			return nil, &requestError{kind: errParameter, field: name, detail: "query_repeated"}
		}
	}
	return values, nil
}

// ruleError turns what the validator says into a finding that repeats nothing of the input: parameters and members
// are named only where the description names them.
func ruleError(err error) error {
	if err == nil {
		return nil
	}
	var security *openapi3filter.SecurityRequirementsError
	if errors.As(err, &security) {
		return &requestError{kind: errUnauthenticated, detail: "no_identity"}
	}
	var request *openapi3filter.RequestError
	if !errors.As(err, &request) {
		return fmt.Errorf("validating a request: %w", err)
	}
	if request.Parameter != nil {
		return &requestError{kind: errParameter, field: request.Parameter.Name, detail: "parameter_" + request.Parameter.In}
	}
	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		if pointer := schema.JSONPointer(); len(pointer) > 0 {
			return &requestError{kind: errInvalid, field: pointer[0], detail: pointer[0]}
		}
	}
	return &requestError{kind: errInvalid, detail: "body"}
}
