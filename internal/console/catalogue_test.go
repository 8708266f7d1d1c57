package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/chromedp/chromedp"
)

// twoAdmins makes every catalogue change require the other admin: carol, or alice through her group engineers.
func twoAdmins(o *testkit.Options) {
	o.SecondAdmin = true
	o.Rules = append(o.Rules, people.Rule{Role: people.RoleAdmin, Group: "engineers"})
}

// wider lets agents write without approval.
var wider, _, _ = strings.Cut(policies, "@id(\"writes-need-a-person\")")

func files(scopesFile, policyFile string) []scopes.File {
	return []scopes.File{{Name: "scopes.yaml", Data: []byte(scopesFile)}, {Name: "policy.cedar", Data: []byte(policyFile)}}
}

func digestOf(t *testing.T, all []scopes.File) string {
	t.Helper()
	c, err := scopes.Load(all)
	if err != nil {
		t.Fatal(err)
	}
	return c.Digest()
}

// apply applies or proposes a catalogue for an actor, without the pages.
func (w *world) apply(t *testing.T, actor, reason string, all []scopes.File) broker.CatalogueChange {
	t.Helper()
	head, _, err := w.Broker.CatalogueInForce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	change, err := w.Broker.ApplyCatalogue(t.Context(), broker.CatalogueOrder{Actor: actor, Base: head.Digest, Files: all, Reason: reason})
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// page returns all visible text.
func (b *tab) page() string {
	b.t.Helper()
	return get(b, chromedp.Evaluate[string]("document.body.innerText"))
}

func TestBrowserShowsCatalogue(t *testing.T) {
	w := newWorld(t)
	b := w.tab(t)
	b.login("dave")
	b.open("/catalogue")
	b.has("github.issues.read", "github.issues.write", "1 of oncall", "writes-need-a-person", "forbids, policy.cedar:", "Brevet, at first start")

	b.open("/catalogue?q=comment")
	if got := b.page(); strings.Contains(got, "github.issues.read\n") || !strings.Contains(got, "github.issues.write") {
		t.Errorf("got %q, want the scope that has the word alone", got)
	}
	b.open("/catalogue?q=nothing-like-it")
	b.has("No scope matches.")

	b.open("/catalogue/scopes/github.issues.write")
	b.has("approval", "1 of oncall within 10m", "agents-may-write", "writes-need-a-person")
	if strings.Contains(b.page(), "agents-may-read") {
		t.Error("a policy is shown that is about another scope")
	}

	w.apply(t, "carol", hostile, files(catalogue, wider))
	b.open("/catalogue")
	b.has("Reason given by the admin", "APPROVED BY alice")
	b.open("/catalogue/versions")
	b.has("Applied", "first version")
	b.run(chromedp.Click(`//a[.="diff"]`), chromedp.WaitVisible("pre.code"))
	b.has("1 to remove", "1 widens reach", "writes-need-a-person", "- forbid (principal")
	first := digestOf(t, files(catalogue, policies))
	b.open("/catalogue/diff?from=" + url.QueryEscape(digestOf(t, files(catalogue, wider))) + "&to=" + url.QueryEscape(first))
	b.has("narrows reach")
	b.open("/catalogue/diff?from=" + first + "&to=" + first)
	b.has("No differences.")
	long := strings.Replace(policies, "unless {", "unless {"+strings.Repeat("\n// a line", 1100)+"\n", 1)
	w.apply(t, "carol", "longer", files(catalogue, long))
	_, page := w.ask(t, w.program(t, "dave"), "/catalogue/diff?from="+first+"&to="+digestOf(t, files(catalogue, long)), nil)
	if n := strings.Count(page, "The diff is truncated"); n != 2 {
		t.Errorf("got %d parts that say they are cut, want the policy and its file", n)
	}
	for _, bad := range []string{"/catalogue/diff?from=" + first + "&to=sha256:" + strings.Repeat("0", 64), "/catalogue/diff?from=x&to=y", "/catalogue/scopes/nothing.such"} {
		b.goTo(bad)
		b.has("Not found")
	}
}

func TestBrowserReference(t *testing.T) {
	w := newWorld(t)
	b := w.tab(t)
	b.login("erin") // erin has no role
	b.open("/reference")
	b.has("POST /v1/tokens", "Request a credential for one action")
	b.run(chromedp.SendKeys("#filter", "end task"), chromedp.WaitVisible(`//span[@id="filtered" and contains(., " of ")]`))
	b.has("POST /v1/tasks/{task}/end")
	if got := b.page(); strings.Contains(got, "/oauth/") {
		t.Errorf("got %q, want calls about ends of tasks alone", got)
	}
	erin := w.program(t, "erin")
	loaded := 0
	for _, path := range append([]string{"tokens", "approvals", "issuances", "ledger", "endings", "catalogue", "oauth", "service"}, "types") {
		loaded = max(loaded, len(w.read(t, erin, "/reference/"+path)))
	}
	if got, most := loaded+b.weight(), 300<<10; got > most {
		t.Errorf("got %d bytes for the heaviest page, want %d at most", got, most)
	}
	b.goTo("/reference/tokens")
	b.has("Idempotency-Key", "at most 128 characters", "curl -X POST", "github.issues.read")
	b.open("/reference/service")
	b.goTo("/reference/problems")
	b.has("vault_refused", "rate_limited")
	b.goTo("/reference/nothing")
	b.has("Not found")

	b.goTo("/catalogue") // requires a role
	b.has("Permission denied")
}

// read returns a page as an HTTP client without scripts gets it.
func (w *world) read(t *testing.T, as *http.Client, path string) string {
	t.Helper()
	_, page := w.ask(t, as, path, nil)
	return page
}

// goTo opens a page without the accessibility checks.
func (b *tab) goTo(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.world.console+path), chromedp.WaitVisible("main#main"))
}

// weight returns the size of the page and everything that it loads, uncompressed, in bytes.
func (b *tab) weight() int {
	b.t.Helper()
	return get(b, chromedp.Evaluate[int](`performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource")).reduce((n, e) => n + e.decodedBodySize, 0)`))
}

// hostile is a malicious reason (H71 to H81).
const hostile = "\x1b[2J\x1b]8;;https://evil.test\x07click\x1b]8;;\x07\x1b]52;c;ZXZpbA==\x07\u202egnp.exe\u200b\U000E0041<img src=x onerror=alert(1)> javascript:alert(1) " +
	"![x](https://evil.test/x.png)\r\nAPPROVED BY alice\r\n=1+1 '; DROP TABLE issuances; --"

// T3: an admin never approves a catalogue with files other than its own, even if an attacker owns the database.
func TestCatalogueMustMatchItsDigest(t *testing.T) {
	w := newWorldWith(t, twoAdmins)
	first, second := digestOf(t, files(catalogue, policies)), digestOf(t, files(catalogue, wider))
	w.apply(t, "carol", "less waiting", files(catalogue, wider))
	alice := w.program(t, "alice")
	inForce := w.read(t, alice, "/catalogue")
	_, err := testkit.Connect(t, w.DB.AdminURL).Exec(t.Context(), `
		ALTER TABLE catalogues DISABLE TRIGGER USER;
		ALTER TABLE catalogues DROP CONSTRAINT catalogues_digest;
		UPDATE catalogues AS c SET (names, contents) = (SELECT names, contents FROM catalogues AS o WHERE o.digest <> c.digest)`)
	if err != nil {
		t.Fatal(err)
	}
	if status, page := w.ask(t, alice, "/catalogue", nil); status != http.StatusOK || !strings.Contains(inForce, first) {
		t.Errorf("the files of what is in force are read again, though they are known: got %d:\n%s", status, page)
	}
	for _, path := range []string{"/catalogue/proposals/" + second, "/catalogue/diff?from=" + first + "&to=" + second} {
		if status, page := w.ask(t, alice, path, nil); status != http.StatusServiceUnavailable || strings.Contains(page, "No differences") {
			t.Errorf("%s: got %d, want %d:\n%s", path, status, http.StatusServiceUnavailable, page)
		}
	}
}
