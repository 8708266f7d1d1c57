package githubapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// issuesQuery is the only query that the double knows, with any white space: the titles of a repository's issues.
var issuesQuery = regexp.MustCompile(`^query\(\$name:String!\)\{repository\(owner:"([A-Za-z0-9-]+)",name:\$name\)\{issues\(first:([0-9]{1,2})\)\{nodes\{title\}\}\}\}$`)

var graphQLSpace = regexp.MustCompile(`\s*([{}():,])\s*|\s+`)

// graphQL answers as GitHub's GraphQL API: 200, with errors in the body, unless the caller is not authenticated. It answers every query
// but issuesQuery with an error.
func (s *Server) graphQL(r *http.Request, body []byte) answer {
	token, err := s.tokenOf(credentials(r))
	if err != nil {
		return s.refuse(r, err)
	}
	var ask struct {
		Query     string
		Variables struct{ Name string }
	}
	if r.Method != http.MethodPost || json.Unmarshal(body, &ask) != nil {
		return s.refuse(r, &refusal{400, "Problems parsing JSON"})
	}
	failed := func(kind, message string) answer {
		one := map[string]any{"type": kind, "path": []string{"repository"}, "locations": []any{map[string]int{"line": 1, "column": 1}}, "message": message}
		return s.graphQLAnswer(r, map[string]any{"data": map[string]any{"repository": nil}, "errors": []any{one}})
	}
	query := issuesQuery.FindStringSubmatch(strings.TrimSpace(graphQLSpace.ReplaceAllString(strings.TrimSpace(ask.Query), "$1")))
	if query == nil {
		return failed("undefinedField", "the double of GitHub does not know this query")
	}
	full := query[1] + "/" + ask.Variables.Name
	repo := s.repos[strings.ToLower(full)]
	switch {
	case repo == nil || !token.grant.covers(full):
		return failed("NOT_FOUND", "Could not resolve to a Repository with the name '"+full+"'.")
	case !allows(token.grant.Permissions, "issues", "read"):
		return failed("FORBIDDEN", "Resource not accessible by integration")
	}
	nodes := []any{}
	for _, one := range repo.issues {
		nodes = append(nodes, map[string]any{"title": one.title})
	}
	return s.graphQLAnswer(r, map[string]any{"data": map[string]any{"repository": map[string]any{"issues": map[string]any{"nodes": nodes}}}})
}

func (s *Server) graphQLAnswer(r *http.Request, value any) answer {
	body, err := json.Marshal(value)
	if err != nil {
		return s.refuse(r, err)
	}
	return answer{200, s.headers(r), body}
}
