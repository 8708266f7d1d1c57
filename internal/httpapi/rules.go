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

	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
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
	var object map[string]any
	if r.ContentLength != 0 || s.rules.routes[operation].Operation.RequestBody.Value.Required {
		var err error
		if body, object, err = readBody(w, r, s.rules.body[operation], mostBytes(operation)); err != nil {
			return out, err
		}
	}
	if err := s.rules.check(r, who, operation, object); err != nil || object == nil {
		return out, err
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

// readBody reads a body that is one strict JSON object with no members outside members. It returns the bytes and the object.
func readBody(w http.ResponseWriter, r *http.Request, members map[string]bool, most int64) ([]byte, map[string]any, error) {
	if err := checkBodyHeaders(r, "application/json", most); err != nil {
		return nil, nil, err
	}
	body, err := readAll(w, r, most)
	if err != nil {
		return nil, nil, err
	}
	object, err := parseObject(body, members)
	return body, object, err
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

// parseObject returns the one JSON object in body (RFC 7493: no duplicate names, valid UTF-8, no lone surrogates), of bounded
// depth and size. The object must not contain NUL, and its top-level members must all be in members. A number keeps its digits.
func parseObject(body []byte, members map[string]bool) (map[string]any, error) {
	if !utf8.Valid(body) {
		return nil, malformed("utf8")
	}
	p := parser{Decoder: jsontext.NewDecoder(bytes.NewReader(body)), members: members}
	if p.PeekKind() != '{' {
		return nil, malformed("not_an_object")
	}
	value, err := p.value()
	if err != nil {
		return nil, err
	}
	return value.(map[string]any), checkEnd(p.Decoder)
}

// parser reads JSON values and counts their tokens.
type parser struct {
	*jsontext.Decoder
	members map[string]bool
	tokens  int
}

// value reads the next value: nil, a bool, a string, a json.Number, a []any or a map[string]any.
func (p *parser) value() (any, error) {
	token, err := p.token()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return p.object()
	case '[':
		return p.array()
	case '"':
		return text(token)
	case '0':
		return json.Number(token.String()), nil
	case 't', 'f':
		return token.Bool(), nil
	default:
		return nil, nil //nolint:nilnil // the JSON value null
	}
}

func (p *parser) token() (jsontext.Token, error) {
	token, err := p.ReadToken()
	p.tokens++
	switch {
	case err != nil:
		return token, syntaxError(err)
	case p.StackDepth() > maxDepth:
		return token, malformed("too_deep")
	case p.tokens > maxTokens:
		return token, malformed("too_many_tokens")
	}
	return token, nil
}

func (p *parser) object() (any, error) {
	object := map[string]any{}
	for {
		token, err := p.token()
		if err != nil || token.Kind() == '}' {
			return object, err
		}
		name, err := text(token)
		if err != nil {
			return nil, err
		}
		if p.StackDepth() == 1 && !p.members[name] {
			return nil, malformed("unknown_member")
		}
		if object[name], err = p.value(); err != nil {
			return nil, err
		}
	}
}

func (p *parser) array() (any, error) {
	array := []any{}
	for p.PeekKind() != ']' {
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	_, err := p.token()
	return array, err
}

func text(token jsontext.Token) (string, error) {
	text := token.String()
	if strings.ContainsRune(text, 0) {
		return "", malformed("nul_character")
	}
	return text, nil
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

// check validates a call by who against the description of its operation. body is what readBody returned, or nil if the call has
// none.
func (ru *rules) check(r *http.Request, who caller, operation string, body map[string]any) error {
	if body == nil && r.ContentLength != 0 {
		return malformed("body_unexpected")
	}
	values, err := ru.readQuery(r, operation)
	if err != nil {
		return err
	}
	route := ru.routes[operation]
	err = openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request:     r,
		QueryParams: values,
		Route:       route,
		PathParams:  ru.path(r, operation),
		Options: &openapi3filter.Options{
			SkipSettingDefaults: true,
			ExcludeRequestBody:  true, // checked below, without reading it again
			AuthenticationFunc: func(context.Context, *openapi3filter.AuthenticationInput) error {
				if who.IsZero() {
					return errUnauthenticated
				}
				return nil
			},
		},
	})
	if err == nil && body != nil {
		schema := route.Operation.RequestBody.Value.Content.Get("application/json").Schema.Value
		err = schema.VisitJSON(body, openapi3.VisitAsRequest())
	}
	return ruleError(err)
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
	var schema *openapi3.SchemaError
	var request *openapi3filter.RequestError
	switch {
	case errors.As(err, &request) && request.Parameter != nil:
		return &requestError{kind: errParameter, field: request.Parameter.Name, detail: "parameter_" + request.Parameter.In}
	case request != nil || !errors.As(err, &schema):
		return fmt.Errorf("validating a request: %w", err)
	}
	if pointer := schema.JSONPointer(); len(pointer) > 0 {
		return &requestError{kind: errInvalid, field: pointer[0], detail: pointer[0]}
	}
	return &requestError{kind: errInvalid, detail: "body"}
}

// badIdentity returns the name of the first of the three filters that is set and invalid, or "".
func badIdentity(id, prefix, trustDomain string) string {
	if id != "" {
		if parsed, err := spiffeid.FromString(id); err != nil || parsed.Path() == "" {
			return "spiffe_id"
		}
	}
	if prefix != "" {
		if _, err := spiffeid.FromString(prefix); err != nil {
			return "spiffe_id_prefix"
		}
	}
	if trustDomain != "" {
		if td, err := spiffeid.TrustDomainFromString(trustDomain); err != nil || td.Name() != trustDomain {
			return "trust_domain"
		}
	}
	return ""
}

// ourID reports whether an id is a UUID in the form that Brevet writes.
func ourID(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
}

func checkReason(reason string) error { return checkText("reason", reason) }

// checkText limits the length of a caller's free text in bytes, and refuses text that contains a secret (H82).
func checkText(field, text string) error {
	switch {
	case len(text) > maxReason:
		return &requestError{kind: errInvalid, field: field, detail: field}
	case secret.Shaped(text):
		return &requestError{
			kind: errInvalid, field: field, detail: field + "_secret",
			why: "The text appears to contain a secret, and records are permanent. It was not stored. Send it without the secret.",
		}
	}
	return nil
}

// maxReason and maxKey are the maximum length of a reason and of a key that the caller sends, in bytes. openapi.yaml can only
// count characters.
const maxReason, maxKey = 1000, 8 << 10

// checkKeys limits the length of the caller's keys in bytes.
func checkKeys(csr, publicKey string) error {
	for _, key := range []struct{ member, text string }{{"csr", csr}, {"public_key", publicKey}} {
		if len(key.text) > maxKey {
			return &requestError{kind: errInvalid, field: key.member, detail: key.member}
		}
	}
	return nil
}

// maxIdempotencyKey is the maximum length of a key in characters, without quotes.
const maxIdempotencyKey = 255

// idempotencyKey reads the value of the header: printable ASCII, or the same as a string of RFC 8941 (in double quotes, with a
// backslash before quotes and backslashes). Both spellings are the same key. It returns "" if the caller sent no key.
func idempotencyKey(r *http.Request) (string, error) {
	bad := &requestError{kind: errParameter, field: "Idempotency-Key", detail: "idempotency_key"}
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		unquoted, ok := unquote(key)
		if !ok {
			return "", bad
		}
		key = unquoted
	}
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey {
		return "", bad
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", bad
		}
	}
	return key, nil
}

func unquote(s string) (string, bool) {
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return "", false
	}
	var b strings.Builder
	inner := s[1 : len(s)-1]
	for i := 0; i < len(inner); i++ {
		switch inner[i] {
		case '"':
			return "", false
		case '\\':
			i++
			if i == len(inner) || (inner[i] != '"' && inner[i] != '\\') {
				return "", false
			}
		}
		b.WriteByte(inner[i])
	}
	return b.String(), true
}
