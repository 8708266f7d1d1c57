package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/openapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxBody is the largest body in bytes, and maxCatalogue the largest body with a catalogue. The text of errTooLarge contains
	// both.
	maxBody, maxCatalogue = 64 << 10, 8 << 20
	// maxDepth is the maximum nesting depth of a body.
	maxDepth = 32
	// maxTokens is the maximum number of names, values and brackets in a body.
	maxTokens = 2000
)

// readOrder reads the body of an operation: strict JSON that openapi.yaml allows, decoded into T. The body may be absent if
// openapi.yaml does not require one.
func readOrder[T any](s *Server, w http.ResponseWriter, r *http.Request, who caller, operation string) (T, error) {
	var out T
	var body []byte
	if r.ContentLength != 0 || s.rules.routes[operation].Operation.RequestBody.Value.Required {
		var err error
		if body, err = readBody(w, r, s.rules.body[operation], mostBytes(operation)); err != nil {
			return out, err
		}
	}
	if err := s.rules.check(r, who, operation, body); err != nil {
		return out, err
	}
	if body == nil {
		return out, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // a parameter keeps its exact digits for policy
	if err := decoder.Decode(&out); err != nil {
		return out, typeError(err)
	}
	return out, nil
}

// mostBytes returns the largest body of an operation, in bytes.
func mostBytes(operation string) int64 {
	if operation == "applyCatalogue" {
		return maxCatalogue
	}
	return maxBody
}

// typeError names the member that the validator accepts and Go's types do not, such as a TTL of 1e2 or the 31st of February.
func typeError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field == "ttl" {
		return &requestError{kind: errInvalid, field: wrong.Field, detail: wrong.Field}
	}
	var noTime *time.ParseError
	if errors.As(err, &noTime) {
		return &requestError{kind: errInvalid, field: "at", detail: "at"}
	}
	return &requestError{kind: errInvalid, detail: "body"}
}

func malformed(detail string) error { return &requestError{kind: errMalformedBody, detail: detail} }

// readBody returns the bytes of a body that is one strict JSON object with no members outside members.
func readBody(w http.ResponseWriter, r *http.Request, members map[string]bool, most int64) ([]byte, error) {
	if err := checkBodyHeaders(r, "application/json", most); err != nil {
		return nil, err
	}
	body, err := readAll(w, r, most)
	if err != nil {
		return nil, err
	}
	return body, checkObject(body, members)
}

func readAll(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &requestError{kind: errTooLarge, detail: "body_size"}
	}
	if err != nil {
		return nil, malformed("body_incomplete")
	}
	return body, nil
}

func checkBodyHeaders(r *http.Request, wanted string, most int64) error {
	// Transfer codings are used to smuggle a body past a proxy, and a body this small needs none.
	if len(r.TransferEncoding) > 0 {
		return malformed("transfer_encoding")
	}
	if len(r.Header.Values("Content-Encoding")) > 0 {
		return &requestError{kind: errMediaType, detail: "content_encoding"}
	}
	types := r.Header.Values("Content-Type")
	if len(types) != 1 {
		return &requestError{kind: errMediaType, detail: "content_type"}
	}
	mediaType, params, err := mime.ParseMediaType(types[0])
	if err != nil || mediaType != wanted {
		return &requestError{kind: errMediaType, detail: "content_type"}
	}
	for name, value := range params {
		if name != "charset" || !strings.EqualFold(value, "utf-8") {
			return &requestError{kind: errMediaType, detail: "content_type"}
		}
	}
	if r.ContentLength > most {
		return &requestError{kind: errTooLarge, detail: "body_size"}
	}
	return nil
}

// checkObject accepts exactly one JSON object (RFC 7493: no duplicate names, valid UTF-8, no lone surrogates) of bounded depth
// and size. The object must not contain NUL, and its top-level members must all be in members.
func checkObject(body []byte, members map[string]bool) error {
	if !utf8.Valid(body) {
		return malformed("utf8")
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if d.PeekKind() != '{' {
		return malformed("not_an_object")
	}
	for tokens := 1; ; tokens++ {
		token, err := d.ReadToken()
		switch {
		case err != nil:
			return syntaxError(err)
		case d.StackDepth() == 0:
			return checkEnd(d)
		case d.StackDepth() > maxDepth:
			return malformed("too_deep")
		case tokens > maxTokens:
			return malformed("too_many_tokens")
		case token.Kind() != '"':
			continue
		}
		text := token.String()
		if strings.ContainsRune(text, 0) {
			return malformed("nul_character")
		}
		// After the name of a member, the object has seen an odd number of names and values.
		if _, n := d.StackIndex(d.StackDepth()); d.StackDepth() == 1 && n%2 == 1 && !members[text] {
			return malformed("unknown_member")
		}
	}
}

func checkEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return malformed("trailing_data")
	}
	return nil
}

func syntaxError(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return malformed("duplicate_member")
	}
	return malformed("syntax")
}

// rules validates every call against openapi.yaml.
type rules struct {
	routes map[string]*routers.Route  // by operation id
	query  map[string]map[string]bool // names of query parameters, by operation id
	body   map[string]map[string]bool // names of the body's members, by operation id
	params map[string]bool            // operations whose query accepts params.NAME, by their x-parameter-filters
}

// sharedRules reads openapi.yaml once. All servers of a process share the result, which is read-only.
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

// operation returns the id of the operation with that method and path, or "none" if there is none.
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
	if body := op.RequestBody.Value.Content.Get("application/json"); body != nil { // else a form, which allows unknown members
		for name := range body.Schema.Value.Properties {
			names[name] = true
		}
	}
	return names
}

// check validates a call by who against the description of its operation. body has passed readBody; it is nil if the call has
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

// path returns the values of the path parameters.
func (ru *rules) path(r *http.Request, operation string) map[string]string {
	values := map[string]string{}
	for _, p := range ru.routes[operation].Operation.Parameters {
		if p.Value.In == openapi3.ParameterInPath {
			values[p.Value.Name] = r.PathValue(p.Value.Name)
		}
	}
	return values
}

// readQuery refuses what the validator accepts: unknown and repeated parameters.
func (ru *rules) readQuery(r *http.Request, operation string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &requestError{kind: errParameter, detail: "query_encoding"}
	}
	for name, given := range values {
		if strings.HasPrefix(name, paramPrefix) && ru.params[operation] {
			name = "params" // the caller chooses the rest of the name
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

// ruleError turns an error of the validator into a requestError that repeats nothing of the input: it names only parameters and
// members that the description names.
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
