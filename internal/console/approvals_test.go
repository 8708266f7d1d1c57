package console_test

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const writeScope = "github.issues.write"

// comment returns a request that requires approval.
func comment(repo, reason string) client.Ask {
	return client.Ask{Scope: writeScope, Params: map[string]any{"repo": repo}, TTL: 5 * time.Minute, Task: "triage-7", Reason: reason}
}

// waits sends a new request that must wait for approval, and returns its id. Its idempotency key keeps it from repeating another one.
func waits(t *testing.T, c *client.Client, ask client.Ask) string {
	t.Helper()
	ask.IdempotencyKey = rand.Text()
	answer, err := c.Request(t.Context(), ask)
	if err != nil || answer.Pending == nil {
		t.Fatalf("got %+v, %v, want it to wait for people", answer, err)
	}
	return answer.Pending.ID
}

// presses clicks a button of a form and waits for the next page, which may have the same title.
func (b *tab) presses(button, then string) {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](`document.documentElement.dataset.before = "yes"; 0`),
		chromedp.Click(button, chromedp.NodeVisible), chromedp.WaitVisible(`//html[not(@data-before)]//h1[.="`+then+`"]`))
}

func (b *tab) has(what ...string) {
	b.t.Helper()
	got := get(b, chromedp.Evaluate[string](`document.body.innerText`))
	for _, text := range what {
		if !strings.Contains(got, text) {
			b.t.Errorf("%q is not on the page:\n%s", text, got)
		}
	}
}

const (
	approve = `button[value="approve"]`
	deny    = `button[value="deny"]`
)

func TestBrowserVote(t *testing.T) {
	w := newWorld(t)
	alice, agent := w.tab(t), w.agent(t, "triage-1")
	alice.login("alice")
	alice.open("/approvals")
	alice.has("No pending approvals.")

	first := waits(t, agent, comment("acme/api", "the milestone is done"))
	second := waits(t, agent, comment("acme/web", ""))
	third := waits(t, w.agent(t, "triage-2"), comment("acme/api", ""))
	alice.open("/approvals")
	alice.has("Comment on issues of one repository", "github:repo/acme/api", "the milestone is done", "followed by 1 similar", "write")
	alice.open("/approvals/" + first)
	alice.has("spiffe://acme.test/agents/triage-1", "https://github-gateway.test", "writes-need-a-person", "triage-7", "nothing: anyone who holds it can use it")
	alice.run(chromedp.Click("form:has("+approve+") .also summary"), chromedp.Click(`form:has(`+approve+`) input[name="also"]`, chromedp.NodeVisible))
	alice.presses(approve, "Approvals")
	alice.has("Approved: the sandbox can redeem the request now", "also applies to 1 similar")
	alice.check("/approvals notice")
	for id, by := range map[string]*client.Client{first: agent, third: w.agent(t, "triage-2")} {
		if got, err := by.Redeem(t.Context(), id, comment("acme/api", "")); err != nil || got.Token == nil {
			t.Errorf("got %+v, %v, want a credential", got, err)
		}
	}
	alice.run(chromedp.Click("#ask-"+second+" > details > summary"), chromedp.SendKeys("#ask-"+second+" form:has("+deny+") textarea", "not this one", chromedp.NodeVisible))
	alice.check("/approvals open")
	alice.presses("#ask-"+second+" "+deny, "Approvals")
	alice.has("Denied: no credential is issued", "No pending approvals.")
	if _, err := agent.Redeem(t.Context(), second, comment("acme/web", "")); err == nil {
		t.Error("what was denied was redeemed")
	}
	alice.open("/approvals/" + second)
	alice.has("Rejected", "This request is already decided", "not this one", "Alice Archer")
	// A denial after the decision still takes effect.
	alice.open("/approvals/" + first)
	alice.presses(deny, "Approvals")
	alice.has("the issued credential is revoked")
	w.DB.Check(t)
}

// A sandbox that repeats its request asks people once, and gets the credential after the click.
func TestBrowserApprovalIsCollectedByTheSameRequest(t *testing.T) {
	w := newWorld(t)
	alice, agent := w.tab(t), w.agent(t, "triage-1")
	var id, page string
	for range 3 {
		got, err := agent.Request(t.Context(), comment("acme/api", ""))
		if err != nil || got.Pending == nil || id != "" && got.Pending.ID != id {
			t.Fatalf("got %+v, %v, want one pending request", got, err)
		}
		id, page = got.Pending.ID, got.Pending.URL
	}
	alice.login("alice")
	alice.open("/approvals")
	if n := get(alice, chromedp.Evaluate[int](`document.querySelectorAll("[id^=ask-]").length`)); n != 1 {
		t.Errorf("%d requests are listed, want 1", n)
	}
	at, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	alice.open(at.Path)
	alice.presses(approve, "Approvals")
	if got, err := agent.Request(t.Context(), comment("acme/api", "")); err != nil || got.Token == nil {
		t.Errorf("got %+v, %v, want the credential", got, err)
	}
	w.DB.Check(t)
}

// approvalsWorld has a scope for each kind of approval: by a quorum of two, by break-glass, and for a whole task.
func approvalsWorld(t *testing.T) *world {
	t.Helper()
	oidc := testkit.Provider(t)
	w := &world{oidc: oidc, Stack: testkit.NewStack(t, testkit.Options{
		Catalogue: []scopes.File{
			{Name: "scopes.yaml", Data: []byte(catalogue + `
  - name: hosts.shell.open
    title: Log in to a host
    authority: permission
    params:
      host: {type: string, pattern: '[a-z0-9-]+', max_length: 100}
    resource: host:{host}
    ttl: {default: 5m, max: 15m}
    approval: {group: admins, quorum: 1, break_glass: oncall, expires: 10m}
    credential: {kind: jwt, audience: 'https://hosts.test'}
  - name: payments.refund
    title: Refund one payment
    authority: payment
    params:
      payment: {type: string, pattern: '[a-z0-9]+', max_length: 100}
    resource: payment:{payment}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, passkey: required, expires: 10m}
    credential: {kind: jwt, audience: 'https://payments.test'}
  - name: github.repo.delete
    title: Delete one repository
    authority: delete
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 2, remember: task, expires: 10m}
    credential: {kind: jwt, audience: 'https://github-gateway.test'}
`)},
			{Name: "policy.cedar", Data: []byte(`@id("agents") permit (principal, action, resource);
@id("people") forbid (principal, action, resource) unless { context.approved };`)},
		},
		Applied: true, OIDC: oidc, Pages: testkit.Pages(t), Owners: []string{"spiffe://acme.test/users/{owner}/**"}, Auditors: []string{auditor},
		Rules: []people.Rule{
			{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}}, {Role: people.RoleAuditor, Group: "auditors"},
		},
	})}
	w.console = w.Stack.Console(t)
	return w
}

const auditor = "spiffe://acme.test/auditor"

func shell(host string) client.Ask {
	return client.Ask{Scope: "hosts.shell.open", Params: map[string]any{"host": host}, Task: "outage-3"}
}

func deletion(repo string) client.Ask {
	return client.Ask{Scope: "github.repo.delete", Params: map[string]any{"repo": repo}, Task: "tidy-1"}
}

func (b *tab) sees(what string) {
	b.t.Helper()
	b.run(chromedp.WaitVisible(what))
}

func TestBrowserShowsNewRequests(t *testing.T) {
	w := newWorld(t)
	alice, agent := w.tab(t), w.agent(t, "triage-1")
	alice.login("alice")
	alice.open("/approvals")
	first := waits(t, agent, comment("acme/api", ""))
	alice.sees("#ask-" + first)
	alice.sees(`//p[@id="said"][.="1 request arrived. 1 request pending."]`)
	if got := get(alice, chromedp.Title()); got != "(1) Approvals · Brevet" {
		t.Errorf("got the title %q, want it to count what waits", got)
	}
	// The list does not move while somebody decides, and their text is kept.
	note := "#ask-" + first + " form:has(" + approve + ") textarea"
	alice.run(chromedp.Click("#ask-"+first+" > details > summary"), chromedp.SendKeys(note, "jk? for the release", chromedp.NodeVisible))
	second := waits(t, agent, comment("acme/web", ""))
	alice.sees(`//button[@id="show-new"][.="Show 1 new"]`)
	if got := get(alice, chromedp.Title()); got != "(2) Approvals · Brevet" {
		t.Errorf("got the title %q, want it to count what waits", got)
	}
	alice.check("/approvals new")
	if get(alice, chromedp.Evaluate[bool](`!!document.getElementById("ask-`+second+`")`)) {
		t.Error("the list has moved while somebody decides")
	}
	alice.run(chromedp.Click("#show-new"), chromedp.WaitVisible("#ask-"+second), chromedp.WaitNotVisible("#show-new"))
	if got := get(alice, chromedp.Value(note)); got != "jk? for the release" {
		t.Errorf("got %q, want what was written", got)
	}
	if get(alice, chromedp.Evaluate[bool](`document.getElementById("keys").open`)) {
		t.Error("a key did something while somebody was writing")
	}
	alice.run(chromedp.Click("#ask-"+first+" > details > summary"), chromedp.WaitNotPresent("#ask-"+first+" > details[open]"))
	// A request that somebody else decides disappears from the list.
	bob := w.program(t, "bob")
	if status, body := w.ask(t, bob, "/approvals/"+first+"/vote", w.voteForm(t, bob, first, "deny")); status != http.StatusSeeOther {
		t.Fatalf("got %d, want the vote taken:\n%s", status, body)
	}
	alice.run(chromedp.WaitNotPresent("#ask-" + first))
	alice.sees(`//p[@id="said"][.="1 request decided or expired. 1 request pending."]`)
	keys(t, alice, second, waits(t, agent, comment("acme/docs", "")))
}

// keys checks that the keyboard shortcuts only move between requests, and that they can be turned off.
func keys(t *testing.T, b *tab, first, second string) {
	t.Helper()
	b.sees("#ask-" + second)
	b.run(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
	at := func(want string) {
		t.Helper()
		if got := get(b, chromedp.Evaluate[string](`document.activeElement.closest("article")?.id ?? ""`)); got != want {
			t.Errorf("got to %q, want %q", got, want)
		}
	}
	for _, step := range []struct{ key, want string }{
		{"j", first}, {"j", second}, {"j", second}, {"k", first}, {"k", first}, {"y", first}, {"a", first}, {"n", first}, {"d", first},
	} {
		b.run(chromedp.KeyEvent(step.key))
		at("ask-" + step.want)
	}
	b.run(chromedp.KeyEvent("?"), chromedp.WaitVisible("#keys"))
	b.check("/approvals keys")
	b.run(chromedp.KeyEvent("j"), chromedp.Click("#use-keys"), chromedp.Click("#keys form button"), chromedp.WaitNotVisible("#keys"), chromedp.KeyEvent("?"), chromedp.KeyEvent("j"))
	if get(b, chromedp.Evaluate[bool](`document.getElementById("keys").open`)) {
		t.Error("a key that was turned off does something")
	}
	b.run(chromedp.Focus("#ask-"+second+" h2 a"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`//h1[.="Comment on issues of one repository"]`))
}

var hashField = regexp.MustCompile(`name="hash" value="([0-9a-f]{64})"`)

// voteForm returns the form that a request's page would send.
func (w *world) voteForm(t *testing.T, browser *http.Client, id, verdict string) url.Values {
	t.Helper()
	_, page := w.ask(t, browser, "/approvals/"+id, nil)
	found := hashField.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("there is no form on the page:\n%s", page)
	}
	return url.Values{"verdict": {verdict}, "hash": {found[1]}}
}

func TestBrowserQuorum(t *testing.T) {
	w := approvalsWorld(t)
	agent := w.agent(t, "tidy")
	alice, bob := w.tab(t), w.tab(t)
	alice.login("alice")
	bob.login("bob")
	two := waits(t, agent, deletion("acme/old"))
	alice.open("/approvals/" + two)
	bob.open("/approvals/" + two)
	alice.has("2 of oncall; no votes yet", "identical requests")
	alice.run(chromedp.Click(`input[value="task"]`))
	alice.presses(approve, "Approvals")
	alice.has("1 of 2. 1 more of oncall required")
	alice.open("/approvals/" + two)
	alice.has("You have already approved this request", "for the task")
	bob.presses(approve, "Approvals")
	bob.has("Approved: the sandbox can redeem the request now")
	if got, err := agent.Redeem(t.Context(), two, deletion("acme/old")); err != nil || got.Token == nil {
		t.Errorf("got %+v, %v, want a credential", got, err)
	}

	down := waits(t, agent, shell("web-1"))
	alice.open("/approvals/" + down)
	const breaks = `button[value="break_glass"]`
	if get(alice, chromedp.Evaluate[bool](`!!document.querySelector('`+approve+`')`)) {
		t.Error("who may only stand in is offered to approve")
	}
	alice.run(chromedp.SendKeys("form:has("+breaks+") textarea", "admins do not answer"))
	alice.presses(breaks, "Approvals")
	alice.has("Break-glass vote recorded, and everybody is notified: 1 of 2 of oncall", "If this is not an emergency, deny the request now")
	alice.check("/approvals broken")
	bob.open("/approvals/" + down)
	bob.has("Break-glass vote.", "admins do not answer", "Break-glass by")
	bob.run(chromedp.SendKeys("form:has("+breaks+") textarea", "it burns"))
	bob.presses(breaks, "Approvals")
	bob.has("Approved by break-glass")
	got, err := agent.Redeem(t.Context(), down, shell("web-1"))
	if err != nil || got.Token == nil || !got.Token.BreakGlass {
		t.Errorf("got %+v, %v, want a credential by breaking the glass", got, err)
	}
	metrics := httptest.NewRecorder()
	w.Server.Metrics().ServeHTTP(metrics, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, want := range []string{`brevet_break_glass_total{step="vote"} 2`, `brevet_votes_total{group="oncall",verdict="approve"} `} {
		if got := metrics.Body.String(); !strings.Contains(got, want) {
			t.Errorf("got no %s, want what is voted here counted:\n%s", want, got)
		}
	}
	w.DB.Check(t)
}

// A catalogue that comes into force while approvers have requests open makes these void: pages say so, and a vote is refused with what to
// do. The admin saw before how many.
func TestBrowserCatalogueMakesRequestsVoid(t *testing.T) {
	w := newWorld(t)
	agent := w.agent(t, "triage-1")
	first, second := waits(t, agent, comment("acme/api", "")), waits(t, agent, comment("acme/web", ""))
	carol, alice, late := w.tab(t), w.tab(t), w.tab(t)
	alice.login("alice")
	alice.open("/approvals")
	alice.sees("#ask-" + first)
	late.login("alice")
	late.open("/approvals/" + second)
	late.sees(approve)
	carol.login("carol")
	carol.edits(wider)
	carol.has("Open requests that become void: 2")
	w.apply(t, "carol", "less waiting", files(catalogue, wider))
	alice.run(chromedp.WaitNotPresent("#ask-"+first), chromedp.WaitNotPresent("#ask-"+second))
	alice.has("No pending approvals.")
	late.presses(approve, "Request is void")
	late.has("The catalogue changed after the request was made", "Your vote was not counted", "has to send the request again")
	late.open("/approvals/" + second)
	late.has("Void", "This request is void: the catalogue changed at", "(version 2)", "vote on the new request")
	late.run(chromedp.WaitNotPresent(approve), chromedp.WaitNotPresent(deny))
	late.check("/approvals void")
	if _, err := agent.Redeem(t.Context(), second, comment("acme/web", "")); !errors.Is(err, client.ErrStale) {
		t.Errorf("got %v, want that the request is void", err)
	}
	w.DB.Check(t)
}
