package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
)

// An admin sees live credentials as they are issued, and revokes them only after typing a name.
func TestBrowserLiveCredentials(t *testing.T) {
	w := newWorld(t)
	token := w.issue(t, "reader", "triage-1", misleading)
	b := w.tab(t)
	b.login("carol")
	b.open("/live")
	if got := b.said("#live"); !strings.Contains(got, "1 live credential;") || !strings.Contains(got, "github.issues.read") || !strings.Contains(got, "No quarantined sandboxes") {
		t.Fatalf("got %q, want what is alive", got)
	}
	eventually(t, "chart", func() bool { return get(b, chromedp.Evaluate[bool](`!!document.querySelector("#chart canvas")`)) })
	b.run(chromedp.Evaluate[chromedp.Void](`document.querySelector("#live tbody a").focus(); document.activeElement.mine = "yes"`))
	other := w.issue(t, "reader", "triage-2", "")
	eventually(t, "second credential on the page", func() bool { return strings.Contains(b.said("#live"), "2 live credentials;") })
	if mine := get(b, chromedp.Evaluate[string](`document.activeElement.mine ?? ""`)); mine != "yes" {
		t.Error("the focus was lost when the page looked again")
	}
	if rows := get(b, chromedp.Evaluate[int](`document.querySelectorAll("#figures tr").length`)); rows < 60 {
		t.Errorf("got %d minutes of figures, want 60", rows)
	}

	b.open("/endings/revoke?id=" + token.ID)
	b.harmless("order")
	if got := b.said("#count"); !strings.Contains(got, "1 live credential matches") {
		t.Errorf("got %q, want what it would end", got)
	}
	b.order("triage-1", "found in a log")
	if got := b.said("h1"); got != "Confirmation does not match" || w.status(t, token) != "issued" || !w.active(t, token) {
		t.Errorf("with another name typed got %q, and the token is %s", got, w.status(t, token))
	}
	b.check("/endings/not-confirmed")
	b.visit("/endings/revoke?id=" + token.ID)
	b.order(token.ID[28:], "found in a log")
	if got := b.said("main"); b.said("h1") != "Revocation receipt" || !strings.Contains(got, token.ID) && !strings.Contains(got, "Revoked") || !strings.Contains(got, "accepted offline, expires") {
		t.Errorf("got the receipt %q", got)
	}
	b.check("/endings/receipt")
	if got := w.status(t, token); got != "revoked" || w.active(t, token) || !w.active(t, other) {
		t.Errorf("got %s for what was revoked and %s for the other", got, w.status(t, other))
	}
	b.visit("/endings/revoke?id=" + token.ID)
	if got := b.said("main"); !strings.Contains(got, "Nothing to revoke") || strings.Contains(got, "Confirm") {
		t.Errorf("once more got %q", got)
	}

	b.visit("/endings/task?task=triage-2&spiffe_id=spiffe://acme.test/agents/reader")
	b.order("triage-2", "done")
	if got := w.status(t, other); got != "revoked" || w.active(t, other) {
		t.Errorf("after the end of its task it is %s", got)
	}
	b.open("/endings/quarantine")
	b.open("/endings/quarantine?spiffe_id=spiffe://acme.test/agents")
	b.order("spiffe://acme.test/agents", misleading[:200])
	ask := client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "triage-3"}
	if _, err := w.agent(t, "reader").Request(t.Context(), ask); err == nil {
		t.Error("a sandbox in quarantine gets a credential")
	}
	b.open("/live")
	b.harmless("live")
	if got := b.said("#live"); !strings.Contains(got, "spiffe://acme.test/agents") || !strings.Contains(got, "No live credentials") {
		t.Errorf("got %q, want the quarantine", got)
	}
	b.open("/endings/lift?spiffe_id=spiffe://acme.test/agents")
	b.order("spiffe://acme.test/agents", "it was a false alarm")
	if got := b.said("main"); b.said("h1") != "Live credentials" || !strings.Contains(got, "The quarantine is lifted") {
		t.Errorf("after the lift got %q", got)
	}
	w.issue(t, "reader", "triage-3", "")
}

// order fills in the form of an order and submits it.
func (b *tab) order(confirmation, reason string) {
	b.t.Helper()
	before := get(b, chromedp.Evaluate[float64]("performance.timeOrigin"))
	b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(
		`document.getElementById("reason").value = %s; document.getElementById("confirmation").value = %s; document.querySelector("main form .danger").click()`,
		quoted(b.t, reason), quoted(b.t, confirmation))))
	eventually(b.t, "answer to the order", func() bool {
		return get(b, chromedp.Evaluate[float64]("document.readyState === 'complete' ? performance.timeOrigin : 0")) > before
	})
}

// quoted returns text as a JavaScript string literal.
func quoted(t *testing.T, text string) string {
	t.Helper()
	data, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// active reports whether a token is active according to introspection (RFC 7662).
func (w *world) active(t *testing.T, token *client.Token) bool {
	t.Helper()
	browser := w.HTTP(t, w.X509(t, "spiffe://acme.test/agents/reader"))
	form := url.Values{"token": {token.Secret.Reveal()}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/oauth2/introspect", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body := answer(t, browser, req)
	var said struct{ Active *bool }
	if err := json.Unmarshal([]byte(body), &said); err != nil || status != http.StatusOK || said.Active == nil {
		t.Fatalf("introspecting: got %d %s", status, body)
	}
	return *said.Active
}

// status returns the status of a credential.
func (w *world) status(t *testing.T, token *client.Token) string {
	t.Helper()
	state, err := w.agent(t, "reader").Issuance(t.Context(), token.ID)
	if err != nil {
		t.Fatal(err)
	}
	return string(state.Status)
}

// H90 to H92: only admins give orders, within their reach, and only through forms of this site with a name and a reason.
func TestOnlyAdminsRevokeAndQuarantine(t *testing.T) {
	w := newWorldWith(t, func(o *testkit.Options) {
		o.Rules = append(o.Rules, people.Rule{Role: people.RoleAdmin, Group: "engineers", Within: []string{"spiffe://other.test"}})
	})
	token := w.issue(t, "reader", "triage", "")
	const reader = "spiffe://acme.test/agents/reader"
	programs := map[string]*http.Client{}
	for _, who := range []string{"alice", "bob", "carol", "dave"} {
		programs[who] = w.program(t, who)
	}
	form := func(pairs ...string) url.Values {
		values := url.Values{"reason": {"because"}}
		for i := 0; i < len(pairs); i += 2 {
			values.Set(pairs[i], pairs[i+1])
		}
		return values
	}
	revoke := form("id", token.ID, "confirmation", token.ID[28:])
	for _, tc := range []struct {
		name, who, path string
		form            url.Values
		status          int
	}{
		{"an auditor revokes", "dave", "/endings/revoke", revoke, 403},
		{"an approver revokes", "bob", "/endings/revoke", revoke, 403},
		{"an admin of elsewhere revokes", "alice", "/endings/revoke", revoke, 404},
		{"an admin of elsewhere ends a task", "alice", "/endings/task", form("spiffe_id", reader, "task", "triage", "confirmation", "triage"), 404},
		{"an admin of elsewhere quarantines", "alice", "/endings/quarantine", form("spiffe_id", reader, "confirmation", reader), 404},
		{"an admin of elsewhere lifts", "alice", "/endings/lift", form("spiffe_id", reader, "confirmation", reader), 404},
		{"without a name", "carol", "/endings/revoke", form("id", token.ID), 422},
		{"without a reason", "carol", "/endings/revoke", form("id", token.ID, "confirmation", token.ID[28:], "reason", " "), 422},
		{"with a secret as the reason", "carol", "/endings/revoke", form("id", token.ID, "confirmation", token.ID[28:], "reason", "ghp_"+strings.Repeat("a", 36)), 422},
		{"with a long reason", "carol", "/endings/revoke", form("id", token.ID, "confirmation", token.ID[28:], "reason", strings.Repeat("a", 1001)), 422},
		{"with two confirmations", "carol", "/endings/revoke", url.Values{"id": {token.ID}, "reason": {"because"}, "confirmation": {token.ID[28:], ""}}, 422},
		{"with two reasons", "carol", "/endings/revoke", url.Values{"id": {token.ID}, "reason": {"because", ""}, "confirmation": {token.ID[28:]}}, 422},
		{"of nothing", "carol", "/endings/revoke", form("confirmation", ""), 422},
		{"of no name", "carol", "/endings/quarantine", form("spiffe_id", "acme", "confirmation", "acme"), 422},
		{"of no order", "carol", "/endings/everything", revoke, 404},
		{"a lift of what does not stand", "carol", "/endings/lift", form("spiffe_id", reader, "confirmation", reader), 404},
		{"a look, by an auditor", "dave", "/endings/revoke?id=" + token.ID, nil, 403},
		{"a look, by an admin of elsewhere", "alice", "/endings/task?task=triage&spiffe_id=" + reader, nil, 404},
		{"a look at rates, by an approver", "bob", "/live/rates.json", nil, 403},
		{"a look at what is alive, by an approver", "bob", "/live", nil, 403},
		{"a look at a receipt, by an auditor", "dave", "/endings/receipt", nil, 403},
		{"a look at no receipt", "carol", "/endings/receipt", nil, 404},
	} {
		status, body := w.ask(t, programs[tc.who], tc.path, tc.form)
		if status != tc.status {
			t.Errorf("%s: got %d, want %d:\n%s", tc.name, status, tc.status, body)
		}
	}
	if status, _ := w.ask(t, programs["carol"], "/endings/revoke", revoke, "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("a form of another site: got %d, want 403", status)
	}
	if status, body := w.ask(t, programs["alice"], "/endings/revoke?id="+token.ID, nil); status != 200 || strings.Contains(body, "agents/reader") || !strings.Contains(body, "Nothing to revoke") {
		t.Errorf("an admin of elsewhere looks: got %d\n%s", status, body)
	}
	filled := "/endings/revoke?id=" + token.ID + "&confirmation=" + token.ID[28:] + "&reason=routine"
	if status, body := w.ask(t, programs["carol"], filled, nil); status != 200 || strings.Count(body, `name="confirmation"`) != 1 || strings.Contains(body, "routine") {
		t.Errorf("a link that fills in the form: got %d\n%s", status, body)
	}
	if got := w.status(t, token); got != "issued" {
		t.Errorf("after all that the credential is %s", got)
	}
	w.DB.Check(t)
}

// The receipt shows the totals, however long the names of the revoked credentials are.
func TestReceiptsOfLongNamesAreKept(t *testing.T) {
	w := newWorld(t)
	name := strings.Repeat("a", 1900)
	for range 40 {
		ask := client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "long"}
		if got := w.request(t, name, ask); got.Token == nil {
			t.Fatalf("got %+v, want a credential", got)
		}
	}
	carol := w.program(t, "carol")
	order := url.Values{"task": {"long"}, "confirmation": {"long"}, "reason": {"over"}}
	if status, page := w.ask(t, carol, "/endings/revoke", order); status != http.StatusSeeOther {
		t.Fatalf("got %d, want to be sent to the receipt:\n%s", status, page)
	}
	if status, page := w.ask(t, carol, "/endings/receipt", nil); status != http.StatusOK || !strings.Contains(page, "The list is truncated") || !strings.Contains(page, "<dd>40;") {
		t.Errorf("got %d and a receipt that does not count 40:\n%s", status, page)
	}
}
