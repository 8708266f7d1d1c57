package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"
)

func refund(payment string) client.Ask {
	return client.Ask{Scope: "payments.refund", Params: map[string]any{"payment": payment}, Task: "refunds-1"}
}

// authenticator adds a virtual authenticator with user verification to a tab.
func (b *tab) authenticator() webauthn.AuthenticatorID {
	b.t.Helper()
	call(b, webauthn.Enable, webauthn.EnableParams{})
	return call(b, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
		Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal, HasResidentKey: true,
		HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
	}}).AuthenticatorID
}

func TestBrowserPasskeySignsApproval(t *testing.T) {
	w := approvalsWorld(t)
	agent, alice, bob := w.agent(t, "refunds"), w.tab(t), w.program(t, "bob")
	device := alice.authenticator()
	alice.login("alice")
	first := waits(t, agent, refund("p1"))
	alice.open("/approvals")
	alice.has("signed by a passkey", "Open the request to decide")
	alice.open("/approvals/" + first)
	alice.has("and you have none")
	if get(alice, chromedp.Evaluate[bool](`!!document.querySelector('`+approve+`')`)) {
		t.Error("a yes is offered that nobody could sign")
	}
	alice.run(chromedp.Click(`main a[href="/you/passkeys"]`), chromedp.WaitVisible(`//h1[.="Your passkeys"]`))
	alice.has("No passkeys.")
	// A login of which the provider did not say the time adds none.
	alice.run(chromedp.Click(`main a[href^="/login?fresh"]`), chromedp.WaitVisible(`input[name="login"], button[type="submit"], form[data-makes]`))
	switch at := get(alice, chromedp.Evaluate[string](`document.querySelector('input[name="login"]') ? "login" : document.querySelector("main#main") ? "" : "consent"`)); at {
	case "login": // the first login is more than a minute ago
		alice.signIn("alice")
	case "consent":
		alice.run(chromedp.Click(`button[type="submit"]`))
	}
	alice.run(chromedp.WaitVisible(`form[data-makes]`))
	const add = `form[data-makes] button`
	alice.run(chromedp.SendKeys(`input[name="name"]`, "work laptop"), chromedp.Click(add), chromedp.WaitVisible(`//p[@role="status"][contains(., "work laptop")]`))
	alice.check("/you/passkeys")
	alice.run(chromedp.SendKeys(`input[name="name"]`, "once more"), chromedp.Click(add), chromedp.WaitVisible(`[data-says]`))
	alice.has("This device already has a passkey for this console. Nothing was sent.")

	// Possession of the device without user verification signs nothing.
	alice.open("/approvals/" + first)
	call(alice, webauthn.SetUserVerified, webauthn.SetUserVerifiedParams{AuthenticatorID: device, IsUserVerified: false})
	alice.run(chromedp.Click(approve), chromedp.WaitVisible(`[data-says]`))
	alice.has("The request was cancelled or timed out, or none of your passkeys is available. Nothing was sent.")
	call(alice, webauthn.SetUserVerified, webauthn.SetUserVerifiedParams{AuthenticatorID: device, IsUserVerified: true})
	alice.presses(approve, "Approvals")
	alice.has("Approved: the sandbox can redeem the request now")
	if got, err := agent.Redeem(t.Context(), first, refund("p1")); err != nil || got.Token == nil {
		t.Errorf("got %+v, %v, want a credential", got, err)
	}

	second := waits(t, agent, refund("p2"))
	voteForm := url.Values{"verdict": {"approve"}, "hash": {hashOf(t, w, bob, second)}}
	for name, assertion := range map[string]string{"none": "", "of another request": assertionOf(t, w, first), "not one": "{}"} {
		voteForm.Set("assertion", assertion)
		if status, body := w.ask(t, bob, "/approvals/"+second+"/vote", voteForm); status != http.StatusForbidden || !strings.Contains(body, "Passkey signature required") {
			t.Errorf("%s: got %d, want it refused:\n%s", name, status, body)
		}
	}
	withoutChallenge := url.Values{"name": {"x"}, "response": {"{}"}}
	if status, body := w.ask(t, bob, "/you/passkeys", withoutChallenge); status != http.StatusUnprocessableEntity || !strings.Contains(body, "was not added") {
		t.Errorf("got %d to a registration that nobody began:\n%s", status, body)
	}
	remove(alice)
	w.DB.Check(t)
}

// TestFirstPasskeyNeedsAFreshLogin checks that an open session adds no passkey: the provider has to say that it asked the person
// again a moment ago.
func TestFirstPasskeyNeedsAFreshLogin(t *testing.T) {
	w := approvalsWorld(t)
	const fresh, form = "/login?fresh&return=/you/passkeys", "data-makes"
	alice := w.program(t, "alice")
	if status, body := w.ask(t, alice, "/you/passkeys", nil); status != http.StatusOK || strings.Contains(body, form) || !strings.Contains(body, "fresh") {
		t.Errorf("a session: got %d, want a link to a fresh login, and no form:\n%s", status, body)
	}
	if status, body := w.ask(t, alice, "/you/passkeys/challenge", url.Values{}); status != http.StatusForbidden {
		t.Errorf("a session: got %d to a registration, want 403:\n%s", status, body)
	}

	// The provider ignores max_age, and does not say when the person has logged in.
	deaf := w.program(t, "")
	deaf.CheckRedirect, deaf.Transport = nil, withoutMaxAge{}
	if page := w.oidc.LogIn(t, deaf, w.console+fresh, "alice"); !strings.Contains(page, "Recent login not confirmed") {
		t.Errorf("without max_age got:\n%s", page)
	}
	if status, _ := w.ask(t, deaf, "/you/passkeys/challenge", url.Values{}); status == http.StatusOK {
		t.Error("a login that the provider did not confirm may register a passkey")
	}

	again := w.program(t, "")
	resp, err := again.Get(w.console + fresh)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if to, err := resp.Location(); err != nil || to.Query().Get("max_age") != "60" {
		t.Errorf("got %v, %v, want a redirect with max_age=60", to, err)
	}
	again.CheckRedirect = nil
	if page := w.oidc.LogIn(t, again, w.console+fresh, "alice"); !strings.Contains(page, form) {
		t.Errorf("after a fresh login got no form:\n%s", page)
	}
	if status, body := w.ask(t, again, "/you/passkeys/challenge", url.Values{}); status != http.StatusOK {
		t.Errorf("after a fresh login: got %d to a registration, want 200:\n%s", status, body)
	}
}

// withoutMaxAge drops max_age on the way to the provider.
type withoutMaxAge struct{}

func (withoutMaxAge) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Del("max_age")
	r.URL.RawQuery = query.Encode()
	return http.DefaultTransport.RoundTrip(r)
}

// remove removes a passkey. It types the wrong name first, then the right one.
func remove(b *tab) {
	b.t.Helper()
	b.open("/you/passkeys")
	for _, step := range []struct{ typed, then string }{{"laptop", "Confirmation does not match"}, {"work laptop", "Your passkeys"}} {
		b.run(chromedp.Click(`//summary[.="Remove work laptop"]`), chromedp.SendKeys(`input[name="confirm"]`, step.typed, chromedp.NodeVisible))
		b.presses(`button.danger`, step.then)
		if step.then != "Your passkeys" {
			b.run(chromedp.Click(`main a[role="button"]`), chromedp.WaitVisible(`//h1[.="Your passkeys"]`))
		}
	}
	b.run(chromedp.WaitVisible(`//p[@role="status"][contains(., "was removed")]`))
	b.has("No passkeys.")
}

// hashOf returns the hash in a vote on a request. It reads it from a denial form, which needs no passkey.
func hashOf(t *testing.T, w *world, browser *http.Client, id string) string {
	t.Helper()
	return w.voteForm(t, browser, id, "deny").Get("hash")
}

// assertionOf returns the signature of an approval. It is not secret: the record contains it.
func assertionOf(t *testing.T, w *world, id string) string {
	t.Helper()
	for _, e := range w.DB.Entries(t) {
		if text, ok := e.Body["assertion"].(string); ok && e.ID == id {
			return text
		}
	}
	t.Fatal("the record has no signature")
	return ""
}
