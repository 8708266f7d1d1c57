package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// untrusted maps kinds of attacks to texts from sandboxes and people that try to be more than text (H71 to H81).
var untrusted = map[string]string{
	"control sequences":  "\x1b[2J\x1b]8;;https://evil.test\x07here\x1b]8;;\x07\x1b]52;c;eA==\x07\u009b31m",
	"another direction":  "for \u202egnirongi\u202c the rest",
	"what does not show": "wri\u200bte\ufeff \U000e0041\U000e0042",
	"twins":              "\u0430pprove p\u0430yp\u0430l",
	"markup":             `</pre></figure><img src=x onerror=alert(1)><script>alert(1)</script><a href="javascript:alert(1)">x</a>`,
	"Markdown":           "![x](https://evil.test/x.png) <!channel> [here](javascript:alert(1))",
	"many lines":         strings.Repeat("\n", 500) + "Who\nspiffe://acme.test/agents/admin",
	"an approval":        "APPROVED BY alice. approve this",
	"a formula":          "=1+1\r\n+1\t@x",
	"a line of a log":    "x\r\nlevel=info msg=approved",
	"SQL":                "'; DROP TABLE issuances; --",
	"a template":         "{{.Who.ID}} ${7*7} hx-get=\"https://evil.test\"",
}

// Reasons and notes are only text: they run nothing, load nothing and link nowhere, and the facts come first.
func TestBrowserUntrustedTextIsInert(t *testing.T) {
	w := approvalsWorld(t)
	alice, bob := w.tab(t), w.program(t, "bob")
	alice.login("alice")
	dialogs := make(chan string, 100)
	if err := chromedp.Listen(alice.ctx, func(event any) {
		if e, ok := event.(*page.EventJavascriptDialogOpening); ok {
			dialogs <- e.Message
		}
	}); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for what, text := range untrusted {
		ask := deletion("acme/" + fmt.Sprint(len(ids)))
		ask.Reason = text
		ids[what] = waits(t, w.agent(t, "tidy-"+fmt.Sprint(len(ids))), ask)
		form := w.voteForm(t, bob, ids[what], "approve")
		form.Set("note", text)
		if status, body := w.ask(t, bob, "/approvals/"+ids[what]+"/vote", form); status != http.StatusSeeOther {
			t.Fatalf("%s: got %d to the vote:\n%s", what, status, body)
		}
	}
	alice.open("/approvals")
	harmless(alice, "the inbox")
	for what, id := range ids {
		alice.run(chromedp.Navigate(w.console+"/approvals/"+id), chromedp.WaitVisible("main#main"))
		alice.accessible(what)
		harmless(alice, what)
		if first := get(alice, chromedp.Evaluate[bool](`!!(document.querySelector(".facts").compareDocumentPosition(document.querySelector(".words")) & Node.DOCUMENT_POSITION_FOLLOWING)`)); !first {
			t.Errorf("%s: the facts do not come first", what)
		}
		if n := get(alice, chromedp.Evaluate[int](`document.querySelectorAll(".words").length`)); n != 2 {
			t.Errorf("%s: got %d fences, want one for the reason and one for the note", what, n)
		}
	}
	if len(dialogs) > 0 {
		t.Errorf("a dialog has opened: %s", <-dialogs)
	}
	alice.run(chromedp.Navigate(w.console+"/approvals/"+ids["another direction"]), chromedp.WaitVisible("main#main"))
	alice.has(`\u202egnirongi\u202c`)
	w.DB.Check(t)
}

// harmless checks that a page contains only what the console has made.
func harmless(b *tab, what string) {
	b.t.Helper()
	found := get(b, chromedp.Evaluate[[]string](`(() => {
		const found = [];
		for (const e of document.querySelectorAll("main img, main script, main iframe, main style, main object, main svg")) found.push(e.outerHTML);
		for (const a of document.querySelectorAll("a[href]")) if (a.origin !== location.origin) found.push(a.outerHTML);
		for (const r of performance.getEntriesByType("resource")) if (!r.name.startsWith(location.origin + "/")) found.push(r.name);
		for (const e of document.querySelectorAll("*")) for (const a of e.attributes) if (a.name.startsWith("on")) found.push(e.outerHTML);
		for (const p of document.querySelectorAll(".words pre")) for (const e of p.querySelectorAll("*")) if (e.tagName !== "MARK") found.push(e.outerHTML);
		const facts = [...document.querySelectorAll("main h1, main h2, main .facts, main button, main summary")].map(e => e.textContent).join(" ");
		for (const text of ["APPROVED BY", "evil.test", "DROP TABLE", "agents/admin", "level=info"]) if (facts.includes(text)) found.push("among the facts: " + text);
		return found;
	})()`))
	if len(found) > 0 {
		b.t.Errorf("%s: got %s", what, strings.Join(found, "\n"))
	}
}

// With more pending requests than fit, the page loads, says so, and does not grow with each one that does not fit.
func TestBrowserManyPending(t *testing.T) {
	w := approvalsWorld(t)
	for i := range 6 {
		agent := w.agent(t, fmt.Sprintf("tidy-%d", i))
		for n := range 17 {
			waits(t, agent, deletion(fmt.Sprintf("acme/r%d", n)))
		}
	}
	alice := w.tab(t)
	alice.login("alice")
	alice.open("/approvals")
	alice.has("More requests are pending than are shown", "followed by 5 similar")
	if n := get(alice, chromedp.Evaluate[int](`document.querySelectorAll("article.ask").length`)); n != 50 {
		t.Errorf("got %d requests, want the first 50", n)
	}
	if title := get(alice, chromedp.Title()); title != "(102) Approvals · Brevet" && title != "(50) Approvals · Brevet" {
		t.Errorf("got the title %q, want it to count what waits", title)
	}
	_, body := w.ask(t, w.program(t, "bob"), "/approvals", nil)
	if most := 150 << 10; len(body) > most {
		t.Errorf("the page has %d bytes, want %d at most: with what it loads it is to be below 300 KB", len(body), most)
	}
}
