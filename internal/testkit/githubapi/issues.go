package githubapi

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

func (s *Server) describeIssue(repo *repository, one *issue, author string) map[string]any {
	number := strconv.Itoa(one.number)
	out := s.example("issue", repo.owner, repo.name)
	for name, value := range out {
		if text, ok := value.(string); ok {
			out[name] = strings.ReplaceAll(text, "/1347", "/"+number)
		}
	}
	for _, name := range []string{"pull_request", "milestone", "assignee", "closed_by", "active_lock_reason", "closed_at", "repository"} {
		delete(out, name)
	}
	labels := []any{}
	for i, name := range one.labels {
		labels = append(labels, map[string]any{"id": i + 1, "name": name, "color": "ededed", "default": false})
	}
	out["id"], out["number"] = repo.id*1000+int64(one.number), one.number
	out["title"], out["body"], out["state"], out["locked"] = one.title, one.body, one.state, false
	out["state_reason"], out["closed_at"], out["milestone"], out["assignee"] = nil, nil, nil, nil
	out["labels"], out["comments"], out["assignees"] = labels, len(one.comments), []any{}
	out["created_at"], out["updated_at"] = one.created.Format(time.RFC3339), one.created.Format(time.RFC3339)
	if one.state == "closed" {
		out["closed_at"], out["state_reason"] = one.created.Format(time.RFC3339), "completed"
	}
	if user, ok := out["user"].(map[string]any); ok {
		user["login"], user["type"] = author, "Bot"
	}
	return out
}

func (t *issued) bot() string { return t.app.Slug + "[bot]" }

func (q *question) issue() (*issue, error) {
	number, err := strconv.Atoi(q.params["issue_number"])
	if err != nil || number < 1 || number > len(q.repo.issues) {
		return nil, errNotFound
	}
	return q.repo.issues[number-1], nil
}

func (s *Server) listIssues(q *question) (int, any, error) {
	query := q.r.URL.Query()
	for _, name := range []string{"milestone", "assignee", "creator", "mentioned", "type", "since", "sort"} {
		if query.Has(name) && query.Get(name) != "created" {
			return 0, nil, &refusal{422, errUnknownFilter.Error() + ": " + name}
		}
	}
	state := query.Get("state")
	if state == "" {
		state = "open"
	}
	all := []any{}
	for _, one := range q.repo.issues {
		hasLabels := true
		for label := range strings.SplitSeq(query.Get("labels"), ",") {
			hasLabels = hasLabels && (label == "" || slices.Contains(one.labels, label))
		}
		if hasLabels && (state == "all" || state == one.state) {
			all = append(all, s.describeIssue(q.repo, one, q.token.bot()))
		}
	}
	if query.Get("direction") != "asc" {
		slices.Reverse(all)
	}
	return page(q, all)
}

func (s *Server) getIssue(q *question) (int, any, error) {
	one, err := q.issue()
	if err != nil {
		return 0, nil, err
	}
	return 200, s.describeIssue(q.repo, one, q.token.bot()), nil
}

func (s *Server) createIssue(q *question) (int, any, error) {
	var ask struct {
		Title  any      `json:"title"`
		Body   string   `json:"body"`
		Labels []string `json:"labels"`
	}
	if err := q.read(&ask); err != nil {
		return 0, nil, err
	}
	title, ok := ask.Title.(string)
	if !ok || strings.TrimSpace(title) == "" {
		return 0, nil, &refusal{422, "Validation Failed"}
	}
	one := s.addIssue(q.repo, title, ask.Body, ask.Labels)
	return 201, s.describeIssue(q.repo, one, q.token.bot()), nil
}

func (s *Server) updateIssue(q *question) (int, any, error) {
	one, err := q.issue()
	if err != nil {
		return 0, nil, err
	}
	var ask struct {
		Title *string `json:"title"`
		Body  *string `json:"body"`
		State string  `json:"state"`
	}
	if err := q.read(&ask); err != nil {
		return 0, nil, err
	}
	if ask.Title != nil {
		one.title = *ask.Title
	}
	if ask.Body != nil {
		one.body = *ask.Body
	}
	if ask.State != "" {
		one.state = ask.State
	}
	return 200, s.describeIssue(q.repo, one, q.token.bot()), nil
}

func (s *Server) describeComment(repo *repository, on *issue, one comment, author string) map[string]any {
	out := s.example("issue-comment", repo.owner, repo.name)
	for name, value := range out {
		if text, ok := value.(string); ok {
			out[name] = strings.ReplaceAll(text, "/1347", "/"+strconv.Itoa(on.number))
		}
	}
	delete(out, "pin")
	delete(out, "minimized")
	out["id"], out["body"] = one.id, one.body
	out["created_at"], out["updated_at"] = one.created.Format(time.RFC3339), one.created.Format(time.RFC3339)
	if user, ok := out["user"].(map[string]any); ok {
		user["login"], user["type"] = author, "Bot"
	}
	return out
}

func (s *Server) listComments(q *question) (int, any, error) {
	on, err := q.issue()
	if err != nil {
		return 0, nil, err
	}
	all := []any{}
	for _, one := range on.comments {
		all = append(all, s.describeComment(q.repo, on, one, q.token.bot()))
	}
	return page(q, all)
}

func (s *Server) createComment(q *question) (int, any, error) {
	on, err := q.issue()
	if err != nil {
		return 0, nil, err
	}
	var ask struct {
		Body string `json:"body"`
	}
	if err := q.read(&ask); err != nil {
		return 0, nil, err
	}
	if strings.TrimSpace(ask.Body) == "" {
		return 0, nil, &refusal{422, "Validation Failed"}
	}
	one := s.addComment(on, ask.Body)
	return 201, s.describeComment(q.repo, on, one, q.token.bot()), nil
}

func (s *Server) addComment(on *issue, body string) comment {
	one := comment{id: int64(on.number*1000 + len(on.comments) + 1), body: body, created: s.clock().UTC().Truncate(time.Second)}
	on.comments = append(on.comments, one)
	return one
}
