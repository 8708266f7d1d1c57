package console_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// sealed waits until the log can prove a record.
func (w *world) sealed(t *testing.T, dave *tab, id string) {
	t.Helper()
	eventually(t, "the proof of "+id, func() bool {
		dave.visit("/issuances/" + id)
		return get(dave, chromedp.Evaluate[bool](`!!document.querySelector("#proof-data")`))
	})
}

// checked waits until the page has checked its proof, and returns the verdict and the steps.
func (b *tab) checked(t *testing.T) (verdict, steps string) {
	t.Helper()
	eventually(t, "verdict", func() bool {
		return b.said("#proof-verdict.notice, #proof-verdict.unchecked, #proof-verdict.warning") != ""
	})
	return b.said("#proof-verdict"), b.said("#proof-steps")
}

// I8, in a browser: the proof of a record verifies, and a change of any byte is detected.
func TestBrowserChecksProofs(t *testing.T) {
	w := newWorld(t)
	for i := range 6 { // gives the tree some depth
		w.issue(t, "reader", fmt.Sprint("other-", i), "")
	}
	id := w.issue(t, "reader", "triage", "needle").ID
	w.issue(t, "reader", "later", "")
	b := w.tab(t)
	b.login("dave")
	waits := w.request(t, "writer", client.Ask{Scope: "github.issues.write", Params: map[string]any{"repo": "acme/writer"}, Task: "triage", Reason: "to answer"})
	w.sealed(t, b, waits.Pending.ID)
	if verdict, steps := b.checked(t); !strings.Contains(verdict, "Verified in this browser") {
		t.Errorf("of what waits for people got %q:\n%s", verdict, steps)
	}
	w.sealed(t, b, id)
	verdict, steps := b.checked(t)
	if !strings.Contains(verdict, "Verified in this browser") || strings.Count(steps, "Holds:") != 3 || strings.Contains(steps, "not") || !strings.Contains(steps, "has a valid signature of the log") {
		t.Fatalf("got %q:\n%s", verdict, steps)
	}
	b.check("/issuances/proven")
	b.run(chromedp.Evaluate[chromedp.Void](`document.getElementById("proof-verdict").className = ""; document.getElementById("proof-change").click()`))
	if _, steps := b.checked(t); strings.Count(steps, "Does not hold:") != 1 {
		t.Errorf("with one byte of the entry changed:\n%s", steps)
	}
	b.check("/issuances/changed")
	for name, change := range map[string]string{
		"a byte of the proof":     `d.receipt.entries[0].proof[0] = (d.receipt.entries[0].proof[0][0] === "A" ? "B" : "A") + d.receipt.entries[0].proof[0].slice(1)`,
		"the end of the proof":    `d.receipt.entries[0].proof.pop()`,
		"a longer proof":          `d.receipt.entries[0].proof.push(d.receipt.entries[0].proof[0])`,
		"another place":           `d.receipt.entries[0].index -= 1`,
		"a place beyond the log":  `d.receipt.entries[0].index += 1000`,
		"the root":                `d.receipt.checkpoint = d.receipt.checkpoint.replace(/\n(.)([^\n]*)\n\n/, (_, c, rest) => "\n" + (c === "A" ? "B" : "A") + rest + "\n\n")`,
		"the size":                `d.receipt.checkpoint = d.receipt.checkpoint.replace(/\n\d+\n/, "\n999\n")`,
		"the signature":           `d.receipt.checkpoint = d.receipt.checkpoint.replace(/(.)(.)(=*)\n$/, (_, c, e, pad) => (c === "A" ? "B" : "A") + e + pad + "\n")`,
		"a checkpoint unsigned":   `d.receipt.checkpoint = d.receipt.checkpoint.slice(0, d.receipt.checkpoint.indexOf("\n\n") + 2)`,
		"the keys of another log": `d.keys = d.keys.map(k => k.slice(0, -2) + (k.at(-2) === "A" ? "B" : "A") + k.slice(-1))`,
		"another issuance":        `d.receipt.issuance = "0"`,
		"no note at all":          `d.receipt.checkpoint = "x"`,
		"another sandbox shown":   `d.shown.spiffe_id += "x"`,
		"another scope shown":     `d.shown.scope += "x"`,
		"another task shown":      `d.shown.task = ""`,
		"another decision shown":  `d.shown.decision = "deny"`,
	} {
		b.run(chromedp.Evaluate[chromedp.Void](`(() => { const e = document.getElementById("proof-data"); e.dataset.was ??= e.textContent;
			const d = JSON.parse(e.dataset.was); ` + change + `; e.textContent = JSON.stringify(d);
			document.getElementById("proof-verdict").className = ""; document.getElementById("proof-again").click(); })()`))
		if verdict, steps := b.checked(t); !strings.Contains(verdict, "Invalid proof") {
			t.Errorf("%s: got %q:\n%s", name, verdict, steps)
		}
	}
	b.run(chromedp.Evaluate[chromedp.Void](`(() => { const e = document.getElementById("proof-data"); const d = JSON.parse(e.dataset.was);
		d.keys = null; e.textContent = JSON.stringify(d); document.getElementById("proof-verdict").className = ""; document.getElementById("proof-again").click(); })()`))
	if verdict, steps := b.checked(t); !strings.Contains(verdict, "Partly verified in this browser") || !strings.Contains(steps, "Not checked:") {
		t.Errorf("without keys got %q:\n%s", verdict, steps)
	}
}

// The finder of a token learns its owner, and the token itself is not disclosed.
func TestBrowserFindsTokenOwner(t *testing.T) {
	w := newWorld(t)
	token := w.issue(t, "reader", "triage", "needle")
	b := w.tab(t)
	b.login("dave")
	sent := b.sent(t)
	b.open("/whose")
	b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(
		`document.getElementById("secret").value = %s; document.querySelector("#finder button").click()`, quoted(t, token.Secret.Reveal()+"\n"))))
	eventually(t, "answer", func() bool { return b.said("main h2") != "" })
	if got := b.said("main"); !strings.Contains(got, "jwt of spiffe://acme.test/agents/reader") || !strings.Contains(got, token.ID) {
		t.Errorf("got %q, want whose the token is", got)
	}
	b.check("/whose/found")
	parts := strings.Split(token.Secret.Reveal(), ".")
	for _, one := range sent() {
		for _, part := range append(parts[1:], token.Secret.Reveal()) {
			if strings.Contains(one, part) {
				t.Errorf("the browser has sent a part of the token: %s", one)
			}
		}
	}
	if page := get(b, chromedp.Evaluate[string]("document.documentElement.outerHTML")); strings.Contains(page, parts[2]) {
		t.Error("the page holds the token")
	}
	for found, want := range map[string]string{
		client.DigestOf(token.Secret): "agents/reader", "SHA256:" + strings.ToUpper(client.DigestOf(token.Secret)): "agents/reader", strings.Repeat("0", 64): "No record that you may see",
		"abc": "Invalid digest",
	} {
		b.visit("/whose?credential=" + found)
		if got := b.said("main"); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", found, got, want)
		}
	}
	if status, _ := w.ask(t, w.program(t, "bob"), "/whose?credential="+client.DigestOf(token.Secret), nil); status != 403 {
		t.Errorf("an approver learns it: %d", status)
	}
}

// sent records the addresses and bodies that the browser sends from now on.
func (b *tab) sent(t *testing.T) func() []string {
	t.Helper()
	var all []string
	err := chromedp.Listen(b.ctx, func(event any) {
		if e, ok := event.(*network.EventRequestWillBeSent); ok {
			b.mu.Lock()
			defer b.mu.Unlock()
			all = append(all, fmt.Sprintf("%s %s %+v %+v", e.Request.Method, e.Request.URL, e.Request.Headers, e.Request.PostDataEntries))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	return func() []string {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(all) == 0 {
			t.Error("nothing was heard of what the browser sends")
		}
		return all
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no %s", what)
		}
	}
}
