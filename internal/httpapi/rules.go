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
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	// maxBody is the largest body in bytes, and maxCatalogue the largest body with a catalogue. The text of errTooLarge contains
	// both.
	maxBody, maxCatalogue = 64 << 10, 8 << 20
	// maxDepth is the maximum nesting depth of a body, and maxTokens its maximum number of names, values and brackets.
	maxDepth, maxTokens = 32, 2000
	// maxCallTokens is maxTokens for a report of calls: 128 rows of at most 40 each.
	maxCallTokens = 6000
	// maxReason and maxKey are the maximum length of a reason and of a key that the caller sends, in bytes. openapi.yaml can only
	// count characters.
	maxReason, maxKey = 1000, 8 << 10
	// maxIdempotencyKey is the maximum length of an idempotency key in characters, without quotes.
	maxIdempotencyKey = 255
)

// readOrder reads the body of an operation: strict JSON that openapi.yaml allows, decoded into T. The body may be absent if
// openapi.yaml does not require one.
//
// The text is parsed twice: into a tree, which the strict rules and the schema need, and into T. There is no decoder from a tree
// to a struct, and writing one would cost more than the second pass does.
func readOrder[T any](s *Server, w http.ResponseWriter, r *http.Request, who caller) (T, error) {
	var out T
	operation := callOf(r).operation
	rule, most, tokens := s.rules[operation], int64(maxBody), maxTokens
	switch operation {
	case "applyCatalogue":
		most = maxCatalogue
	case "reportCalls":
		tokens = maxCallTokens
	}
	var body []byte
	var object map[string]any
	if r.ContentLength != 0 || rule.Operation.RequestBody.Value.Required {
		err := checkBodyHeaders(r, "application/json", most)
		if err == nil {
			body, err = readAll(w, r, most)
		}
		if err == nil {
			object, err = parseObject(body, rule.members, tokens)
		}
		if err != nil {
			return out, err
		}
	}
	if err := s.rules.check(r, who, object); err != nil || object == nil {
		return out, err
	}
	err := strict.Unmarshal(body, &out, exactNumbers)
	if err == nil {
		return out, nil
	}
	// The schema accepts values that Go's types do not, such as a TTL of 1e2 or the 31st of February.
	if wrong, ok := errors.AsType[*strict.SemanticError](err); ok && wrong.JSONPointer == "/ttl" {
		return out, invalid("ttl")
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok && rule.members["at"] {
		return out, invalid("at")
	}
	return out, &requestError{kind: errInvalid, detail: "body"}
}

// exactNumbers makes a number in a parameter keep its digits for policy.
var exactNumbers = strict.WithUnmarshalers(strict.UnmarshalFromFunc(func(d *jsontext.Decoder, v *any) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported // use the default
	}
	text, err := d.ReadValue()
	*v = json.Number(text)
	return err
}))

func checkBodyHeaders(r *http.Request, wanted string, most int64) error {
	// Transfer codings are used to smuggle a body past a proxy, and a body this small needs none.
	if len(r.TransferEncoding) > 0 {
		return malformed("transfer_encoding")
	}
	if len(r.Header.Values("Content-Encoding")) > 0 {
		return &requestError{kind: errMediaType, detail: "content_encoding"}
	}
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset, ok := params["charset"]; ok && strings.EqualFold(charset, "utf-8") {
		delete(params, "charset")
	}
	if len(r.Header.Values("Content-Type")) != 1 || err != nil || mediaType != wanted || len(params) > 0 {
		return &requestError{kind: errMediaType, detail: "content_type"}
	}
	if r.ContentLength > most {
		return &requestError{kind: errTooLarge, detail: "body_size"}
	}
	return nil
}

func readAll(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &requestError{kind: errTooLarge, detail: "body_size"}
	}
	if err != nil {
		return nil, malformed("body_incomplete")
	}
	return body, nil
}

// parseObject returns the one JSON object in body (RFC 7493: no duplicate names, valid UTF-8, no lone surrogates), of bounded
// depth and number of tokens. The object must not contain NUL, and its top-level members must all be in members. A number keeps its
// digits.
func parseObject(body []byte, members map[string]bool, tokens int) (map[string]any, error) {
	if !utf8.Valid(body) {
		return nil, malformed("utf8")
	}
	p := parser{Decoder: jsontext.NewDecoder(bytes.NewBuffer(body)), members: members, most: tokens}
	if p.PeekKind() != '{' {
		return nil, malformed("not_an_object")
	}
	value, err := p.value()
	if err != nil {
		return nil, err
	}
	if _, err := p.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, malformed("trailing_data")
	}
	return value.(map[string]any), nil
}

// parser reads JSON values and counts their tokens.
type parser struct {
	*jsontext.Decoder
	members map[string]bool
	tokens  int // read so far
	most    int
}

// value reads the next value: nil, a bool, a string, a json.Number, a []any or a map[string]any.
func (p *parser) value() (any, error) {
	token, err := p.token()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
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
	case '[':
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
	case errors.Is(err, jsontext.ErrDuplicateName):
		return token, malformed("duplicate_member")
	case err != nil:
		return token, malformed("syntax")
	case p.StackDepth() > maxDepth:
		return token, malformed("too_deep")
	case p.tokens > p.most:
		return token, malformed("too_many_tokens")
	}
	return token, nil
}

func text(token jsontext.Token) (string, error) {
	text := token.String()
	if strings.ContainsRune(text, 0) {
		return "", malformed("nul_character")
	}
	return text, nil
}

// rules describe every operation of openapi.yaml, by operation id.
type rules map[string]*rule

type rule struct {
	routers.Route
	query   map[string]bool // names of query parameters
	members map[string]bool // names of the members of a JSON body; a form allows unknown members
	filters bool            // whether the query accepts params.NAME, by x-parameter-filters
}

// sharedRules reads openapi.yaml once. All servers of a process share the result, which is read-only.
var sharedRules = sync.OnceValues(func() (rules, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Spec)
	if err != nil {
		return nil, fmt.Errorf("reading openapi.yaml: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("checking openapi.yaml: %w", err)
	}
	all := rules{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			ru := &rule{
				Route: routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: op},
				query: map[string]bool{}, members: map[string]bool{}, filters: op.Extensions["x-parameter-filters"] == true,
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == openapi3.ParameterInQuery {
					ru.query[p.Value.Name] = true
				}
			}
			if op.RequestBody != nil {
				if body := op.RequestBody.Value.Content.Get("application/json"); body != nil {
					for name := range body.Schema.Value.Properties {
						ru.members[name] = true
					}
				}
			}
			all[op.OperationID] = ru
		}
	}
	return all, nil
})

// check validates a call by who against the description of its operation. body is what parseObject returned, or nil if the call
// has none. An error repeats nothing of the input: it names only parameters and members that the description names.
func (all rules) check(r *http.Request, who caller, body map[string]any) error {
	if body == nil && r.ContentLength != 0 {
		return malformed("body_unexpected")
	}
	ru := all[callOf(r).operation]
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &requestError{kind: errParameter, detail: "query_encoding"}
	}
	for name, given := range query { // the validator accepts unknown and repeated parameters
		if strings.HasPrefix(name, paramPrefix) && ru.filters {
			name = "params" // the caller chooses the rest of the name
		} else if !ru.query[name] {
			return &requestError{kind: errParameter, detail: "query_unknown"}
		}
		if !utf8.ValidString(given[0]) || strings.ContainsRune(given[0], 0) {
			return &requestError{kind: errParameter, field: name, detail: "query_encoding"}
		}
		if len(given) != 1 {
			return &requestError{kind: errParameter, field: name, detail: "query_repeated"}
		}
	}
	path := map[string]string{}
	for _, p := range ru.Operation.Parameters {
		if p.Value.In == openapi3.ParameterInPath {
			path[p.Value.Name] = r.PathValue(p.Value.Name)
		}
	}
	err = openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request:     r,
		QueryParams: query,
		Route:       &ru.Route,
		PathParams:  path,
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
		err = ru.Operation.RequestBody.Value.Content.Get("application/json").Schema.Value.VisitJSON(body, openapi3.VisitAsRequest())
	}
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*openapi3filter.SecurityRequirementsError](err); ok {
		return &requestError{kind: errUnauthenticated, detail: "no_identity"}
	}
	request, inRequest := errors.AsType[*openapi3filter.RequestError](err)
	schema, inSchema := errors.AsType[*openapi3.SchemaError](err)
	switch {
	case inRequest && request.Parameter != nil:
		return &requestError{kind: errParameter, field: request.Parameter.Name, detail: "parameter_" + request.Parameter.In}
	case inRequest || !inSchema:
		return fmt.Errorf("validating a request: %w", err)
	}
	if pointer := schema.JSONPointer(); len(pointer) > 0 {
		return invalid(pointer[0])
	}
	return &requestError{kind: errInvalid, detail: "body"}
}

// checkID is check for a call without a body whose path contains an id. Malformed, unknown and foreign ids get the same error.
func (all rules) checkID(r *http.Request, who caller, id string) error {
	if !ourID(id) {
		return unknown("id")
	}
	return all.check(r, who, nil)
}

// ourID reports whether an id is a UUID in the form that Brevet writes.
func ourID(id string) bool {
	parsed, err := uuid.Parse(id)
	return err == nil && parsed.String() == id
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

// checkText limits the length of a caller's free text in bytes, and refuses text that contains a secret (H82).
func checkText(field, text string) error {
	switch {
	case len(text) > maxReason:
		return invalid(field)
	case secret.Shaped(text):
		return &requestError{
			kind: errInvalid, field: field, detail: field + "_secret",
			why: "The text appears to contain a secret, and records are permanent. It was not stored. Send it without the secret.",
		}
	}
	return nil
}

// checkKeys limits the length of the caller's keys in bytes.
func checkKeys(csr, publicKey string) error {
	switch {
	case len(csr) > maxKey:
		return invalid("csr")
	case len(publicKey) > maxKey:
		return invalid("public_key")
	}
	return nil
}

// quotedKey matches a string of RFC 8941, and unescape replaces its escapes.
var (
	quotedKey = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)
	unescape  = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// idempotencyKey reads the value of the header: printable ASCII, or the same as a string of RFC 8941 (in double quotes, with a
// backslash before quotes and backslashes). Both spellings are the same key. It returns "" if the caller sent no key.
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		quoted := quotedKey.FindStringSubmatch(key)
		if quoted == nil {
			key = "" // invalid, like an empty key
		} else {
			key = unescape.Replace(quoted[1])
		}
	}
	unprintable := func(c rune) bool { return c < ' ' || c > '~' }
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, unprintable) {
		return "", &requestError{kind: errParameter, field: "Idempotency-Key", detail: "idempotency_key"}
	}
	return key, nil
}

func malformed(detail string) error { return &requestError{kind: errMalformedBody, detail: detail} }

// invalid names the member of the body that is invalid.
func invalid(field string) error { return &requestError{kind: errInvalid, field: field, detail: field} }

// badQuery names the query parameter that is invalid.
func badQuery(field string) error {
	return &requestError{kind: errParameter, field: field, detail: "parameter_query"}
}

// unknown says for the record what was not found.
func unknown(detail string) error { return &requestError{kind: broker.ErrNotFound, detail: detail} }

// notFound adds to ErrNotFound what was not found, for the record. It returns other errors unchanged.
func notFound(err error, detail string) error {
	if errors.Is(err, broker.ErrNotFound) {
		return unknown(detail)
	}
	return err
}
