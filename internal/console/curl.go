package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

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
	b.WriteString(proofOf(doc, op))
	if op.RequestBody != nil {
		b.WriteString(dataOf(op.RequestBody.Value.Content))
	}
	if len(query) > 0 {
		path += "?" + strings.Join(query, "&")
	}
	b.WriteString(" \\\n  '" + doc.Servers[0].URL + path + "'")
	return b.String()
}

func proofOf(doc *openapi3.T, op *openapi3.Operation) string {
	switch callers := callersOf(doc, op); {
	case slices.Contains(callers, proofs["svid"]):
		return " \\\n  --cert svid.pem --key svid-key.pem --cacert bundle.pem"
	case slices.Contains(callers, proofs["person"]):
		return " \\\n  -H \"Authorization: Bearer $ID_TOKEN\""
	}
	return ""
}

func dataOf(content openapi3.Content) string {
	if len(content) == 0 {
		return ""
	}
	media := sortedKeys(content)[0]
	if !strings.HasSuffix(media, "json") {
		return " \\\n  -H 'Content-Type: " + media + "' --data-binary @-"
	}
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(exampleOf(content[media].Schema, 0)); err != nil {
		return "" // examples come from YAML, so JSON can represent them
	}
	return " \\\n  -H 'Content-Type: " + media + "' \\\n  -d '" + strings.TrimSpace(data.String()) + "'"
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
		return max(1, int64(zeroOr(s.Min)))
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

func zeroOr(n *float64) float64 {
	if n == nil {
		return 0
	}
	return *n
}
