package httpapi_test

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// With a token's digest, its holder and voters can be found without showing the token to anyone.
func TestSearchOverTheAPI(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, eyes := s.Client(t, agent), s.Client(t, auditor)
	ask := askFor("git.issues.write")
	id := waiting(t, sandbox, ask)
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	waiting(t, s.Client(t, twin), ask)
	carol, err := s.Person(t, "carol").WhoAmI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		filter client.Filter
		want   []string
	}{
		"token":     {client.Filter{Credential: client.DigestOf(got.Token.Secret)}, []string{got.Token.ID}},
		"approver":  {client.Filter{Approver: carol.ID}, []string{got.Token.ID, id}},
		"words":     {client.Filter{Words: "BECAUSE", SPIFFEID: agent}, []string{got.Token.ID, id}},
		"parameter": {client.Filter{Params: map[string]string{"repo": "acme/api"}, Decision: openapi.DecisionAllow}, []string{got.Token.ID}},
		"group":     {client.Filter{Group: "oncall", SPIFFEIDPrefix: agent}, []string{id}},
	} {
		for _, who := range []*client.Client{eyes, sandbox} {
			var found []string
			for one, err := range who.Issuances(t.Context(), tc.filter) {
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				found = append(found, one.ID)
			}
			if diff := cmp.Diff(tc.want, found); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if page, err := s.Client(t, foreign).Page(t.Context(), tc.filter); err != nil || len(page.Issuances) != 0 {
			t.Errorf("%s: another sandbox sees %+v, %v", name, page, err)
		}
	}
}

// The next and prev links of a page lead to its neighbours, and both cursors are sealed in the same way (H98).
func TestPagesLinkBothWays(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	ids := issue(t, s, agent, 5)
	link := regexp.MustCompile(`^<(/v1/issuances\?[^>]+)>; rel="(next|prev)"$`)
	follow := func(target, rel string) (string, answer) {
		got := wire{method: "GET", target: target}.send(t, s)
		for _, value := range got.header.Values("Link") {
			if m := link.FindStringSubmatch(value); m != nil && m[2] == rel {
				return m[1], got
			}
		}
		return "", got
	}
	second, _ := follow("/v1/issuances?limit=2&params.repo=acme/api", "next")
	third, page := follow(second, "next")
	if !strings.Contains(page.text, ids[2]) || strings.Contains(page.text, ids[1]) {
		t.Errorf("the second page: got %s", page.text)
	}
	again, _ := follow(third, "prev")
	first, page := follow(again, "prev")
	if again == "" || first == "" || !strings.Contains(page.text, ids[2]) || !strings.Contains(page.text, ids[3]) || strings.Contains(page.text, ids[4]) {
		t.Errorf("back on the second page: got %s", page.text)
	}
	if none, page := follow(first, "prev"); none != "" || !strings.Contains(page.text, ids[0]) || !strings.Contains(page.text, ids[1]) {
		t.Errorf("back on the first page: got a page before it, %q, and %s", none, page.text)
	}
	u, err := url.Parse(again)
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range map[string]client.Filter{
		"another filter": {Cursor: u.Query().Get("cursor"), Params: map[string]string{"repo": "acme/web"}},
		"flipped":        {Cursor: flip(u.Query().Get("cursor")), Params: map[string]string{"repo": "acme/api"}},
	} {
		if _, err := s.Client(t, agent).Page(t.Context(), filter); code(err) != openapi.CodeInvalidCursor {
			t.Errorf("%s: got %v, want an invalid cursor", name, err)
		}
	}
}

// Any input of a filter is treated as a filter, or refused.
func TestHostileSearches(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Auditors: []string{auditor}})
	issue(t, s, agent, 1)
	many := url.Values{}
	for i := range 9 {
		many.Set("params.p"+strconv.Itoa(i), "x")
	}
	flood := strings.Repeat("params.x=1&", 10000)
	for query, want := range map[string]int{
		"q=%00": 400, "q=%ff": 400, "q=": 400, "q=" + strings.Repeat("a", 201): 400, "q=a&q=b": 400,
		"q=%25": 200, "q='%3B+DROP+TABLE+issuances%3B--": 200, "q=a+%26+!b+%7C+c%3A*+%3C-%3E": 200,
		"params.repo=%00": 400, "params.repo=a&params.repo=b": 400, "params.=x": 400, many.Encode(): 400, flood: 400,
		"params.repo='+OR+1%3D1": 200, `params.re"po=%22+%7C%7C+true`: 200, "params.repo=" + strings.Repeat("a", 1025): 400,
		"credential=abc": 400, "credential=" + strings.Repeat("a", 63) + "G": 400, "credential=" + strings.Repeat("a", 64): 200,
		"name=%00": 400, "name='": 200, "approver=%25": 200, "group=%25": 200, "authority=*": 200, "resource=%00": 400,
		"resource=" + strings.Repeat("a", 4096): 200, "resource=" + strings.Repeat("a", 4097): 400, "catalogue='": 200,
		"key_id='": 200, "decision_code=%25": 200, "params=x": 400, "paramsrepo=x": 400,
	} {
		for _, who := range []string{agent, auditor} {
			got := wire{method: "GET", target: "/v1/issuances?" + query, auth: "none", svid: s.X509(t, who)}.send(t, s)
			short := query[:min(len(query), 60)]
			if got.status != want && (len(query) <= 8000 || got.status != 431) {
				t.Errorf("%s: got %d %s, want %d", short, got.status, got.text, want)
			}
			if got.status == 200 && strings.Contains(got.text, agent) {
				t.Errorf("%s finds something", short)
			}
		}
	}
	// Only searches accept filters on parameters.
	if got := (wire{method: "GET", target: "/v1/whoami?params.repo=x"}.send(t, s)); got.status != 400 {
		t.Errorf("got %d for parameters that are no filter, want 400", got.status)
	}
	s.DB.Check(t)
}

// The timeline of a task shows requests, votes, issuances and ends. A sandbox cannot read who voted or what they wrote.
func TestTimelines(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	sandbox, eyes := s.Client(t, agent), s.Client(t, auditor)
	ask := askFor("git.issues.write")
	id := waiting(t, sandbox, ask)
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), id, ask)
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: got.Token.ID}, "found in a log"); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.EndTask(t.Context(), ask.Task, client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
	other := waiting(t, s.Client(t, twin), ask)
	want := []string{"request.pending", "approval.vote", "issuance.intent", "credentials.revoke", "issuance.revoked", "task.end"}
	for who, c := range map[string]*client.Client{agent: sandbox, auditor: eyes} {
		var kinds []string
		for e, err := range c.TaskTimeline(t.Context(), ask.Task, agent) {
			if err != nil {
				t.Fatalf("%s: %v", who, err)
			}
			kinds = append(kinds, e.Kind)
			if (e.Index != nil) != (who == auditor) || e.ID == other || e.Verdict != "" && (e.ByName == "Carol") != (who == auditor) {
				t.Errorf("%s reads %+v", who, e)
			}
		}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("%s reads (-want +got):\n%s", who, diff)
		}
		var one []string
		for e, err := range c.IssuanceTimeline(t.Context(), got.Token.ID) {
			if err != nil {
				t.Fatalf("%s: %v", who, err)
			}
			one = append(one, e.Kind)
		}
		if diff := cmp.Diff(want, one); diff != "" {
			t.Errorf("%s reads of the token (-want +got):\n%s", who, diff)
		}
	}
	first := wire{method: "GET", target: "/v1/tasks/" + ask.Task + "/timeline?limit=4"}.send(t, s)
	next := regexp.MustCompile(`"next":"([^"]+)"`).FindStringSubmatch(first.text)
	if first.status != 200 || next == nil {
		t.Fatalf("got %d %s, want a next page", first.status, first.text)
	}
	rest := wire{method: "GET", target: "/v1/tasks/" + ask.Task + "/timeline?cursor=" + next[1]}.send(t, s)
	if rest.status != 200 || !strings.Contains(rest.text, "task.end") || strings.Contains(rest.text, "approval.vote") {
		t.Errorf("got %d %s, want the rest", rest.status, rest.text)
	}
	for _, target := range []string{"/v1/tasks/other/timeline?cursor=" + next[1], "/v1/issuances?cursor=" + next[1]} {
		if got := (wire{method: "GET", target: target}.send(t, s)); got.status != 400 {
			t.Errorf("%s: got %d, want 400", target, got.status)
		}
	}
	// H100: a foreign record is not found.
	for _, err := range []error{
		firstError(s.Client(t, foreign).TaskTimeline(t.Context(), ask.Task, agent)), firstError(s.Client(t, twin).TaskTimeline(t.Context(), ask.Task, agent)),
		firstError(eyes.TaskTimeline(t.Context(), "nope", agent)), firstError(eyes.TaskTimeline(t.Context(), ask.Task, foreign)),
		firstError(s.Client(t, twin).IssuanceTimeline(t.Context(), id)), firstError(eyes.IssuanceTimeline(t.Context(), someID)),
	} {
		if !errors.Is(err, client.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
	for want, err := range map[string]error{
		"spiffe_id is required unless a sandbox calls": firstError(eyes.TaskTimeline(t.Context(), ask.Task, "")),
		"spiffe_id must be the SPIFFE ID ":             firstError(eyes.TaskTimeline(t.Context(), ask.Task, "agent-7")),
	} {
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != openapi.CodeInvalidParameter || p.Field != "spiffe_id" || !strings.HasPrefix(p.Explanation, want) {
			t.Errorf("an auditor who names no sandbox: got %+v, want %q", p, want)
		}
	}
	receipt := wire{method: "GET", target: "/v1/tasks/" + ask.Task + "/receipt", auth: "Bearer " + s.JWT(t, auditor)}.send(t, s)
	if receipt.status != 400 || !strings.Contains(receipt.text, `"explanation":"spiffe_id is missing`) {
		t.Errorf("a receipt of nobody's task: got %d %s", receipt.status, receipt.text)
	}
}

// H100 and I14: an order for one trust domain is not shown in another that has a task with the same name.
func TestTimelineHidesOrdersOfOtherTrustDomains(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	for _, id := range []string{stranger, neighbour, neighbour} {
		token(t, s.Client(t, id), task("t-1"))
	}
	for _, order := range []struct {
		who    string
		target client.Selection
	}{
		{"both", client.Selection{TrustDomain: "other.test", Task: "t-1"}},
		{"olga", client.Selection{SPIFFEID: neighbour, Task: "t-1"}},
	} {
		if _, err := s.Person(t, order.who).Revoke(t.Context(), order.target, "by "+order.who); err != nil {
			t.Fatal(err)
		}
	}
	for who, c := range map[string]*client.Client{neighbour: s.Client(t, neighbour), auditor: s.Client(t, auditor)} {
		var reasons []string
		for e, err := range c.TaskTimeline(t.Context(), "t-1", neighbour) {
			if err != nil {
				t.Fatalf("%s: %v", who, err)
			}
			if e.Kind == "credentials.revoke" {
				reasons = append(reasons, e.Reason)
			}
		}
		if diff := cmp.Diff([]string{"by olga"}, reasons); diff != "" {
			t.Errorf("%s reads orders (-want +got):\n%s", who, diff)
		}
	}
}

func firstError(events func(func(openapi.TimelineEvent, error) bool)) error {
	for _, err := range events {
		return err
	}
	return nil
}
