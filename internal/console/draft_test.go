package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
)

// edits edits policy.cedar in the page and submits it for review.
func (b *tab) edits(text string) {
	b.t.Helper()
	b.open("/catalogue/draft?file=policy.cedar")
	b.run(
		chromedp.SetValue(`textarea.mono`, text), chromedp.Click(`//button[.="Check and review"]`), chromedp.WaitNotPresent(`input[type="file"]`),
		chromedp.WaitVisible("main#main"),
	)
}

// confirms types the reason and the confirmation of an action.
func (b *tab) confirms(form, reason, word string) {
	b.t.Helper()
	b.run(chromedp.SendKeys(form+` textarea[name="reason"]`, reason), chromedp.SendKeys(form+` input[name="confirm"]`, word))
}

func TestBrowserCatalogueTakesTwoAdmins(t *testing.T) {
	w := newWorldWith(t, twoAdmins)
	agent := w.agent(t, "triage-1")
	if answer, err := agent.Request(t.Context(), comment("acme/api", "")); err != nil || answer.Pending == nil {
		t.Fatalf("got %+v, %v, want it to wait for people", answer, err)
	}
	carol, alice := w.tab(t), w.tab(t)
	carol.login("carol")
	carol.edits(strings.Replace(wider, `Action::"github.issues.read"`, `Action::"github.isues.read"`, 1))
	carol.check("/catalogue/draft refused")
	carol.has("Invalid draft", "policy.cedar:2", "github.isues.read")

	carol.edits(wider)
	carol.check("/catalogue/draft checked")
	carol.has("1 widens reach", "writes-need-a-person", "Propose the draft")
	carol.run(chromedp.Click(`//button[.="Replay"]`), chromedp.WaitVisible(`//h1[.="Replay"]`))
	carol.check("/catalogue/replay")
	carol.has("1 of 1 decisions would change", "newly ungated", "github.issues.write")

	carol.edits(wider)
	const form = `form[action="/catalogue/apply"]`
	carol.confirms(form, "x", "yes")
	carol.presses(form+" button", "Confirmation required")
	carol.edits(wider)
	carol.confirms(form, "less waiting <img src=x onerror=alert(1)>", "apply")
	carol.presses(form+" button", "Catalogue")
	carol.check("/catalogue proposed")
	carol.has("Proposed. The draft takes effect when another admin approves it.", "Pending proposal")
	carol.run(chromedp.Click(`//a[.="Review and decide"]`), chromedp.WaitVisible(`//h1[.="Catalogue proposal"]`))
	carol.check("/catalogue/proposals own")
	carol.has("Another admin must approve it")
	if strings.Contains(carol.page(), "Approve and apply") {
		t.Error("who has proposed it is shown a form to approve it")
	}

	alice.login("alice")
	alice.open("/catalogue")
	alice.run(chromedp.Click(`//a[.="Review and decide"]`), chromedp.WaitVisible(`//h1[.="Catalogue proposal"]`))
	alice.check("/catalogue/proposals")
	alice.has("less waiting <img src=x onerror=alert(1)>", "carol", "1 widens reach", "- forbid (principal")
	alice.confirms(`form:has(button[value="approve"])`, "seen, and fine", "apply")
	alice.presses(`button[value="approve"]`, "Catalogue")
	alice.has("Approved: the catalogue is in force", "2 policies")
	if answer, err := agent.Request(t.Context(), comment("acme/web", "")); err != nil || answer.Token == nil {
		t.Errorf("got %+v, %v, want a credential at once", answer, err)
	}
	alice.open("/catalogue/versions")
	alice.has("seen, and fine")
}

func TestInvalidCatalogueChangesAreRefused(t *testing.T) {
	w := newWorldWith(t, twoAdmins)
	first, second := digestOf(t, files(catalogue, policies)), digestOf(t, files(catalogue, wider))
	dave, carol, alice, erin := w.program(t, "dave"), w.program(t, "carol"), w.program(t, "alice"), w.program(t, "erin")
	draft := func(more ...string) url.Values {
		fields := url.Values{"base": {first}, "name": {"policy.cedar"}, "text": {wider}, "digest": {second}, "reason": {"because"}, "confirm": {"apply"}}
		for i := 0; i < len(more); i += 2 {
			fields.Set(more[i], more[i+1])
		}
		return fields
	}
	for _, row := range []struct {
		name   string
		as     *http.Client
		path   string
		fields url.Values
		status int
		says   string
	}{
		{"an auditor applies", dave, "/catalogue/apply", draft(), http.StatusForbidden, "Permission denied"},
		{"an auditor checks", dave, "/catalogue/draft", draft(), http.StatusForbidden, "Permission denied"},
		{"an auditor replays", dave, "/catalogue/replay", draft("since", "24h"), http.StatusForbidden, "Permission denied"},
		{"nobody of a role applies", erin, "/catalogue/apply", draft(), http.StatusForbidden, "Permission denied"},
		{"without the word", carol, "/catalogue/apply", draft("confirm", ""), http.StatusUnprocessableEntity, "did not type the confirmation word"},
		{"without a reason", carol, "/catalogue/apply", draft("reason", " "), http.StatusUnprocessableEntity, "Reason required"},
		{"with a secret", carol, "/catalogue/apply", draft("reason", "AKIAABCDEFGHIJKLMNOP"), http.StatusUnprocessableEntity, "appears to contain a secret"},
		{"another text than was shown", carol, "/catalogue/apply", draft("text", policies+"\n"), http.StatusUnprocessableEntity, "differs from the one that you reviewed"},
		{"no catalogue", carol, "/catalogue/apply", draft("text", "permit"), http.StatusUnprocessableEntity, "differs from the one that you reviewed"},
		{"another base", carol, "/catalogue/apply", draft("base", second), http.StatusNotFound, "Not found"},
		{"a replay without end", carol, "/catalogue/replay", draft("since", "99999h"), http.StatusUnprocessableEntity, "Incomplete form"},
		{"a proposal that does not exist", alice, "/catalogue/proposals/" + second, url.Values{"base": {first}, "verdict": {"approve"}, "reason": {"x"}, "confirm": {"apply"}}, http.StatusNotFound, "Not found"},
	} {
		if status, page := w.ask(t, row.as, row.path, row.fields); status != row.status || !strings.Contains(page, row.says) {
			t.Errorf("%s: got %d and\n%s\nwant %d with %q", row.name, status, page, row.status, row.says)
		}
	}
	for _, path := range []string{"/catalogue", "/catalogue/versions", "/catalogue/explain", "/catalogue/draft"} {
		if page := w.read(t, erin, path); !strings.Contains(page, "Permission denied") {
			t.Errorf("%s: got\n%s\nwant a refusal", path, page)
		}
	}
	if status, _ := w.ask(t, carol, "/catalogue/apply", draft()); status != http.StatusSeeOther {
		t.Errorf("got %d, want the proposal taken", status)
	}
	if status, _ := w.ask(t, carol, "/catalogue/replay?since=24h&digest="+second, nil); status != http.StatusMethodNotAllowed {
		t.Errorf("a link to a replay: got %d, want %d", status, http.StatusMethodNotAllowed)
	}
	if status, page := w.ask(t, carol, "/catalogue/proposals/"+second+"/replay", url.Values{"since": {"24h"}}); status != http.StatusOK || !strings.Contains(page, "<h1>Replay</h1>") {
		t.Errorf("a replay of the proposal: got %d\n%s", status, page)
	}
	vote := func(base string) url.Values {
		return url.Values{"base": {base}, "verdict": {"approve"}, "reason": {"x"}, "confirm": {"apply"}}
	}
	if status, page := w.ask(t, carol, "/catalogue/proposals/"+second, vote(first)); status != http.StatusForbidden || !strings.Contains(page, "a catalogue that you proposed") {
		t.Errorf("got %d and\n%s\nwant that who proposed it cannot approve it", status, page)
	}
	if status, page := w.ask(t, alice, "/catalogue/proposals/"+second, vote(second)); status != http.StatusPreconditionFailed {
		t.Errorf("got %d and\n%s\nwant that another base is in force", status, page)
	}
	if head, _, err := w.Broker.CatalogueInForce(t.Context()); err != nil || head.Digest != first {
		t.Errorf("got %+v, %v, want nothing changed", head, err)
	}
	var n int
	err := testkit.Connect(t, w.DB.AdminURL).QueryRow(t.Context(),
		`SELECT count(*) FROM entries WHERE kind = 'call.refused' AND convert_from(body, 'UTF8') LIKE '%not_allowed%'`).Scan(&n)
	if err != nil || n != 8 {
		t.Errorf("got %d refusals on the record, %v, want 8", n, err)
	}
}

func TestBrowserExplain(t *testing.T) {
	w := newWorld(t)
	b := w.tab(t)
	b.login("dave")
	b.open("/catalogue/explain")
	b.run(chromedp.SetValue(`select[name="scope"]`, "github.issues.write"))
	get(b, chromedp.Evaluate[bool](`document.querySelector('select[name="scope"]').dispatchEvent(new Event("change", {bubbles: true}))`))
	b.run(
		chromedp.WaitVisible(`input[name="p.repo"]`), chromedp.SendKeys(`input[name="p.repo"]`, "acme/api"),
		chromedp.SendKeys(`input[name="as"]`, "spiffe://acme.test/agents/a"), chromedp.Click(`button[name="explain"]`), chromedp.WaitVisible("h2#answer"),
	)
	b.check("/catalogue/explain pending")
	b.has("Decision Pending", "1 of oncall within 10m", "agents-may-write", "github:repo/acme/api")
	b.goTo("/catalogue/explain?as=spiffe://acme.test/other/a&scope=github.issues.read&p.repo=acme/api&explain=1")
	b.has("Decision Denied", "No policy applies.", "no_permit")
	b.goTo("/catalogue/explain?as=spiffe://acme.test/agents/a&scope=github.issues.read&p.repo=acme/api&ttl=1h&explain=1")
	b.has("Decision Allowed", "agents-may-read", "from 1h to 15m by scope.max")
	for query, want := range map[string]string{
		"as=nobody&scope=github.issues.read&p.repo=acme/api":                          "must be a SPIFFE ID",
		"as=spiffe://acme.test/agents/a&scope=github.issues.read&p.repo=../x":         "The request is invalid",
		"as=spiffe://acme.test/agents/a&scope=github.issues.read&p.repo=a/b&ttl=soon": "must be a duration such as",
		"as=spiffe://acme.test/agents/a&scope=no.such":                                "Denied",
		"as=spiffe://acme.test/agents/a&scope=" + url.QueryEscape(hostile):            "The request is invalid",
	} {
		b.goTo("/catalogue/explain?explain=1&" + query)
		b.has(want)
	}
}

// A catalogue whose scopes Vault cannot serve is neither proposed nor approved, unless the admin ticks the box. The page names what is
// missing, and the list of versions says that the change was forced.
func TestCatalogueThatVaultCannotServeNeedsForce(t *testing.T) {
	w := newWorldWith(t, twoAdmins)
	text := catalogue + `  - name: notes.read
    title: Read notes
    authority: read
    resource: vault:notes
    ttl: {default: 1m, max: 5m}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [read]}]}
`
	first, second := digestOf(t, files(catalogue, policies)), digestOf(t, files(text, policies))
	carol, alice := w.program(t, "carol"), w.program(t, "alice")
	draft := url.Values{"base": {first}, "name": {"scopes.yaml"}, "text": {text}, "digest": {second}, "reason": {"because"}, "confirm": {"apply"}}
	if _, page := w.ask(t, carol, "/catalogue/draft", draft); !strings.Contains(page, `name="force"`) {
		t.Errorf("got\n%s\nwant a box to force the change", page)
	}
	vote := url.Values{"base": {first}, "verdict": {"approve"}, "reason": {"x"}, "confirm": {"apply"}}
	for _, step := range []struct {
		who  *http.Client
		path string
		form url.Values
	}{{carol, "/catalogue/apply", draft}, {alice, "/catalogue/proposals/" + second, vote}} {
		status, page := w.ask(t, step.who, step.path, step.form)
		if status != http.StatusConflict || !strings.Contains(page, "scope notes.read needs the policy brevet-scope.notes.read.") || !strings.Contains(page, "brevet bootstrap") {
			t.Errorf("%s: got %d and\n%s\nwant a refusal that names what is missing", step.path, status, page)
		}
		step.form.Set("force", "yes")
		if status, page := w.ask(t, step.who, step.path, step.form); status != http.StatusSeeOther {
			t.Errorf("%s, forced: got %d and\n%s", step.path, status, page)
		}
	}
	if page := w.read(t, carol, "/catalogue/versions"); !strings.Contains(page, " forced") {
		t.Errorf("got\n%s\nwant the version to be marked as forced", page)
	}
}
