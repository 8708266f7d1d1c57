package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
)

// Problem is one error that the API returns.
type Problem struct {
	Code          string
	Status        int
	Title, Detail string
}

// reference contains openapi.yaml as pages, one for each tag, so that each page is small.
type reference struct {
	Tags  []referenceTag
	Types []shape // named types that members refer to
}

type referenceTag struct {
	Name, About string
	Operations  []operation
}

// operation is one operation of the API.
type operation struct {
	ID, Method, Path, Summary string
	Description               string
	Callers                   []string // ways to authenticate, in words; any one is enough
	Parameters                []member
	Body                      *payload // nil if there is no body
	Answers                   []payload
	Curl                      string
}

// payload is the body of a request or a response. Type is the name of a shape. It is empty if Members lists the members
// instead.
type payload struct {
	Status  string // of a response
	About   string
	Media   string
	Type    string
	Members []member
	Must    bool
}

// shape describes the JSON of a named type.
type shape struct {
	Name, About string
	Kind        kind
	Members     []member
}

// member is one parameter, or one member of a body.
type member struct {
	Name, In string
	Must     bool
	About    string
	Kind     kind
}

// kind is a type, its constraints, and the named shape that it refers to or is an array of.
type kind struct {
	Text, Of string
	Limits   []string
}

func newReference() (*reference, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Spec)
	if err != nil {
		return nil, fmt.Errorf("console: reading openapi.yaml: %w", err)
	}
	ref := &reference{}
	for _, tag := range doc.Tags {
		ref.Tags = append(ref.Tags, referenceTag{Name: tag.Name, About: tag.Description})
	}
	for _, path := range doc.Paths.InMatchingOrder() {
		item := doc.Paths.Value(path)
		for _, method := range sortedKeys(item.Operations()) {
			op := item.Operations()[method]
			i := slices.IndexFunc(ref.Tags, func(t referenceTag) bool { return slices.Contains(op.Tags, t.Name) })
			if i < 0 {
				return nil, fmt.Errorf("console: %s of openapi.yaml has no tag", op.OperationID)
			}
			parameters := append(slices.Clone(item.Parameters), op.Parameters...)
			ref.Tags[i].Operations = append(ref.Tags[i].Operations, operationOf(doc, method, path, parameters, op))
		}
	}
	for _, tag := range ref.Tags {
		slices.SortFunc(tag.Operations, func(a, b operation) int { return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method) })
	}
	for _, name := range sortedKeys(doc.Components.Schemas) {
		schema := doc.Components.Schemas[name].Value
		ref.Types = append(ref.Types, shape{name, schema.Description, kindOf(&openapi3.SchemaRef{Value: schema}), membersOf(schema)})
	}
	return ref, nil
}

func operationOf(doc *openapi3.T, method, path string, parameters openapi3.Parameters, op *openapi3.Operation) operation {
	made := operation{
		ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, Description: op.Description, Callers: callersOf(doc, op),
		Curl: curlOf(doc, method, path, parameters, op),
	}
	for _, p := range parameters {
		made.Parameters = append(made.Parameters, member{p.Value.Name, p.Value.In, p.Value.Required, p.Value.Description, kindOf(p.Value.Schema)})
	}
	if op.RequestBody != nil {
		body := payloadOf("", op.RequestBody.Value.Description, op.RequestBody.Value.Content)
		body.Must = op.RequestBody.Value.Required
		made.Body = &body
	}
	answers := op.Responses.Map()
	for _, status := range sortedKeys(answers) {
		about := ""
		if text := answers[status].Value.Description; text != nil {
			about = *text
		}
		made.Answers = append(made.Answers, payloadOf(status, about, answers[status].Value.Content))
	}
	return made
}

// payloadOf describes the first media type of a body. Responses with status 300 and above get no members: problems are the
// same everywhere, and their type describes them.
func payloadOf(status, about string, content openapi3.Content) payload {
	p := payload{Status: status, About: about}
	if len(content) == 0 {
		return p
	}
	p.Media = sortedKeys(content)[0]
	schema := content[p.Media].Schema
	if schema == nil {
		return p
	}
	p.Type = refName(schema)
	if status < "300" {
		p.Members = membersOf(schema.Value)
	}
	return p
}

// proofs describes the authentication schemes in words.
var proofs = map[string]string{"svid": "a workload with an SVID", "person": "a person with an ID token"}

func callersOf(doc *openapi3.T, op *openapi3.Operation) []string {
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
	}
	var callers []string
	for _, one := range security {
		for _, name := range sortedKeys(one) {
			callers = append(callers, cmp.Or(proofs[name], name))
		}
	}
	return callers
}

func refName(schema *openapi3.SchemaRef) string {
	name, _ := strings.CutPrefix(schema.Ref, "#/components/schemas/")
	return name
}

// membersOf returns the members of an object, or of the elements of an array.
func membersOf(schema *openapi3.Schema) []member {
	var all []member
	for _, part := range schema.AllOf {
		all = append(all, membersOf(part.Value)...)
	}
	if schema.Items != nil && refName(schema.Items) == "" {
		return membersOf(schema.Items.Value)
	}
	for _, name := range sortedKeys(schema.Properties) {
		of := schema.Properties[name]
		all = append(all, member{Name: name, Must: slices.Contains(schema.Required, name), About: of.Value.Description, Kind: kindOf(of)})
	}
	slices.SortStableFunc(all, func(a, b member) int {
		switch {
		case a.Must == b.Must:
			return 0
		case a.Must:
			return -1
		}
		return 1
	})
	return all
}

func kindOf(schema *openapi3.SchemaRef) kind {
	if schema == nil || schema.Value == nil {
		return kind{Text: "anything"}
	}
	s := schema.Value
	k := kind{Text: strings.Join(s.Type.Slice(), " or "), Of: refName(schema), Limits: limitsOf(s)}
	switch {
	case s.Items != nil:
		item := kindOf(s.Items)
		k.Text, k.Of = "array of "+item.Text, item.Of
		k.Limits = append(k.Limits, item.Limits...)
	case len(s.AllOf) == 1 && k.Of == "":
		k.Of = refName(s.AllOf[0])
	case len(s.AnyOf) > 0:
		var any []string
		for _, one := range s.AnyOf {
			any = append(any, kindOf(one).Text)
		}
		k.Text = strings.Join(any, " or ")
	}
	if k.Text == "" {
		k.Text = "object"
	}
	if s.Format != "" {
		k.Text += " (" + s.Format + ")"
	}
	return k
}

// limitsOf returns the constraints on a value, in words.
func limitsOf(s *openapi3.Schema) []string {
	var all []string
	say := func(format string, value any) { all = append(all, fmt.Sprintf(format, value)) }
	if len(s.Enum) > 0 && len(s.Enum) <= 12 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprint(v))
		}
		say("one of %s", strings.Join(values, ", "))
	}
	if s.Min != nil {
		say("at least %.0f", *s.Min)
	}
	if s.Max != nil {
		say("at most %.0f", *s.Max)
	}
	if s.MinLength > 0 {
		say("at least %d characters", s.MinLength)
	}
	if s.MaxLength != nil {
		say("at most %d characters", *s.MaxLength)
	}
	if s.Pattern != "" {
		say("matches %s", s.Pattern)
	}
	if s.MaxItems != nil {
		say("at most %d items", *s.MaxItems)
	}
	if s.MaxProps != nil {
		say("at most %d members", *s.MaxProps)
	}
	if s.Default != nil {
		say("default %v", s.Default)
	}
	return all
}

// referenceTag shows the operations with one tag.
func (c *Console) referenceTag(r *http.Request, _ *visitor) (view, error) {
	i := slices.IndexFunc(c.reference.Tags, func(t referenceTag) bool { return t.Name == chi.URLParam(r, "tag") })
	if i < 0 {
		return view{}, broker.ErrNotFound
	}
	return pageReferenceTag.view("API: "+c.reference.Tags[i].Name, c.reference.Tags[i]), nil
}

// openAPI serves openapi.yaml.
func openAPI(w http.ResponseWriter, _ *http.Request, _ *visitor) error {
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="openapi.yaml"`)
	_, _ = w.Write(openapi.Spec) // the client may have disconnected
	return nil
}

// problemsOf groups the problems with one status.
type problemsOf struct {
	Status   int
	Problems []Problem
}

func byStatus(all []Problem) []problemsOf {
	var groups []problemsOf
	for _, p := range slices.SortedStableFunc(slices.Values(all), func(a, b Problem) int { return a.Status - b.Status }) {
		if len(groups) == 0 || groups[len(groups)-1].Status != p.Status {
			groups = append(groups, problemsOf{Status: p.Status})
		}
		groups[len(groups)-1].Problems = append(groups[len(groups)-1].Problems, p)
	}
	return groups
}

// curlOf returns a curl command with the required parameters, ready to paste.
func curlOf(doc *openapi3.T, method, path string, parameters openapi3.Parameters, op *openapi3.Operation) string {
	var b strings.Builder
	b.WriteString("curl")
	if method != http.MethodGet {
		b.WriteString(" -X " + method)
	}
	var query []string
	for _, p := range parameters {
		value := fmt.Sprint(exampleOf(p.Value.Schema, 0))
		if p.Value.Example != nil {
			value = fmt.Sprint(p.Value.Example)
		}
		switch {
		case p.Value.In == openapi3.ParameterInPath:
			path = strings.ReplaceAll(path, "{"+p.Value.Name+"}", value)
		case p.Value.In == openapi3.ParameterInQuery && p.Value.Required:
			query = append(query, p.Value.Name+"="+value)
		case p.Value.In == openapi3.ParameterInHeader && p.Value.Required:
			b.WriteString(" \\\n  -H '" + p.Value.Name + ": " + value + "'")
		}
	}
	switch callers := callersOf(doc, op); {
	case slices.Contains(callers, proofs["svid"]):
		b.WriteString(" \\\n  --cert svid.pem --key svid-key.pem --cacert bundle.pem")
	case slices.Contains(callers, proofs["person"]):
		b.WriteString(" \\\n  -H \"Authorization: Bearer $ID_TOKEN\"")
	}
	if op.RequestBody != nil && len(op.RequestBody.Value.Content) > 0 {
		content := op.RequestBody.Value.Content
		media := sortedKeys(content)[0]
		var data bytes.Buffer
		encoder := json.NewEncoder(&data)
		encoder.SetEscapeHTML(false)
		switch {
		case !strings.HasSuffix(media, "json"):
			b.WriteString(" \\\n  -H 'Content-Type: " + media + "' --data-binary @-")
		case encoder.Encode(exampleOf(content[media].Schema, 0)) == nil: // examples come from YAML, so JSON can represent them
			b.WriteString(" \\\n  -H 'Content-Type: " + media + "' \\\n  -d '" + strings.TrimSpace(data.String()) + "'")
		}
	}
	if len(query) > 0 {
		path += "?" + strings.Join(query, "&")
	}
	b.WriteString(" \\\n  '" + doc.Servers[0].URL + path + "'")
	return b.String()
}

// deepest bounds the depth of examples, because types can be recursive.
const deepest = 4

// exampleOf returns the example in the description, or builds one from the required members.
func exampleOf(schema *openapi3.SchemaRef, depth int) any {
	s := schema.Value
	switch {
	case s.Example != nil:
		if at, ok := s.Example.(time.Time); ok {
			return at.Format(time.RFC3339)
		}
		return s.Example
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type.Is("integer"), s.Type.Is("number"):
		if s.Min != nil {
			return max(1, int64(*s.Min))
		}
		return int64(1)
	case s.Type.Is("boolean"):
		return true
	case s.Type.Is("array") && depth < deepest:
		return []any{exampleOf(s.Items, depth+1)}
	case len(s.Properties) > 0 && depth < deepest:
		made := map[string]any{}
		for _, name := range s.Required {
			if of := s.Properties[name]; of != nil {
				made[name] = exampleOf(of, depth+1)
			}
		}
		return made
	}
	return "…"
}
