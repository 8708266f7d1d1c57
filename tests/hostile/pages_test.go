package hostile_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/openapi"
)

// insecure sends Secure cookies to http://localhost, as browsers do.
type insecure struct{ http.CookieJar }

func (j insecure) SetCookies(u *url.URL, cookies []*http.Cookie) {
	for _, cookie := range cookies {
		cookie.Secure = cookie.Secure && u.Scheme == "https"
	}
	j.CookieJar.SetCookies(u, cookies)
}

// alice returns a browser without scripts in which alice is logged in to the console. It follows no redirect.
func (d *desk) alice(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: insecure{jar}, Timeout: patience}
	if page := d.oidc.LogIn(t, browser, d.console+"/login?return=/you", "alice"); !strings.Contains(page, "<h1>Profile</h1>") {
		t.Fatalf("after the login got:\n%s", page)
	}
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return browser
}

// visits sends one call, with headers in pairs. It posts the form if there is one.
func (d *desk) visits(t *testing.T, browser *http.Client, path string, form url.Values, headers ...string) (*http.Response, string) {
	t.Helper()
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(t.Context(), method, d.console+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// voteForm returns the form that votes for a request.
func (d *desk) voteForm(t *testing.T, id string) url.Values {
	t.Helper()
	var shown struct{ Hash string }
	got := call{method: "GET", target: "/v1/approvals/" + id, auth: "Bearer " + d.idToken}.send(t, d.s[0])
	if err := json.Unmarshal([]byte(got.text), &shown); err != nil || shown.Hash == "" {
		t.Fatalf("got %v %s", err, got.text)
	}
	return url.Values{"verdict": {"approve"}, "hash": {shown.Hash}}
}

func (d *desk) status(t *testing.T, id string) string {
	t.Helper()
	var status string
	if err := d.conn.QueryRow(t.Context(), `SELECT status FROM issuances WHERE id = $1`, id).Scan(&status); err != nil {
		t.Fatal(err)
	}
	return status
}

// prefetchedPage fetches the links of a console page.
func prefetchedPage(t *testing.T, w *world) {
	d := w.openDesk(t)
	id, sandbox := d.pending(t)
	browser, voteForm := d.alice(t), d.voteForm(t, id)
	d.added(t)
	before := len(d.vault.since(0))
	for path, want := range map[string]int{
		"/approvals": http.StatusOK, "/approvals/" + id: http.StatusOK,
		"/approvals/" + id + "/vote": http.StatusMethodNotAllowed, "/approvals/" + id + "/vote?" + voteForm.Encode(): http.StatusMethodNotAllowed,
	} {
		for _, headers := range [][]string{nil, {"Sec-Purpose", "prefetch;prerender"}} {
			resp, text := d.visits(t, browser, path, nil, headers...)
			if resp.StatusCode != want {
				t.Errorf("%s %v: got %d, want %d", path, headers, resp.StatusCode, want)
			}
			givesNothingAway(t, text)
		}
	}
	if entries, asked := d.added(t), d.vault.since(before); len(entries)+len(asked) != 0 {
		t.Errorf("got the entries %+v, and Vault was asked for %v: want nothing", entries, asked)
	}
	if got := d.status(t, id); got != string(openapi.StatusPending) {
		t.Errorf("it is %s", got)
	}
	if err := sandbox.Withdraw(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// crossingForms posts a voteForm as a browser would for pages of other origins, and then as the console's own page does.
func crossingForms(t *testing.T, w *world) {
	d := w.openDesk(t)
	id, _ := d.pending(t)
	browser, voteForm := d.alice(t), d.voteForm(t, id)
	for _, headers := range [][]string{
		{"Origin", "https://" + marker + ".example", "Sec-Fetch-Site", "cross-site"},
		{"Origin", "https://" + marker + ".example"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "null"},
	} {
		d.added(t)
		resp, text := d.visits(t, browser, "/approvals/"+id+"/vote", voteForm, headers...)
		if resp.StatusCode != http.StatusForbidden || d.status(t, id) != string(openapi.StatusPending) {
			t.Errorf("%v: got %d, and it is %s", headers, resp.StatusCode, d.status(t, id))
		}
		givesNothingAway(t, text)
		if entries := d.added(t); len(entries) != 1 || entries[0].Kind != "call.refused" || entries[0].Body["code"] != "not_allowed" {
			t.Errorf("%v: got %+v, want one entry", headers, entries)
		}
	}
	resp, _ := d.visits(t, browser, "/approvals/"+id, nil)
	if resp.Header.Get("X-Frame-Options") != "DENY" || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		t.Errorf("the page can be framed: %v", resp.Header)
	}
	if resp, text := d.visits(t, browser, "/approvals/"+id+"/vote", voteForm, "Origin", d.console, "Sec-Fetch-Site", "same-origin"); d.status(t, id) != string(openapi.StatusApproved) {
		t.Errorf("its own form: got %d, and it is %s\n%s", resp.StatusCode, d.status(t, id), text)
	}
}
