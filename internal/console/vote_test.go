package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// H83, H84, H86, H87, H90 to H92: nobody votes on something that they have not seen, on their own request, twice, too late,
// or unintentionally.
func TestInvalidVotesAreRefused(t *testing.T) {
	w := approvalsWorld(t)
	agent, alice, bob := w.agent(t, "tidy"), w.program(t, "alice"), w.program(t, "bob")
	open, other := waits(t, agent, comment("acme/api", "")), waits(t, agent, comment("acme/web", ""))
	own := waits(t, w.Client(t, "spiffe://acme.test/users/alice/agent"), comment("acme/api", ""))
	glass, withdrawn := waits(t, agent, shell("web-1")), waits(t, agent, comment("acme/gone", ""))
	foreign := waits(t, agent, comment("acme/other", ""))
	gone := w.voteForm(t, bob, withdrawn, "approve")
	if err := agent.Withdraw(t.Context(), withdrawn); err != nil {
		t.Fatal(err)
	}
	form := func(id, verdict string, more ...string) url.Values {
		f := w.voteForm(t, bob, id, verdict)
		for i := 0; i < len(more); i += 2 {
			f.Set(more[i], more[i+1])
		}
		return f
	}
	for _, tc := range []struct {
		name, id string
		as       *http.Client
		form     url.Values
		headers  []string
		status   int
		says     string
	}{
		{"the hash of another request", open, alice, form(other, "approve"), nil, 409, "Request has changed"},
		{"no hash", open, alice, url.Values{"verdict": {"approve"}}, nil, 422, "Incomplete form"},
		{"a hash that is too long", open, alice, form(open, "approve", "hash", strings.Repeat("0", 66)), nil, 422, "Incomplete form"},
		{"no verdict", open, alice, form(open, ""), nil, 422, "Incomplete form"},
		{"two forms at once", open, alice, form(open, "approve", "also", other), nil, 422, "Incomplete form"},
		{"their own sandbox's", own, alice, form(own, "approve"), nil, 403, "Own request"},
		{"for the task, which the scope does not let", open, alice, form(open, "approve", "covers", "task"), nil, 422, "Approval cannot cover the task"},
		{"a no for the task", open, alice, form(open, "deny", "covers", "task"), nil, 422, "Incomplete form"},
		{"not of the group", glass, alice, form(glass, "approve"), nil, 403, "Not eligible to vote"},
		{"breaking the glass without a note", glass, alice, form(glass, "break_glass", "note", "  "), nil, 422, "Note required"},
		{"breaking a glass that is not there", open, alice, form(open, "break_glass", "note", "now"), nil, 403, "Not eligible to vote"},
		{"a note that is too long", open, alice, form(open, "approve", "note", strings.Repeat("n", 1001)), nil, 422, "Incomplete form"},
		{"a note with a secret (H82)", open, alice, form(open, "approve", "note", "hvs.CAESIJ0123456789abcdefghij"), nil, 422, "appears to contain a secret"},
		{"withdrawn", withdrawn, alice, gone, nil, 409, "Already decided"},
		{"nothing", "01a201c0-0000-7000-8000-000000000000", alice, form(open, "approve"), nil, 404, "Not found"},
		{"no id", "x", alice, form(open, "approve"), nil, 404, "Not found"},
		{"a page of another site", open, alice, form(open, "approve"), []string{"Sec-Fetch-Site", "cross-site"}, 403, "Cross-origin request refused"},
		{"a page of a neighbour", open, alice, form(open, "approve"), []string{"Origin", "http://127.0.0.1:1"}, 403, "Cross-origin request refused"},
		{"a prefetch", open, alice, nil, nil, 405, "Method not allowed"},
		{"no role", foreign, w.program(t, "dave"), form(open, "approve"), nil, 403, "Permission denied"},
		{"nobody", foreign, w.program(t, ""), form(open, "approve"), nil, 401, "Login required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if status, body := w.ask(t, tc.as, "/approvals/"+tc.id+"/vote", tc.form, tc.headers...); status != tc.status || !strings.Contains(body, tc.says) {
				t.Errorf("got %d, want %d and %q:\n%s", status, tc.status, tc.says, body)
			}
		})
	}
	for _, id := range []string{open, other, own, glass, foreign} {
		if _, page := w.ask(t, bob, "/approvals/"+id, nil); !strings.Contains(page, "no votes yet") {
			t.Errorf("somebody has voted on %s:\n%s", id, page)
		}
	}
	// A second approval of the same person counts once (H84).
	two := waits(t, agent, deletion("acme/old"))
	for _, says := range []string{"1 of 2", "nothing has changed"} {
		if status, body := w.ask(t, alice, "/approvals/"+two+"/vote", form(two, "approve")); status != http.StatusSeeOther {
			t.Fatalf("got %d, want the vote taken:\n%s", status, body)
		}
		if _, page := w.ask(t, alice, "/approvals", nil); !strings.Contains(page, says) {
			t.Errorf("%q is not on the page:\n%s", says, page)
		}
	}
	w.DB.Check(t)
}

// Only approvers see the pages for approvers, and attempts by others are recorded.
func TestApprovalsAreForApprovers(t *testing.T) {
	w := approvalsWorld(t)
	id := waits(t, w.agent(t, "tidy"), comment("acme/api", ""))
	dave := w.program(t, "dave")
	for _, path := range []string{"/approvals", "/approvals/" + id, "/approvals/events"} {
		if status, body := w.ask(t, dave, path, nil); status != http.StatusForbidden || strings.Contains(body, "acme/api") {
			t.Errorf("%s: got %d, want 403 and nothing of the request:\n%s", path, status, body)
		}
		if status, _ := w.ask(t, w.program(t, ""), path, nil, "Sec-Fetch-Dest", "empty"); status != http.StatusUnauthorized {
			t.Errorf("%s: got %d to nobody, want 401", path, status)
		}
	}
	refused := 0
	for _, e := range w.DB.Entries(t) {
		if body := fmt.Sprint(e.Body); strings.Contains(body, "not_allowed") && strings.Contains(body, "#dave") {
			refused++
		}
	}
	if refused != 3 {
		t.Errorf("got %d refusals of Dave in the record, want 3", refused)
	}
	// Alice is an approver only in acme.test (H92).
	foreign := waits(t, w.Client(t, "spiffe://other.test/agents/a"), comment("acme/api", ""))
	if status, _ := w.ask(t, w.program(t, "alice"), "/approvals/"+foreign, nil); status != http.StatusNotFound {
		t.Errorf("got %d for a request of another trust domain, want 404", status)
	}
}

// A person who votes on similar requests together has seen each of them completely (T7).
func TestGroupedRequestsAreShownInFull(t *testing.T) {
	w := approvalsWorld(t)
	repo := "acme/" + strings.Repeat("long-", 15) + "tail"
	first := waits(t, w.agent(t, "tidy-1"), comment(repo, ""))
	waits(t, w.agent(t, "tidy-2"), comment(repo, ""))
	_, page := w.ask(t, w.program(t, "alice"), "/approvals/"+first, nil)
	_, also, found := strings.Cut(page, `name="also"`)
	also, _, _ = strings.Cut(also, "</label>")
	for _, want := range []string{"<code>github:repo/" + repo + "</code>", "repo = <code>" + repo + "</code>", "nothing: anyone who holds it can use it"} {
		if !found || !strings.Contains(also, want) {
			t.Errorf("%q is not said of the one that is alike:\n%s", want, also)
		}
	}
}

// A vote without permission is recorded even if it is cast together with a permitted one, as if it had been cast alone.
func TestRefusedVoteInABatchIsRecorded(t *testing.T) {
	w := approvalsWorld(t)
	alice, bob := w.program(t, "alice"), w.program(t, "bob")
	open := waits(t, w.agent(t, "tidy"), comment("acme/api", ""))
	own := waits(t, w.Client(t, "spiffe://acme.test/users/alice/agent"), comment("acme/api", ""))
	voteForm := w.voteForm(t, bob, open, "approve")
	voteForm.Set("also", own+"."+w.voteForm(t, bob, own, "approve").Get("hash"))
	if status, body := w.ask(t, alice, "/approvals/"+open+"/vote", voteForm); status != http.StatusSeeOther {
		t.Fatalf("got %d:\n%s", status, body)
	}
	if n := refusals(t, w, "own_request", "#alice"); n != 1 {
		t.Errorf("got %d refusals of Alice's own in the record, want 1", n)
	}
	if status, _ := w.ask(t, bob, "/you/passkeys", url.Values{"name": {"x"}, "response": {"{}"}}); status != http.StatusUnprocessableEntity {
		t.Errorf("got %d to a registration that nobody began", status)
	}
	if n := refusals(t, w, "not_registered", "#bob"); n != 1 {
		t.Errorf("got %d refusals of Bob's passkey in the record, want 1", n)
	}
	w.DB.Check(t)
}

// refusals counts the entries about refused requests.
func refusals(t *testing.T, w *world, code, who string) (n int) {
	t.Helper()
	for _, e := range w.DB.Entries(t) {
		if body := fmt.Sprint(e.Body); strings.Contains(body, "call.refused") && strings.Contains(body, code) && strings.Contains(body, who) {
			n++
		}
	}
	return n
}
