package console_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
)

// misleading is a reason that would do harm if anything treated it as more than text (H71 to H80).
var misleading = "=1+1 \x1b[31m\x1b]8;;https://evil.test\x07link\x1b]52;c;eA==\x07 \u202egpj.exe \u200b\U000E0041 <img src=x onerror=alert(1)> " +
	"javascript:alert(1) ![x](https://evil.test/x.png) APPROVED BY alice\r\n'; DROP TABLE issuances; --" + strings.Repeat("\n", 500) + "the end"

// issue requests a read credential for a sandbox of acme.test and returns it.
func (w *world) issue(t *testing.T, name, task, reason string) *client.Token {
	t.Helper()
	return w.request(t, name, client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/" + name}, Task: task, Reason: reason}).Token
}

// request sends a request of a sandbox and returns the answer. The request must be allowed or pending.
func (w *world) request(t *testing.T, name string, ask client.Ask) client.Answer {
	t.Helper()
	got, err := w.agent(t, name).Request(t.Context(), ask)
	if err != nil {
		t.Fatalf("%s asks for %s: %v", name, ask.Scope, err)
	}
	return got
}

// found returns the ids of the records that a page lists.
func (b *tab) found() []string {
	b.t.Helper()
	return strings.Fields(get(b, chromedp.Evaluate[string](
		`[...document.querySelectorAll('main tbody a[href^="/issuances/"]')].map(a => a.pathname.split("/")[2]).join(" ")`)))
}

// visit opens a page without checking it.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.world.console + path))
}

// said returns the current text of a part of the page.
func (b *tab) said(selector string) string {
	b.t.Helper()
	return get(b, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector)))
}

// follow opens the target of a link.
func (b *tab) follow(link string) {
	b.t.Helper()
	b.run(chromedp.Navigate(get(b, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q).href", link)))))
}

// harmless fails if untrusted text has become markup or hidden characters on the page.
func (b *tab) harmless(where string) {
	b.t.Helper()
	if n := get(b, chromedp.Evaluate[int](`document.querySelectorAll("main img, main a[href^='javascript:'], main a[href*='evil'], main [onerror]").length`)); n != 0 {
		b.t.Errorf("%s: %d elements are made of what a sandbox wrote", where, n)
	}
	text := get(b, chromedp.Evaluate[string](`document.body.innerText`))
	if strings.ContainsAny(text, "\x1b\u202e\u200b\U000E0041\x07") {
		b.t.Errorf("%s: characters that hide or reorder text are in the page", where)
	}
}

// An auditor searches, reads one record and its task, and exports the results.
func TestBrowserHistory(t *testing.T) {
	w := newWorld(t)
	first := w.issue(t, "reader", "triage-1", misleading)
	other := w.issue(t, "writer", "triage-2", "A needle in the hay")
	waits := w.request(t, "writer", client.Ask{Scope: "github.issues.write", Params: map[string]any{"repo": "acme/writer"}, Task: "triage-2", Reason: "to answer"})
	if _, err := w.agent(t, "reader").Request(t.Context(), client.Ask{Scope: "no.such.scope", Task: "triage-1"}); err == nil {
		t.Fatal("a scope that there is none of is given")
	}
	b := w.tab(t)
	b.login("dave")
	b.open("/history")
	if got := b.found(); len(got) != 4 {
		t.Fatalf("got %v, want four records", got)
	}
	b.harmless("history")

	b.run(chromedp.SendKeys(`input[name="q"]`, "NEEDLE"), chromedp.Click(`.search button`), chromedp.WaitVisible(`//a[.="Reset"]`))
	if diff := cmp.Diff([]string{other.ID}, b.found()); diff != "" {
		t.Errorf("words of the reason (-want +got):\n%s", diff)
	}
	for query, want := range map[string]int{
		"scope=github.issues.read": 2, "spiffe_id_prefix=spiffe://acme.test/agents/writer": 2, "decision_code=unknown_scope": 1, "status=pending": 1,
		"param=repo%3Dacme%2Fwriter": 2, "task=triage-1": 2, "trust_domain=other.test": 0, "until=2020-01-01T00:00": 0, "since=2020-01-01T00:00&decision=deny": 1,
	} {
		b.visit("/history?" + query)
		if got := b.found(); len(got) != want {
			t.Errorf("%s: got %v, want %d", query, got, want)
		}
	}
	b.open("/history?status=pending")
	if got := b.said("main tbody"); !strings.Contains(got, "Pending approval required") || !slices.Contains(b.found(), waits.Pending.ID) {
		t.Errorf("what waits reads %q", got)
	}
	b.visit("/history?task=nothing")
	if got := b.said("main"); !strings.Contains(got, "No results that you may see") {
		t.Errorf("a search that finds nothing reads %q", got)
	}
	b.open("/history?status=nonsense")
	if got := b.said("main"); !strings.Contains(got, "Invalid search") {
		t.Errorf("a search for nonsense reads %q", got)
	}

	b.open("/issuances/" + first.ID)
	b.harmless("issuance")
	if got := b.said("main"); b.said("h1") != "Issuance" || !strings.Contains(got, client.DigestOf(first.Secret)) || !strings.Contains(got, "Request allowed") ||
		strings.Index(got, "triage-1") > strings.Index(got, "APPROVED BY alice") {
		t.Errorf("got %q, want the facts, and then what the sandbox says", got)
	}
	b.follow(`dl a[href^="/tasks"]`)
	b.check("/tasks")
	b.harmless("task")
	if got := b.said("main"); !strings.Contains(got, "Request denied") || !slices.Contains(b.found(), first.ID) {
		t.Errorf("the task reads %q", got)
	}
	b.visit("/history")
	saves(t, w, b.found())
}

// saves compares each export format with the page.
func saves(t *testing.T, w *world, want []string) {
	t.Helper()
	dave := w.program(t, "dave")
	_, text := w.ask(t, dave, "/history/export?format=csv&task=triage-1", nil)
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("got %d rows, %v, want a header and two records:\n%s", len(rows), err, text)
	}
	reason := rows[2][slices.Index(rows[0], "reason")]
	if !strings.HasPrefix(reason, "'=1+1") {
		t.Errorf("a spreadsheet takes the reason %q for a formula", reason)
	}
	_, text = w.ask(t, dave, "/history/export?format=csv", nil)
	if rows, err = csv.NewReader(strings.NewReader(text)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, row := range rows[1:] {
		ids = append(ids, row[slices.Index(rows[0], "id")])
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("the file and the page (-want +got):\n%s", diff)
	}
	for _, format := range []string{"ndjson", "cloudevents", "ocsf"} {
		status, text := w.ask(t, dave, "/history/export?format="+format, nil)
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if status != http.StatusOK || len(lines) != len(want) {
			t.Errorf("%s: got %d and %d lines, want %d", format, status, len(lines), len(want))
		}
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: got a line that is no JSON: %s", format, line)
			}
		}
	}
}

// Paging works in both directions, and a cursor of one listing is invalid in another (H98).
func TestBrowserHistoryPages(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for range 53 {
		ids = append(ids, w.issue(t, "reader", "triage", "").ID)
	}
	slices.Reverse(ids)
	b := w.tab(t)
	b.login("dave")
	b.visit("/history?task=triage")
	first := b.found()
	b.follow(`a[rel="next"]`)
	second := b.found()
	if diff := cmp.Diff(ids, append(first, second...)); diff != "" {
		t.Errorf("two pages (-want +got):\n%s", diff)
	}
	here, err := url.Parse(get(b, chromedp.Location()))
	if err != nil {
		t.Fatal(err)
	}
	b.follow(`a[rel="prev"]`)
	if diff := cmp.Diff(first, b.found()); diff != "" {
		t.Errorf("back on the first page (-want +got):\n%s", diff)
	}
	cursor := here.Query().Get("cursor")
	flipped := cursor[:10] + string('A'+(cursor[10]-'A'+1)%26) + cursor[11:]
	for name, tc := range map[string]struct{ who, query string }{
		"flipped": {"dave", "task=triage&cursor=" + flipped}, "another search": {"dave", "cursor=" + cursor}, "somebody else": {"carol", "task=triage&cursor=" + cursor},
	} {
		if status, body := w.ask(t, w.program(t, tc.who), "/history?"+tc.query, nil); status != http.StatusBadRequest || strings.Contains(body, "/issuances/") {
			t.Errorf("%s: got %d, want 400", name, status)
		}
	}
}

// H92 and H100: only auditors read the record, each within their reach.
func TestOnlyAuditorsReadHistory(t *testing.T) {
	w := newWorldWith(t, func(o *testkit.Options) {
		o.Rules = append(o.Rules, people.Rule{Role: people.RoleAuditor, Group: "engineers", Within: []string{"spiffe://other.test"}})
	})
	id := w.issue(t, "reader", "triage", "needle").ID
	task := "/tasks?task=triage&spiffe_id=" + url.QueryEscape("spiffe://acme.test/agents/reader")
	alice, bob, dave := w.program(t, "alice"), w.program(t, "bob"), w.program(t, "dave")
	for _, path := range []string{"/history", "/history/export?format=csv", "/issuances/" + id, task} {
		if status, body := w.ask(t, bob, path, nil); status != http.StatusForbidden || strings.Contains(body, id) {
			t.Errorf("%s, for an approver: got %d, want 403", path, status)
		}
		if status, _ := w.ask(t, w.program(t, ""), path, nil); status != http.StatusSeeOther {
			t.Errorf("%s, for nobody: got %d, want to be sent to log in", path, status)
		}
		if status, body := w.ask(t, dave, path, nil); status != http.StatusOK || !strings.Contains(body, id) {
			t.Errorf("%s, for an auditor: got %d", path, status)
		}
		status, body := w.ask(t, alice, path, nil)
		if strings.Contains(body, id) || status != http.StatusNotFound && !strings.HasPrefix(path, "/history") {
			t.Errorf("%s, for an auditor of another trust domain: got %d:\n%s", path, status, body)
		}
	}
	for path, want := range map[string]int{
		"/issuances/nonsense": 404, "/issuances/" + strings.ToUpper(id): 404, "/history/export?format=parquet": 422, "/history/export?format=csv&status=x": 422,
		"/history?credential=xyz": 422, "/history?param=repo": 422, "/history?since=2030-01-01T00:00&until=2020-01-01T00:00": 422, "/history?q=%27%3B--": 200, "/history?q=%00": 200,
		"/tasks?spiffe_id=x&task=y": 422, "/history?cursor=x": 400, "/history?task=a&task=b": 422,
	} {
		if status, body := w.ask(t, dave, path, nil); status != want {
			t.Errorf("%s: got %d, want %d:\n%s", path, status, want, body)
		}
	}
}
