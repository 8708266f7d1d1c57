package httpapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// get calls without an SVID.
func get(t *testing.T, s *testkit.Stack, path string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.HTTP(t, nil).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func issue(t *testing.T, s *testkit.Stack, who string, n int) []string {
	t.Helper()
	c := s.Client(t, who)
	var ids []string
	for range n {
		got, err := c.Request(t.Context(), read)
		var p *client.Problem
		switch {
		case err == nil:
			ids = append([]string{got.Token.ID}, ids...)
		case errors.As(err, &p) && p.ID != "":
			ids = append([]string{p.ID}, ids...)
		default:
			t.Fatal(err)
		}
	}
	return ids
}

// I14: each caller reads what is its own or within its role, and nothing else.
func TestRecordsAreVisibleOnlyWithinReach(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	mine, theirs, others := issue(t, s, agent, 3), issue(t, s, twin, 1), issue(t, s, foreign, 1)
	seen := func(who string) []string {
		var ids []string
		for one, err := range s.Client(t, who).Issuances(t.Context(), client.Filter{Limit: 2}) {
			if err != nil {
				t.Fatal(err)
			}
			if (one.Index != nil) != (who == auditor) {
				t.Errorf("%s is shown the index %v", who, one.Index)
			}
			ids = append(ids, one.ID)
		}
		return ids
	}
	for who, want := range map[string][]string{agent: mine, twin: theirs, foreign: others, auditor: append(append([]string{}, theirs...), mine...)} {
		if diff := cmp.Diff(want, seen(who)); diff != "" {
			t.Errorf("%s sees (-want +got):\n%s", who, diff)
		}
	}
	// H100: the response about a foreign record is identical to the one about an unknown record.
	unknown := "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21"
	for who, foreignID := range map[string]string{agent: theirs[0], twin: mine[0], foreign: mine[0], auditor: others[0]} {
		for _, path := range []string{"/v1/issuances/", "/v1/requests/"} {
			a := wire{method: "GET", target: path + foreignID, auth: "none", svid: s.X509(t, who)}.send(t, s)
			b := wire{method: "GET", target: path + unknown, auth: "none", svid: s.X509(t, who)}.send(t, s)
			if a.status != 404 || anonymous(a.text) != anonymous(b.text) {
				t.Errorf("%s: got %d\n%s\nfor a foreign record, and for an unknown one\n%s", who, a.status, a.text, b.text)
			}
		}
	}
	// An auditor can read issuances, but only the sandbox itself can read its requests.
	if one, err := s.Client(t, auditor).Issuance(t.Context(), mine[0]); err != nil || one.SpiffeID != agent {
		t.Errorf("got %+v, %v", one, err)
	}
	if _, err := s.Client(t, auditor).State(t.Context(), mine[0]); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	// H101: the catalogue permits an auditor nothing.
	if _, err := s.Client(t, auditor).Request(t.Context(), read); !errors.Is(err, client.ErrDenied) {
		t.Errorf("an auditor asks: got %v, want a denial", err)
	}
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// anonymous removes the request id from a problem.
func anonymous(text string) string { return uuids.ReplaceAllString(text, "") }

// H98: a cursor continues the listing that it came from and no other.
func TestCursors(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	want := issue(t, s, agent, 5)
	issue(t, s, twin, 2)
	filter := client.Filter{Scope: "git.issues.read", Limit: 2}
	c := s.Client(t, agent)
	page, err := c.Page(t.Context(), filter)
	if err != nil || page.Next == "" || len(page.Issuances) != 2 {
		t.Fatalf("got %+v, %v", page, err)
	}
	var got []string
	for one, err := range c.Issuances(t.Context(), filter) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, one.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all pages (-want +got):\n%s", diff)
	}

	filter.Cursor = page.Next
	other := filter
	other.Task = "triage-1"
	flipped := filter
	flipped.Cursor = flip(page.Next)
	for name, tc := range map[string]struct {
		who    string
		filter client.Filter
	}{"another reader": {twin, filter}, "an auditor": {auditor, filter}, "another filter": {agent, other}, "flipped": {agent, flipped}} {
		_, err := s.Client(t, tc.who).Page(t.Context(), tc.filter)
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != openapi.CodeInvalidCursor {
			t.Errorf("%s: got %v, want an invalid cursor", name, err)
		}
	}

	first := wire{method: "GET", target: "/v1/issuances?limit=2&scope=git.issues.read"}.send(t, s)
	link := regexp.MustCompile(`^<(/v1/issuances\?[^>]+)>; rel="next"$`).FindStringSubmatch(first.header.Get("Link"))
	if link == nil {
		t.Fatalf("got Link %q", first.header.Get("Link"))
	}
	if u, err := url.Parse(link[1]); err != nil || u.Query().Get("limit") != "2" || u.Query().Get("scope") != "git.issues.read" {
		t.Errorf("the link %s lost a filter", link[1])
	}
	second := wire{method: "GET", target: link[1]}.send(t, s)
	if second.status != 200 || !strings.Contains(second.text, want[2]) || second.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the next page: got %d %s", second.status, second.text)
	}
}

func flip(cursor string) string {
	if cursor[0] == 'A' {
		return "B" + cursor[1:]
	}
	return "A" + cursor[1:]
}
