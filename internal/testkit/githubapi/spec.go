package githubapi

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// specification is what spec/extract.mjs takes from GitHub's OpenAPI description.
//
//go:embed spec/github.json
var specification []byte

// document returns GitHub's description of the operations that the double has.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(specification)
	if err != nil {
		return nil, fmt.Errorf("reading GitHub's description: %w", err)
	}
	return doc, nil
})

// routeOf returns the published operation of a path such as /repos/{owner}/{repo}.
func routeOf(doc *openapi3.T, method, path string) (*routers.Route, error) {
	item := doc.Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		return nil, fmt.Errorf("GitHub's description has no %s %s", method, path)
	}
	return &routers.Route{
		Spec: doc, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method),
		Server: &openapi3.Server{URL: "/"},
	}, nil
}

// checked is a request that GitHub's description allows.
type checked struct {
	input *openapi3filter.RequestValidationInput
}

// checkRequest compares a request with the description. It leaves the body readable.
func checkRequest(ctx context.Context, r *http.Request, route *routers.Route, params map[string]string) (checked, error) {
	// GitHub reads a body without a content type, or with that of a form, as JSON.
	asJSON := r.Clone(ctx)
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return checked{}, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	asJSON.Body = io.NopCloser(bytes.NewReader(body))
	asJSON.ContentLength = int64(len(body))
	if len(body) > 0 {
		asJSON.Header.Set("Content-Type", "application/json")
	}
	input := &openapi3filter.RequestValidationInput{
		Request: asJSON, Route: route, PathParams: params, QueryParams: r.URL.Query(),
		Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	return checked{input}, openapi3filter.ValidateRequest(ctx, input)
}

// checkAnswer compares an answer with the description.
func checkAnswer(ctx context.Context, asked checked, status int, header http.Header, body []byte) error {
	return openapi3filter.ValidateResponse(ctx, &openapi3filter.ResponseValidationInput{
		RequestValidationInput: asked.input, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{},
	})
}

// example returns a fresh copy of an example of the description, in the name of another repository. The description's examples are
// of octocat/Hello-World.
func (s *Server) example(name, owner, repo string) map[string]any {
	var text []byte
	if found, ok := s.doc.Components.Examples[name]; ok {
		text, _ = json.Marshal(found.Value.Value)
	}
	if len(text) == 0 {
		panic("GitHub's description has no example " + name)
	}
	named := strings.NewReplacer("octocat/Hello-World", owner+"/"+repo, "Hello-World", repo, "octocat", owner, "github/octocat", owner+"/"+repo).Replace(string(text))
	var value any
	if err := json.Unmarshal([]byte(named), &value); err != nil {
		panic(err)
	}
	switch value := value.(type) {
	case map[string]any:
		return value
	case []any:
		return value[0].(map[string]any)
	}
	panic("the example " + name + " is no object")
}
