package githubapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody    = 64 << 20
	apiVersion = "2022-11-28"
)

// answer is what the double answers to a request of the REST API or of GraphQL.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ServeHTTP answers a request. It records the call when it has answered.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	b := s.behaviourFor(r)
	s.requests++
	call := Call{Time: s.clock(), Method: r.Method, Path: r.URL.Path, UserAgent: r.UserAgent()}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.calls = append(s.calls, call)
		s.mu.Unlock()
	}()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	if text := credentials(r); text != "" {
		s.mu.Lock()
		if s.tokens[text] != nil {
			call.HashedToken = hashed(text)
		}
		s.mu.Unlock()
	}
	time.Sleep(b.Delay) // a caller that gives up does not stop GitHub
	out := s.answerFor(r, body, b, &call)
	if b.LoseAnswer {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), out.header)
	if len(out.body) > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(out.body)))
	}
	w.WriteHeader(out.status)
	if b.CutAnswer {
		_, _ = w.Write(out.body[:len(out.body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(out.body)
	call.Status = out.status
}

func (s *Server) answerFor(r *http.Request, body []byte, b Behaviour, call *Call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	git, isGit := gitRequest(r)
	switch {
	case b.Status != 0:
		return s.refuse(r, &refusal{b.Status, "No server is currently available to service your request. Sorry about that. " +
			"Please try resubmitting your request and contact us if the problem persists."})
	case b.Limit != NoLimit:
		return s.limited(r, b)
	case isGit:
		return s.serveGit(r, git, call)
	case r.UserAgent() == "":
		return s.refuse(r, &refusal{403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent header"})
	case r.URL.Path == "/graphql", r.URL.Path == "/api/graphql":
		call.Operation = "graphql"
		return s.graphQL(r, body)
	}
	return s.rest(r, body, b, call)
}

// headers returns what each answer of GitHub's API has.
func (s *Server) headers(r *http.Request) http.Header {
	used := 0
	if one := s.tokens[credentials(r)]; one != nil {
		one.calls++
		used = one.calls
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-GitHub-Request-Id", fmt.Sprintf("0000:%04X:TEST", s.requests))
	h.Set("X-GitHub-Media-Type", "github.v3; format=json")
	h.Set("X-GitHub-Api-Version-Selected", apiVersion)
	h.Set("X-RateLimit-Limit", strconv.Itoa(hourlyCalls))
	h.Set("X-RateLimit-Used", strconv.Itoa(used))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(max(hourlyCalls-used, 0)))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(s.clock().Truncate(time.Hour).Add(time.Hour).Unix(), 10))
	h.Set("X-RateLimit-Resource", "core")
	return h
}

// refuse returns an error answer of GitHub.
func (s *Server) refuse(r *http.Request, err error) answer {
	var why *refusal
	if !errors.As(err, &why) {
		s.violations = append(s.violations, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
		why = &refusal{500, "Server Error"}
	}
	body, err := json.Marshal(map[string]any{
		"message": why.message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(why.status),
	})
	if err != nil {
		panic(err)
	}
	return answer{why.status, s.headers(r), body}
}

// limited returns what GitHub answers to a call above a rate limit.
func (s *Server) limited(r *http.Request, b Behaviour) answer {
	why := &refusal{403, "API rate limit exceeded for installation ID 1. If you reach out to GitHub Support for help, please include the request ID."}
	if b.Limit != Primary {
		why.message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	}
	if b.Limit == TooMany {
		why.status = 429
	}
	out := s.refuse(r, why)
	switch {
	case b.Limit == Primary:
		out.header.Set("X-RateLimit-Remaining", "0")
		out.header.Set("X-RateLimit-Used", strconv.Itoa(hourlyCalls))
		out.header.Set("X-RateLimit-Reset", strconv.FormatInt(s.clock().Add(b.RetryAfter).Unix(), 10))
	case b.RetryAfter > 0:
		out.header.Set("Retry-After", strconv.FormatInt(int64(b.RetryAfter/time.Second), 10))
	}
	return out
}

// recorded runs a handler, and returns its answer.
func recorded(handler http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

// widen adds fields that GitHub's description does not have to all objects of an answer.
func widen(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, one := range value {
			value[name] = widen(one)
		}
		if _, isPermissions := value["metadata"]; !isPermissions {
			value["x_added_later"] = map[string]any{"nested": []any{"of", 2, nil}}
		}
		return value
	case []any:
		for i, one := range value {
			value[i] = widen(one)
		}
	}
	return value
}

// hostRest returns the path of a request below the root of the REST API.
func hostRest(r *http.Request) string {
	path := strings.TrimPrefix(r.URL.Path, "/api/v3")
	if path == "" {
		return "/"
	}
	return path
}
