package githubapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// authentication is how a caller of an operation has to authenticate.
type authentication int

const (
	byAnybody authentication = iota
	byApp
	byToken
)

// operation is an operation of the REST API. Its path is that of GitHub's description.
type operation struct {
	method, path string
	auth         authentication
	// permission and level are those of "Permissions required for GitHub Apps".
	permission, level string
	run               func(*Server, *question) (int, any, error)
}

// question is a request of the REST API whose caller may make it.
type question struct {
	r         *http.Request
	params    map[string]string
	body      []byte
	behaviour Behaviour
	app       App
	token     *issued
	repo      *repository
	header    http.Header // of the answer
}

func (q *question) read(into any) error {
	if err := json.Unmarshal(q.body, into); err != nil {
		return &refusal{400, "Problems parsing JSON"}
	}
	return nil
}

var operations = []operation{
	{"GET", "/", byAnybody, "", "", (*Server).getRoot},
	{"GET", "/meta", byAnybody, "", "", (*Server).getMeta},
	{"GET", "/rate_limit", byAnybody, "", "", (*Server).getRateLimit},
	{"GET", "/user", byToken, "users", "none", nil}, // no installation token can
	{"GET", "/app", byApp, "", "", (*Server).getApp},
	{"GET", "/app/installations", byApp, "", "", (*Server).listInstallations},
	{"GET", "/app/installations/{installation_id}", byApp, "", "", (*Server).getInstallation},
	{"GET", "/repos/{owner}/{repo}/installation", byApp, "", "", (*Server).getRepoInstallation},
	{"POST", "/app/installations/{installation_id}/access_tokens", byApp, "", "", (*Server).createToken},
	{"DELETE", "/installation/token", byToken, "", "", (*Server).deleteToken},
	{"GET", "/installation/repositories", byToken, "metadata", "read", (*Server).listRepositories},
	{"GET", "/repos/{owner}/{repo}", byToken, "metadata", "read", (*Server).getRepository},
	{"GET", "/repos/{owner}/{repo}/contents/{path}", byToken, "contents", "read", (*Server).getContents},
	{"PUT", "/repos/{owner}/{repo}/contents/{path}", byToken, "contents", "write", (*Server).putContents},
	{"GET", "/repos/{owner}/{repo}/issues", byToken, "issues", "read", (*Server).listIssues},
	{"POST", "/repos/{owner}/{repo}/issues", byToken, "issues", "write", (*Server).createIssue},
	{"GET", "/repos/{owner}/{repo}/issues/{issue_number}", byToken, "issues", "read", (*Server).getIssue},
	{"PATCH", "/repos/{owner}/{repo}/issues/{issue_number}", byToken, "issues", "write", (*Server).updateIssue},
	{"GET", "/repos/{owner}/{repo}/issues/{issue_number}/comments", byToken, "issues", "read", (*Server).listComments},
	{"POST", "/repos/{owner}/{repo}/issues/{issue_number}/comments", byToken, "issues", "write", (*Server).createComment},
	{"GET", "/repos/{owner}/{repo}/pulls", byToken, "pull_requests", "read", (*Server).listPulls},
}

// match returns the parameters of a path, if it is one of the operation. The parameter path takes the rest.
func (o operation) match(path string) (map[string]string, bool) {
	want, got := strings.Split(o.path, "/"), strings.Split(path, "/")
	params := map[string]string{}
	for i, part := range want {
		if i >= len(got) {
			return nil, false
		}
		name, isParam := strings.CutPrefix(part, "{")
		name = strings.TrimSuffix(name, "}")
		switch {
		case name == "path" && isParam:
			params[name] = strings.Join(got[i:], "/")
			return params, true
		case isParam && got[i] != "":
			params[name] = got[i]
		case part != got[i]:
			return nil, false
		}
	}
	return params, len(want) == len(got)
}

// rest answers a request of the REST API, and compares request and answer with GitHub's description. The caller holds the lock.
func (s *Server) rest(r *http.Request, body []byte, b Behaviour, call *Call) answer {
	var params map[string]string
	at := slices.IndexFunc(operations, func(o operation) bool {
		found, ok := o.match(hostRest(r))
		params = found
		return ok && o.method == r.Method
	})
	if at < 0 {
		return s.refuse(r, errNotFound)
	}
	op := operations[at]
	route, err := routeOf(s.doc, op.method, op.path)
	if err != nil {
		return s.refuse(r, err)
	}
	call.Operation = route.Operation.OperationID
	q := &question{r: r, params: params, body: body, behaviour: b, header: http.Header{}}
	asked, invalid := checkRequest(r.Context(), r, route, params)
	if invalid != nil {
		call.Problem = invalid.Error()
	}
	status, value, err := s.operate(op, q, invalid)
	var out answer
	if err != nil {
		out = s.refuse(r, err)
	} else {
		out = s.encode(q, status, value)
	}
	if err := checkAnswer(r.Context(), asked, out.status, out.header, out.body); err != nil {
		s.violations = append(s.violations, fmt.Sprintf("%s %s: status %d: %v", r.Method, r.URL.Path, out.status, err))
	}
	return out
}

func (s *Server) operate(op operation, q *question, invalid error) (int, any, error) {
	if version := q.r.Header.Get("X-GitHub-Api-Version"); version != "" && version != apiVersion {
		return 0, nil, &refusal{400, fmt.Sprintf("%q is not a supported version.", version)}
	}
	if err := s.authorize(op, q); err != nil {
		return 0, nil, err
	}
	if invalid != nil {
		return 0, nil, &refusal{422, "Invalid request."}
	}
	return op.run(s, q)
}

// authorize checks who calls, and whether the token is for the repository and has the permission.
func (s *Server) authorize(op operation, q *question) error {
	var err error
	switch op.auth {
	case byApp:
		q.app, err = s.appOf(q.r)
		return err
	case byAnybody:
		if text := credentials(q.r); text != "" {
			q.token, err = s.tokenOf(text)
		}
		return err
	case byToken:
	}
	named := q.params["repo"] != ""
	if q.token, err = s.tokenOf(credentials(q.r)); err != nil {
		if named && credentials(q.r) == "" {
			return errNotFound // GitHub does not say that there is a private repository
		}
		return err
	}
	if named {
		full := q.params["owner"] + "/" + q.params["repo"]
		if q.repo = s.repos[strings.ToLower(full)]; q.repo == nil || !q.token.grant.covers(full) {
			return errNotFound
		}
	}
	if op.permission != "" && !allows(q.token.grant.Permissions, op.permission, op.level) {
		return errForbidden
	}
	return nil
}

func (s *Server) encode(q *question, status int, value any) answer {
	header := s.headers(q.r)
	maps.Copy(header, q.header)
	if value == nil {
		header.Del("Content-Type")
		return answer{status: status, header: header}
	}
	body, err := json.Marshal(value)
	if err == nil && q.behaviour.UnknownFields {
		var plain any
		if err = json.Unmarshal(body, &plain); err == nil {
			body, err = json.Marshal(widen(plain))
		}
	}
	if err != nil {
		return s.refuse(q.r, err)
	}
	return answer{status, header, body}
}

func (s *Server) getRoot(*question) (int, any, error) {
	return 200, s.example("root", "octocat", "Hello-World"), nil
}

func (s *Server) getMeta(q *question) (int, any, error) {
	meta := s.example("api-overview", "octocat", "Hello-World")
	if strings.HasPrefix(q.r.URL.Path, "/api/v3") {
		meta["installed_version"] = "3.19.0" // as GitHub Enterprise Server says
	}
	return 200, meta, nil
}

func (s *Server) getRateLimit(*question) (int, any, error) {
	return 200, s.example("rate-limit-overview", "octocat", "Hello-World"), nil
}

func (s *Server) getApp(q *question) (int, any, error) {
	one := s.example("integration", "octocat", "Hello-World")
	one["id"], one["slug"], one["client_id"], one["name"] = q.app.ID, q.app.Slug, q.app.ClientID, q.app.Slug
	one["installations_count"] = len(q.app.Installations)
	return 200, one, nil
}

func (s *Server) describe(app App, in Installation) map[string]any {
	one := s.example("base-installation", in.Owner, "Hello-World")
	id := strconv.FormatInt(in.ID, 10)
	one["id"], one["app_id"], one["app_slug"], one["client_id"] = in.ID, app.ID, app.Slug, app.ClientID
	one["permissions"], one["repository_selection"] = in.granted(), "selected"
	one["access_tokens_url"] = s.URL() + "/app/installations/" + id + "/access_tokens"
	if in.Suspended {
		one["suspended_at"] = "2026-01-01T00:00:00Z"
	}
	return one
}

func (s *Server) listInstallations(q *question) (int, any, error) {
	all := []any{}
	for _, in := range q.app.Installations {
		all = append(all, s.describe(q.app, in))
	}
	return page(q, all)
}

func (s *Server) getInstallation(q *question) (int, any, error) {
	in, err := q.installation()
	return 200, s.describe(q.app, in), err
}

func (q *question) installation() (Installation, error) {
	id, err := strconv.ParseInt(q.params["installation_id"], 10, 64)
	if err != nil {
		return Installation{}, errNotFound
	}
	return q.app.installation(id)
}

func (s *Server) getRepoInstallation(q *question) (int, any, error) {
	for _, in := range q.app.Installations {
		if strings.EqualFold(in.Owner, q.params["owner"]) && slices.ContainsFunc(in.Repositories, func(name string) bool { return strings.EqualFold(name, q.params["repo"]) }) {
			return 200, s.describe(q.app, in), nil
		}
	}
	return 0, nil, errNotFound
}

func (s *Server) createToken(q *question) (int, any, error) {
	in, err := q.installation()
	if err != nil {
		return 0, nil, err
	}
	if in.Suspended {
		return 0, nil, &refusal{403, "This installation has been suspended"}
	}
	var ask askedToken
	if len(q.body) > 0 {
		if err := q.read(&ask); err != nil {
			return 0, nil, err
		}
	}
	grant, err := s.narrow(in, ask)
	if err != nil {
		return 0, nil, err
	}
	one, err := s.issue(q.app, in, grant, q.behaviour)
	if err != nil {
		return 0, nil, err
	}
	out := map[string]any{
		"token": one.text, "expires_at": one.expires.Format(time.RFC3339), "permissions": one.grant.Permissions,
		"repository_selection": one.grant.Selection,
	}
	if len(ask.Repositories)+len(ask.RepositoryIDs) > 0 {
		all := []any{}
		for _, full := range one.grant.Repositories {
			all = append(all, s.simpleRepository(full))
		}
		out["repositories"] = all
	}
	return 201, out, nil
}

func (s *Server) deleteToken(q *question) (int, any, error) {
	delete(s.tokens, q.token.text)
	return 204, nil, nil
}

func (s *Server) simpleRepository(full string) map[string]any {
	repo := s.repos[strings.ToLower(full)]
	if repo == nil { // a grant that a test made wider
		owner, name, _ := strings.Cut(full, "/")
		repo = &repository{owner: owner, name: name}
	}
	list := s.example("installation-token", repo.owner, repo.name)["repositories"].([]any)
	one := list[0].(map[string]any)
	one["id"], one["name"], one["full_name"], one["private"] = repo.id, repo.name, repo.full(), true
	return one
}

func (s *Server) listRepositories(q *question) (int, any, error) {
	all := []any{}
	for _, full := range q.token.grant.Repositories {
		all = append(all, s.simpleRepository(full))
	}
	status, some, err := page(q, all)
	return status, map[string]any{"total_count": len(all), "repository_selection": q.token.grant.Selection, "repositories": some}, err
}

func (s *Server) getRepository(q *question) (int, any, error) {
	one := s.example("full-repository-default-response", q.repo.owner, q.repo.name)
	one["id"], one["name"], one["full_name"] = q.repo.id, q.repo.name, q.repo.full()
	one["private"], one["visibility"], one["default_branch"] = true, "private", "main"
	one["language"] = nil // the example lacks it
	one["clone_url"] = s.CloneURL(q.repo.full())
	one["open_issues_count"] = len(q.repo.issues)
	for _, name := range []string{"permissions", "source", "parent", "template_repository"} { // only forks and copies have the last three
		delete(one, name)
	}
	return 200, one, nil
}

func (s *Server) listPulls(*question) (int, any, error) { return 200, []any{}, nil }

// page returns one page of a list, with the header that names the others.
func page(q *question, all []any) (int, any, error) {
	number := func(name string, otherwise int) int {
		n, err := strconv.Atoi(q.r.URL.Query().Get(name))
		if err != nil || n < 1 {
			return otherwise
		}
		return n
	}
	at, size := number("page", 1), min(number("per_page", 30), 100)
	from, to := min((at-1)*size, len(all)), min(at*size, len(all))
	if to < len(all) {
		next := *q.r.URL
		query := next.Query()
		query.Set("page", strconv.Itoa(at+1))
		next.RawQuery, next.Scheme, next.Host = query.Encode(), "https", q.r.Host
		q.header.Set("Link", fmt.Sprintf("<%s>; rel=\"next\"", next.String()))
	}
	return 200, all[from:to], nil
}

var errUnknownFilter = errors.New("the double does not have this filter")
