package httpapi_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const installed = `scopes:
  - name: github.issues.read
    title: Read the issues of one repository
    authority: read
    params: {repo: {type: string, pattern: '[a-z0-9-]+'}}
    resource: github:repo/acme/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: github, app: acme, installation: 48872301, repositories: ['acme/{repo}'], permissions: {issues: read}}
  - name: github.wrong.app
    title: An App that the server does not know
    authority: read
    resource: github:repo/acme/other
    ttl: {default: 5m, max: 15m}
    credential: {kind: github, app: other, installation: 48872301, repositories: [acme/api], permissions: {issues: read}}
  - name: github.checks.write
    title: A permission that the installation lacks
    authority: write
    resource: github:repo/acme/checks
    ttl: {default: 5m, max: 15m}
    credential: {kind: github, app: acme, installation: 48872301, repositories: [acme/api], permissions: {checks: write}}
`

// withGitHub returns a stack whose server knows a GitHub App.
func withGitHub(t *testing.T, change func(*testkit.Options)) (*testkit.Stack, *testkit.GitHub) {
	t.Helper()
	hub := testkit.StartGitHub(t)
	o := testkit.Options{
		Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(installed)}, {Name: "policies.cedar", Data: []byte(`@id("agents")
permit (principal in Path::"spiffe://acme.test/agents", action, resource);
`)}},
		Admins: []string{admin}, Auditors: []string{auditor}, GitHub: hub,
	}
	if change != nil {
		change(&o)
	}
	s := testkit.NewStack(t, o)
	sweep(t, s)
	return s, hub
}

func issuesOf(repo string) client.Ask {
	return client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": repo}, Task: "t-1"}
}

// atGitHub calls the REST API of GitHub with a token, and returns the status.
func atGitHub(t *testing.T, hub *testkit.GitHub, token, path string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: hub.Roots(), MinVersion: tls.VersionTLS12}}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, hub.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("User-Agent", "test")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// within waits until a condition holds.
func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// stored returns the tokens of GitHub that Vault keeps for the stack's issuances.
func stored(t *testing.T, s *testkit.Stack, id string) bool {
	t.Helper()
	entry, err := s.Vault(t).Logical().ReadWithContext(t.Context(), scopes.GitHubTokens+"/"+id)
	if err != nil {
		t.Fatal(err)
	}
	return entry != nil
}

func TestInstallationTokenDoesWhatItsScopeSays(t *testing.T) {
	s, hub := withGitHub(t, nil)
	hub.AddIssue("acme/api", "It burns", "please help")
	sandbox := s.Client(t, "spiffe://acme.test/agents/a")
	token, err := sandbox.Request(t.Context(), issuesOf("api"))
	if err != nil {
		t.Fatal(err)
	}
	got := token.Token
	var parts struct {
		Token        string
		Repositories []string
		Permissions  map[string]string
	}
	if err := json.Unmarshal([]byte(got.Secret.Reveal()), &parts); err != nil {
		t.Fatal(err)
	}
	if got.Kind != scopes.KindGitHub || !slices.Equal(parts.Repositories, []string{"acme/api"}) || fmt.Sprint(parts.Permissions) != "map[issues:read]" {
		t.Errorf("got kind %s for %v with %v", got.Kind, parts.Repositories, parts.Permissions)
	}
	live := hub.Live()
	if len(live) != 1 || live[0].Secret != parts.Token || fmt.Sprint(live[0].Grant.Permissions) != "map[issues:read metadata:read]" {
		t.Fatalf("GitHub has %+v", live)
	}
	for path, want := range map[string]int{"/repos/acme/api/issues": 200, "/repos/acme/docs/issues": 404, "/repos/acme/api/pulls": 403, "/repos/acme/secret": 404} {
		if got := atGitHub(t, hub, parts.Token, path); got != want {
			t.Errorf("GET %s: got %d, want %d", path, got, want)
		}
	}
	// The record joins GitHub's own audit log.
	sum := sha256.Sum256([]byte(parts.Token))
	found, err := s.Client(t, auditor).Page(t.Context(), client.Filter{Name: base64.StdEncoding.EncodeToString(sum[:])})
	if err != nil || len(found.Issuances) != 1 || found.Issuances[0].ID != got.ID {
		t.Errorf("by hashed_token: got %+v, %v", found.Issuances, err)
	}
	began := time.Now()
	receipt, err := sandbox.EndTask(t.Context(), "t-1", client.TaskEnd{Reason: "done"})
	if err != nil || len(receipt.Ended) != 1 || receipt.Ended[0].Status != openapi.StatusRevoked {
		t.Fatalf("ending the task: %+v, %v", receipt.Ended, err)
	}
	if until := receipt.Ended[0].UsableUntil; !until.IsZero() {
		t.Errorf("the receipt says that the ended token is usable until %s", until)
	}
	if status := atGitHub(t, hub, parts.Token, "/repos/acme/api/issues"); status != http.StatusUnauthorized || time.Since(began) > 2*time.Second {
		t.Errorf("after the end of the task, GitHub answers %d after %s", status, time.Since(began))
	}
	if stored(t, s, got.ID) || len(hub.Live()) != 0 {
		t.Errorf("Vault keeps the token: %t; alive at GitHub: %d", stored(t, s, got.ID), len(hub.Live()))
	}
}

// GitHub knows nothing of the TTL: Brevet ends the token when it expires.
func TestInstallationTokenEndsWithItsTTL(t *testing.T) {
	s, hub := withGitHub(t, nil)
	ask := issuesOf("api")
	ask.TTL = 6 * time.Second // longer than a slow machine needs to issue it
	answer, err := s.Client(t, "spiffe://acme.test/agents/a").Request(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the token ends", func() bool { return len(hub.Live()) == 0 })
	within(t, 5*time.Second, "the record says expired", func() bool {
		one, err := s.Client(t, auditor).Issuance(t.Context(), answer.Token.ID)
		return err == nil && one.Status == openapi.StatusExpired
	})
	if stored(t, s, answer.Token.ID) {
		t.Error("Vault keeps the token")
	}
}

func TestFailuresOfGitHub(t *testing.T) {
	s, hub := withGitHub(t, nil)
	sandbox := s.Client(t, "spiffe://acme.test/agents/a")
	wider := func(g *githubapi.Grant) { g.Permissions["contents"] = "write" }
	elsewhere := func(g *githubapi.Grant) { g.Repositories = append(g.Repositories, "acme/docs") }
	narrower := func(g *githubapi.Grant) { delete(g.Permissions, "issues") }
	all := func(g *githubapi.Grant) { g.Selection = "all" }
	for name, tt := range map[string]struct {
		ask        client.Ask
		behaviour  githubapi.Behaviour
		code       openapi.ProblemCode
		retryAfter time.Duration
		status     openapi.Status // of the record
		alive      int            // tokens that nobody has
	}{
		"unknown App":            {ask: client.Ask{Scope: "github.wrong.app", Task: "t-1"}, code: openapi.CodeGitHubRefused, status: openapi.StatusFailed},
		"missing permission":     {ask: client.Ask{Scope: "github.checks.write", Task: "t-1"}, code: openapi.CodeGitHubRefused, status: openapi.StatusFailed},
		"repository elsewhere":   {ask: issuesOf("secret"), code: openapi.CodeGitHubRefused, status: openapi.StatusFailed},
		"down":                   {behaviour: githubapi.Behaviour{Unreachable: true}, code: openapi.CodeGitHubUnavailable, status: openapi.StatusFailed},
		"limited":                {behaviour: githubapi.Behaviour{Limit: githubapi.Secondary, RetryAfter: 42 * time.Second}, code: openapi.CodeGitHubUnavailable, retryAfter: 42 * time.Second, status: openapi.StatusFailed},
		"wider permissions":      {behaviour: githubapi.Behaviour{OtherGrant: wider}, code: openapi.CodeMintMismatch, status: openapi.StatusFailed},
		"another repository":     {behaviour: githubapi.Behaviour{OtherGrant: elsewhere}, code: openapi.CodeMintMismatch, status: openapi.StatusFailed},
		"all repositories":       {behaviour: githubapi.Behaviour{OtherGrant: all}, code: openapi.CodeMintMismatch, status: openapi.StatusFailed},
		"narrower permissions":   {behaviour: githubapi.Behaviour{OtherGrant: narrower}, code: openapi.CodeMintMismatch, status: openapi.StatusFailed},
		"lost answer":            {behaviour: githubapi.Behaviour{LoseAnswer: true, For: githubapi.CreatesToken}, code: openapi.CodeGitHubUnavailable, status: openapi.StatusUnknown, alive: 1},
		"half an answer":         {behaviour: githubapi.Behaviour{CutAnswer: true, For: githubapi.CreatesToken}, code: openapi.CodeGitHubUnavailable, status: openapi.StatusUnknown, alive: 1},
		"unknown fields":         {behaviour: githubapi.Behaviour{UnknownFields: true}},
		"tokens of another form": {behaviour: githubapi.Behaviour{Stateless: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.ask.Scope == "" {
				tt.ask = issuesOf("api")
			}
			hub.Behave(tt.behaviour)
			before := len(hub.Live())
			answer, err := sandbox.Request(t.Context(), tt.ask)
			hub.Behave(githubapi.Behaviour{})
			if tt.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := sandbox.Release(t.Context(), answer.Token.ID); err != nil {
					t.Error(err)
				}
				return
			}
			problem, ok := errors.AsType[*client.Problem](err)
			if !ok || problem.Code != tt.code || problem.Status != http.StatusServiceUnavailable || tt.retryAfter != 0 && problem.RetryAfter != tt.retryAfter {
				t.Fatalf("got %v, want %s", err, tt.code)
			}
			if strings.Contains(fmt.Sprint(err), "ghs_") {
				t.Errorf("the problem has a token: %v", err)
			}
			page, err := s.Client(t, auditor).Page(t.Context(), client.Filter{Limit: 1})
			if err != nil || len(page.Issuances) != 1 || page.Issuances[0].Status != tt.status {
				t.Errorf("the record: %+v, %v, want %s", page.Issuances, err, tt.status)
			}
			within(t, 10*time.Second, "no token is alive that nobody can end", func() bool { return len(hub.Live()) == before+tt.alive })
		})
	}
}
