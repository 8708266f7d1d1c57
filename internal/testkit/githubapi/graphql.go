package githubapi

import (
	"encoding/base64"
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

// node is an object of GraphQL: a value for each field, or a field function.
type node map[string]any

// fieldFunc returns the value of a field, for its arguments.
type fieldFunc func(args map[string]any) (any, error)

// graphError is an error in the answer of a query.
type graphError struct {
	Type    string `json:"type,omitempty"`
	Path    []any  `json:"path,omitempty"`
	Message string `json:"message"`
}

func (e *graphError) Error() string { return e.Message }

// execution runs one query.
type execution struct {
	variables map[string]any
	fragments map[string]selection
	errors    []*graphError
}

// graphQL answers a request of GraphQL. The status is 200 even for errors of a query, as GitHub does. The caller holds the lock.
func (s *Server) graphQL(r *http.Request, body []byte) answer {
	if r.Method != http.MethodPost {
		return s.refuse(r, errNotFound)
	}
	token, err := s.tokenOf(credentials(r))
	if errors.Is(err, errNeedsAuth) {
		err = &refusal{401, "This endpoint requires you to be authenticated."}
	}
	if err != nil {
		return s.refuse(r, err)
	}
	var ask struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables"`
	}
	if json.Unmarshal(body, &ask) != nil || ask.Query == "" {
		return s.refuse(r, &refusal{400, "Problems parsing JSON"})
	}
	out := map[string]any{}
	doc, err := parseGraph(ask.Query)
	run := &execution{variables: doc.defaults, fragments: doc.fragments}
	if err == nil {
		maps.Copy(run.variables, ask.Variables)
		root := s.queries(token)
		if doc.kind == "mutation" {
			root = s.mutations(token)
		}
		var data any
		if data, err = run.resolve(root, doc.fields, nil); err == nil {
			out["data"] = data
		}
	}
	if err != nil { // the query is not one of the schema: nothing of it is answered
		run.errors = []*graphError{{Message: err.Error()}}
	}
	if len(run.errors) > 0 {
		out["errors"] = run.errors
	}
	text, err := json.Marshal(out)
	if err != nil {
		return s.refuse(r, err)
	}
	header := s.headers(r)
	header.Set("X-RateLimit-Resource", "graphql")
	return answer{200, header, text}
}

// resolve returns the fields that a query selects of an object. Its error means that the query is not one of the schema.
func (e *execution) resolve(of node, fields []selection, path []any) (map[string]any, error) {
	out := map[string]any{}
	for _, one := range fields {
		if one.spread != "" {
			fragment, ok := e.fragments[one.spread]
			if !ok {
				return nil, queryErrorf("Fragment %s was used, but not defined", one.spread)
			}
			one = fragment
		}
		if one.on != "" {
			if one.on != of["__typename"] {
				continue
			}
			some, err := e.resolve(of, one.fields, path)
			if err != nil {
				return nil, err
			}
			maps.Copy(out, some)
			continue
		}
		value, ok := of[one.name]
		if !ok {
			return nil, queryErrorf("Field '%s' doesn't exist on type '%s'", one.name, of["__typename"])
		}
		at := append(slices.Clone(path), one.alias)
		if function, isFunction := value.(fieldFunc); isFunction {
			args, err := bind(one.args, e.variables)
			if err != nil {
				return nil, err
			}
			bound, _ := args.(map[string]any)
			value, err = function(bound)
			if failed, ok := errors.AsType[*graphError](err); ok {
				e.errors = append(e.errors, &graphError{failed.Type, at, failed.Message})
				value, err = nil, nil
			}
			if err != nil {
				return nil, err
			}
		}
		got, err := e.complete(value, one, at)
		if err != nil {
			return nil, err
		}
		out[one.alias] = got
	}
	return out, nil
}

// complete returns a value with the fields that a query selects of it.
func (e *execution) complete(value any, one selection, at []any) (any, error) {
	switch value := value.(type) {
	case node:
		if len(one.fields) == 0 {
			return nil, queryErrorf("Field must have selections (field '%s' returns %s but has no selections)", one.name, value["__typename"])
		}
		return e.resolve(value, one.fields, at)
	case []node:
		all := []any{}
		for i, item := range value {
			got, err := e.complete(item, one, append(slices.Clone(at), i))
			if err != nil {
				return nil, err
			}
			all = append(all, got)
		}
		return all, nil
	}
	return value, nil
}

var errGraphForbidden = &graphError{Type: "FORBIDDEN", Message: "Resource not accessible by integration"}

func nodeID(kind string, id any) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s:%v", kind, id))
}

func text(args map[string]any, name string) string {
	value, _ := args[name].(string)
	return value
}

func number(args map[string]any, name string) int {
	value, _ := args[name].(float64)
	return int(value)
}

func (s *Server) queries(token *issued) node {
	return node{
		"__typename": "Query",
		"viewer":     node{"__typename": "User", "login": token.bot(), "id": nodeID("Bot", token.app.ID), "name": token.app.Slug},
		"rateLimit": node{
			"__typename": "RateLimit", "limit": hourlyCalls, "cost": 1, "used": token.calls, "remaining": hourlyCalls - token.calls,
			"resetAt": s.clock().Truncate(time.Hour).Add(time.Hour).UTC().Format(time.RFC3339),
		},
		"repository": fieldFunc(func(args map[string]any) (any, error) {
			full := text(args, "owner") + "/" + text(args, "name")
			repo := s.repos[strings.ToLower(full)]
			if repo == nil || !token.grant.covers(full) || !allows(token.grant.Permissions, "metadata", "read") {
				return nil, &graphError{Type: "NOT_FOUND", Message: "Could not resolve to a Repository with the name '" + full + "'."}
			}
			return s.repositoryNode(token, repo), nil
		}),
		"__type": fieldFunc(func(args map[string]any) (any, error) { return s.typeNode(token, text(args, "name")), nil }),
	}
}

// typeNode tells clients which fields a type has: gh asks servers of GitHub Enterprise for what they can.
func (s *Server) typeNode(token *issued, name string) any {
	var of node
	switch name {
	case "Repository":
		of = s.repositoryNode(token, &repository{owner: "octocat", name: "Hello-World"})
	case "Issue":
		of = s.issueNode(token, &repository{owner: "octocat", name: "Hello-World"}, &issue{})
	case "PullRequest", "StatusCheckRollupContextConnection", "WorkflowRun":
		of = node{}
	default:
		return nil
	}
	fields := []node{}
	for _, field := range slices.Sorted(maps.Keys(of)) {
		if !strings.HasPrefix(field, "__") {
			fields = append(fields, node{"__typename": "__Field", "name": field})
		}
	}
	return node{"__typename": "__Type", "name": name, "fields": fieldFunc(func(map[string]any) (any, error) { return fields, nil })}
}

// readable returns a field that needs a permission of the token, for reading.
func readable(token *issued, permission string, then fieldFunc) fieldFunc {
	return func(args map[string]any) (any, error) {
		if !allows(token.grant.Permissions, permission, "read") {
			return nil, errGraphForbidden
		}
		return then(args)
	}
}

func (s *Server) repositoryNode(token *issued, repo *repository) node {
	one := func(args map[string]any) (any, error) {
		at := number(args, "number")
		if at < 1 || at > len(repo.issues) {
			return nil, &graphError{Type: "NOT_FOUND", Message: fmt.Sprintf("Could not resolve to an issue or pull request with the number of %d.", at)}
		}
		return s.issueNode(token, repo, repo.issues[at-1]), nil
	}
	return node{
		"__typename": "Repository", "id": nodeID("Repository", repo.id), "databaseId": repo.id, "name": repo.name, "nameWithOwner": repo.full(),
		"owner":       node{"__typename": "Organization", "login": repo.owner, "id": nodeID("Organization", repo.owner)},
		"description": nil, "isPrivate": true, "visibility": "PRIVATE", "isFork": false, "isArchived": false, "isEmpty": false,
		"url": "https://github.com/" + repo.full(), "sshUrl": "git@github.com:" + repo.full() + ".git", "parent": nil, "isInOrganization": true,
		"hasIssuesEnabled": true, "hasWikiEnabled": false, "hasProjectsEnabled": false, "hasDiscussionsEnabled": false, "viewerPermission": "READ",
		"mergeCommitAllowed": true, "squashMergeAllowed": true, "rebaseMergeAllowed": true, "issueTemplates": []node{}, "pullRequestTemplates": []node{},
		"defaultBranchRef": readable(token, "contents", func(map[string]any) (any, error) {
			return node{"__typename": "Ref", "name": branch, "prefix": "refs/heads/"}, nil
		}),
		"issues": readable(token, "issues", func(args map[string]any) (any, error) { return s.issueNodes(token, repo, args) }),
		"issue":  readable(token, "issues", one), "issueOrPullRequest": readable(token, "issues", one),
		"pullRequests": readable(token, "pull_requests", func(map[string]any) (any, error) {
			return connection("PullRequest", nil, 0, 0), nil
		}),
	}
}

// connection is a page of a list.
func connection(kind string, all []node, from, size int) node {
	to := min(from+size, len(all))
	cursor := any(nil)
	if to > from {
		cursor = nodeID("cursor", to)
	}
	return node{
		"__typename": kind + "Connection", "totalCount": len(all), "nodes": slices.Clone(all[from:to]),
		"pageInfo": node{"__typename": "PageInfo", "hasNextPage": to < len(all), "endCursor": cursor},
	}
}

// issueNodes returns the issues that the arguments ask for. It refuses arguments that it does not know.
func (s *Server) issueNodes(token *issued, repo *repository, args map[string]any) (any, error) {
	for name := range args {
		if !slices.Contains([]string{"first", "after", "states", "orderBy", "labels", "filterBy"}, name) {
			return nil, queryErrorf("Field 'issues' doesn't accept argument '%s'", name)
		}
	}
	if filter, ok := args["filterBy"].(map[string]any); ok {
		for name, value := range filter {
			if value != nil && name != "states" {
				return nil, fmt.Errorf("%w: %s", errUnknownFilter, name)
			}
		}
	}
	size := number(args, "first")
	if size < 1 || size > 100 {
		return nil, &graphError{Type: "MISSING_PAGINATION_BOUNDARIES", Message: "You must provide a `first` or `last` value to properly paginate the `issues` connection."}
	}
	states, ok := args["states"].([]any)
	if state, single := args["states"].(string); single {
		states, ok = []any{state}, true
	}
	all := []node{}
	for _, one := range repo.issues {
		if !ok || slices.Contains(states, any(strings.ToUpper(one.state))) {
			all = append(all, s.issueNode(token, repo, one))
		}
	}
	if order, _ := args["orderBy"].(map[string]any); order["direction"] == "DESC" {
		slices.Reverse(all)
	}
	from := 0
	if after := text(args, "after"); after != "" {
		raw, _ := base64.StdEncoding.DecodeString(after) // what is not Base64 is no number either
		var err error
		if from, err = strconv.Atoi(strings.TrimPrefix(string(raw), "cursor:")); err != nil || from < 0 || from > len(all) {
			return nil, &graphError{Type: "INVALID_CURSOR_ARGUMENTS", Message: "`" + after + "` does not appear to be a valid cursor."}
		}
	}
	return connection("Issue", all, from, size), nil
}

func (s *Server) issueNode(token *issued, repo *repository, one *issue) node {
	url := "https://github.com/" + repo.full() + "/issues/" + strconv.Itoa(one.number)
	author := node{"__typename": "Bot", "login": token.bot(), "id": nodeID("Bot", token.app.ID), "name": token.app.Slug}
	labels, comments := []node{}, []node{}
	for _, name := range one.labels {
		labels = append(labels, node{"__typename": "Label", "id": nodeID("Label", name), "name": name, "description": nil, "color": "ededed"})
	}
	for _, c := range one.comments {
		comments = append(comments, commentNode(url, author, c))
	}
	paged := func(kind string, all []node) fieldFunc {
		return func(args map[string]any) (any, error) {
			size := max(number(args, "first"), number(args, "last"))
			return connection(kind, all, 0, size), nil
		}
	}
	created, reason, closed := one.created.Format(time.RFC3339), any(nil), any(nil)
	if one.state == "closed" {
		reason, closed = "COMPLETED", created
	}
	return node{
		"__typename": "Issue", "id": nodeID("Issue", fmt.Sprintf("%d:%d", repo.id, one.number)), "number": one.number, "title": one.title, "body": one.body,
		"url": url, "state": strings.ToUpper(one.state), "stateReason": reason, "createdAt": created, "updatedAt": created, "closedAt": closed,
		"author": author, "milestone": nil, "labels": paged("Label", labels), "assignees": paged("User", nil), "comments": paged("IssueComment", comments),
		"projectCards": paged("ProjectCard", nil), "projectItems": paged("ProjectV2Item", nil), "reactionGroups": []node{}, "isPinned": false,
	}
}

func commentNode(issueURL string, author node, one comment) node {
	return node{
		"__typename": "IssueComment", "id": nodeID("IssueComment", one.id), "body": one.body, "createdAt": one.created.Format(time.RFC3339),
		"url": issueURL + "#issuecomment-" + strconv.FormatInt(one.id, 10), "author": author, "authorAssociation": "NONE", "includesCreatedEdit": false,
		"isMinimized": false, "minimizedReason": "", "reactionGroups": []node{}, "viewerDidAuthor": true,
	}
}

func (s *Server) mutations(token *issued) node {
	input := func(args map[string]any) map[string]any {
		in, _ := args["input"].(map[string]any)
		return in
	}
	notFound := func(id string) error {
		return &graphError{Type: "NOT_FOUND", Message: "Could not resolve to a node with the global id of '" + id + "'"}
	}
	return node{
		"__typename": "Mutation",
		"createIssue": fieldFunc(func(args map[string]any) (any, error) {
			in := input(args)
			repo := s.repositoryOf(token, func(repo *repository) bool { return nodeID("Repository", repo.id) == text(in, "repositoryId") })
			if repo == nil {
				return nil, notFound(text(in, "repositoryId"))
			}
			if !allows(token.grant.Permissions, "issues", "write") {
				return nil, errGraphForbidden
			}
			if text(in, "title") == "" {
				return nil, queryError("Argument 'title' on InputObject 'CreateIssueInput' is required")
			}
			one := s.addIssue(repo, text(in, "title"), text(in, "body"), nil)
			return node{"__typename": "CreateIssuePayload", "issue": s.issueNode(token, repo, one)}, nil
		}),
		"addComment": fieldFunc(func(args map[string]any) (any, error) {
			in := input(args)
			var on *issue
			repo := s.repositoryOf(token, func(repo *repository) bool {
				at := slices.IndexFunc(repo.issues, func(one *issue) bool {
					return nodeID("Issue", fmt.Sprintf("%d:%d", repo.id, one.number)) == text(in, "subjectId")
				})
				if at >= 0 {
					on = repo.issues[at]
				}
				return at >= 0
			})
			if repo == nil {
				return nil, notFound(text(in, "subjectId"))
			}
			if !allows(token.grant.Permissions, "issues", "write") {
				return nil, errGraphForbidden
			}
			whole := s.issueNode(token, repo, on)
			url, _ := whole["url"].(string)
			author, _ := whole["author"].(node)
			one := commentNode(url, author, s.addComment(on, text(in, "body")))
			return node{"__typename": "AddCommentPayload", "commentEdge": node{"__typename": "IssueCommentEdge", "node": one}}, nil
		}),
	}
}

// repositoryOf returns the repository that matches, of those that a token is for.
func (s *Server) repositoryOf(token *issued, matches func(*repository) bool) *repository {
	for _, full := range token.grant.Repositories {
		if repo := s.repos[strings.ToLower(full)]; repo != nil && matches(repo) {
			return repo
		}
	}
	return nil
}
