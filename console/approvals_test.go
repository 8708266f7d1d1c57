package console_test

import (
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/chromedp/chromedp"
)

const writeScope = "github.issues.write"

// comment asks for what a person has to agree to.
func comment(repo, reason string) client.Ask {
	return client.Ask{Scope: writeScope, Params: map[string]any{"repo": repo}, TTL: 5 * time.Minute, Task: "triage-7", Reason: reason}
}

// waits asks for something that waits for people, and returns its id.
func waits(t *testing.T, c *client.Client, ask client.Ask) string {
	t.Helper()
	answer, err := c.Request(t.Context(), ask)
	if err != nil || answer.Pending == nil {
		t.Fatalf("got %+v, %v, want it to wait for people", answer, err)
	}
	return answer.Pending.ID
}

// presses presses a button of a form, and waits for the page after it.
func (b *tab) presses(button, then string) {
	b.t.Helper()
	b.run(chromedp.Click(button, chromedp.NodeVisible), chromedp.WaitVisible(`//h1[.="`+then+`"]`))
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

func TestSomebodyDecides(t *testing.T) {
	w := newWorld(t)
	alice, agent := w.tab(t), w.agent(t, "triage-1")
	alice.login("alice")
	alice.open("/approvals")
	alice.has("Nothing waits for you")

	first := waits(t, agent, comment("acme/api", "the milestone is done"))
	second := waits(t, agent, comment("acme/web", ""))
	third := waits(t, w.agent(t, "triage-2"), comment("acme/api", ""))
	alice.open("/approvals")
	alice.has("Comment on issues of one repository", "github:repo/acme/api", "the milestone is done", "1 more like the next", "write")
	alice.open("/approvals/" + first)
	alice.has("spiffe://acme.test/agents/triage-1", "https://github-gateway.test", "writes-need-a-person", "triage-7", "nothing: whoever has it can use it")
	alice.run(chromedp.Click("form:has("+approve+") .also summary"), chromedp.Click(`form:has(`+approve+`) input[name="also"]`, chromedp.NodeVisible))
	alice.presses(approve, "Approvals")
	alice.has("Approved: the sandbox may take its credential now", "said to 1 like it")
	alice.check("/approvals notice")
	for id, by := range map[string]*client.Client{first: agent, third: w.agent(t, "triage-2")} {
		if got, err := by.Redeem(t.Context(), id, comment("acme/api", "")); err != nil || got.Token == nil {
			t.Errorf("got %+v, %v, want a credential", got, err)
		}
	}
	alice.run(chromedp.Click("#ask-"+second+" > details > summary"), chromedp.SendKeys("#ask-"+second+" form:has("+deny+") textarea", "not this one", chromedp.NodeVisible))
	alice.check("/approvals open")
	alice.presses("#ask-"+second+" "+deny, "Approvals")
	alice.has("Denied: nothing is issued for it", "Nothing waits for you")
	if _, err := agent.Redeem(t.Context(), second, comment("acme/web", "")); err == nil {
		t.Error("what was denied was redeemed")
	}
	alice.open("/approvals/" + second)
	alice.has("rejected", "It is decided", "not this one", "Alice Archer")
	// A no that comes too late is heeded.
	alice.open("/approvals/" + first)
	alice.presses(deny, "Approvals")
	alice.has("what had been issued for it is revoked")
	w.DB.Check(t)
}
