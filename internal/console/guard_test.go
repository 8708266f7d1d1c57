package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// H48, H90 and H91, and other requests that somebody else can make a browser send.
func TestCrossSiteRequestsAreRefused(t *testing.T) {
	w := newWorld(t)
	alice, nobody := w.program(t, "alice"), w.program(t, "")
	for _, tc := range []struct {
		name    string
		browser *http.Client
		path    string
		form    url.Values
		headers []string
		status  int
		says    string
	}{
		{"a page", alice, "/you", nil, nil, http.StatusOK, "Alice Archer"},
		{"a page, for nobody", nobody, "/you", nil, nil, http.StatusSeeOther, ""},
		{"what a script asks for, for nobody", nobody, "/you", nil, []string{"HX-Request", "true"}, http.StatusUnauthorized, ""},
		{"a form of another site", alice, "/logout", url.Values{}, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a form of a sibling host", alice, "/logout", url.Values{}, []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a form of another origin, from an old browser", alice, "/logout", url.Values{}, []string{"Origin", "https://evil.test"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a form of a frame without an origin", alice, "/logout", url.Values{}, []string{"Origin", "null"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a page within that of another site", alice, "/you", nil, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a script of a sibling host", alice, "/you", nil, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}, http.StatusForbidden, "Cross-origin request refused"},
		{"a link on another site", alice, "/you", nil, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, http.StatusOK, "Alice Archer"},
		{"a prefetch of what a form does", alice, "/logout", nil, []string{"Sec-Purpose", "prefetch"}, http.StatusMethodNotAllowed, ""},
		{"another host", alice, "/you", nil, []string{"Host", "evil.test"}, http.StatusMisdirectedRequest, "Unknown host"},
		{"what is not there", alice, "/static/0000/console.js", nil, nil, http.StatusNotFound, ""},
		{"the end of a login that nobody began", nobody, "/callback?code=x&state=y", nil, nil, http.StatusBadRequest, "Login failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := w.askAs(t, tc.browser, tc.path, tc.form, tc.headers...)
			if status != tc.status || !strings.Contains(body, tc.says) {
				t.Errorf("got %d, want %d and %q:\n%s", status, tc.status, tc.says, body)
			}
		})
	}
	if status, body := w.ask(t, alice, "/you", nil); status != http.StatusOK {
		t.Errorf("after all that Alice is logged out: %d\n%s", status, body)
	}
}

// askAs is ask, but it sends a Host header as the host of the request.
func (w *world) askAs(t *testing.T, browser *http.Client, path string, form url.Values, headers ...string) (status int, body string) {
	t.Helper()
	if len(headers) != 2 || headers[0] != "Host" {
		return w.ask(t, browser, path, form, headers...)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.console+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = headers[1]
	return answer(t, browser, req)
}

// Every response sets the security headers, whatever the request.
func TestHeaders(t *testing.T) {
	w := newWorld(t)
	nobody := w.program(t, "")
	for _, path := range []string{"/signed-out", "/you", "/callback", "/static/0000/console.js"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.console+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := nobody.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		csp := resp.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			if !strings.Contains(csp, part) {
				t.Errorf("%s: the policy %q lacks %q", path, csp, part)
			}
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: the policy %q lets scripts or styles be written into the page", path, csp)
		}
		for name, want := range map[string]string{
			"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: got %s: %q, want %q", path, name, got, want)
			}
		}
	}
}

// Read access to the database gives no session, and a logout ends the session.
func TestSessionsAreSealed(t *testing.T) {
	w := newWorld(t)
	alice := w.program(t, "alice")
	at, err := url.Parse(w.console)
	if err != nil {
		t.Fatal(err)
	}
	var session *http.Cookie
	for _, cookie := range alice.Jar.Cookies(at) {
		if cookie.Name == "brevet-session" {
			session = cookie
		}
	}
	if session == nil {
		t.Fatalf("got no session among %v", alice.Jar.Cookies(at))
	}
	var id, data []byte
	err = testkit.Connect(t, w.DB.AdminURL).QueryRow(t.Context(), `SELECT id, data FROM sessions`).Scan(&id, &data)
	if err != nil {
		t.Fatal(err)
	}
	if row := string(id) + string(data); strings.Contains(row, session.Value) || strings.Contains(row, "eyJ") || strings.Contains(row, "alice") {
		t.Error("the row holds the cookie, the ID token or a name")
	}
	if status, _ := w.ask(t, alice, "/logout", url.Values{}); status != http.StatusSeeOther {
		t.Fatalf("logging out: got %d", status)
	}
	alice.Jar.SetCookies(at, []*http.Cookie{session})
	if status, _ := w.ask(t, alice, "/you", nil); status != http.StatusSeeOther {
		t.Errorf("a session that was ended opens a page: %d", status)
	}
}

// Refused requests are recorded.
func TestRefusalsAreRecorded(t *testing.T) {
	w := newWorld(t)
	alice := w.program(t, "alice")
	if status, _ := w.ask(t, alice, "/logout", url.Values{}, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Fatalf("got %d", status)
	}
	var n int
	err := testkit.Connect(t, w.DB.AdminURL).QueryRow(t.Context(),
		`SELECT count(*) FROM entries WHERE kind = 'call.refused' AND convert_from(body, 'UTF8') LIKE '%console%'`).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("got %d entries, %v, want one", n, err)
	}
}

// A login accepts one callback, so nobody can use it to call the provider again and again.
func TestLoginAcceptsOneCallback(t *testing.T) {
	w := newWorld(t)
	nobody := w.program(t, "")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.console+"/login", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := nobody.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		t.Fatal(err)
	}
	cookies := resp.Cookies()
	at, err := url.Parse(w.console)
	if err != nil {
		t.Fatal(err)
	}
	back := "/callback?code=guessed&state=" + url.QueryEscape(to.Query().Get("state"))
	for _, want := range []string{"Login declined", "Login failed"} {
		nobody.Jar.SetCookies(at, cookies)
		if status, body := w.ask(t, nobody, back, nil); status == http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("got %d, want %q:\n%s", status, want, body)
		}
	}
}

// A login in a browser does not continue the session of the previous person.
func TestLoginStartsANewSession(t *testing.T) {
	w := newWorld(t)
	browser := w.program(t, "dave")
	before := sessionOf(t, w, browser)
	browser.CheckRedirect = nil
	jar := browser.Jar.(insecure)
	other := w.program(t, "")
	other.CheckRedirect = nil
	at, err := url.Parse(w.console)
	if err != nil {
		t.Fatal(err)
	}
	other.Jar.SetCookies(at, jar.Cookies(at))
	if page := w.oidc.LogIn(t, other, w.console+"/login?return=/you", "alice"); !strings.Contains(page, "Alice Archer") {
		t.Fatalf("got:\n%s", page)
	}
	if after := sessionOf(t, w, other); after == before {
		t.Error("the session of the one who was logged in goes on")
	}
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if status, _ := w.ask(t, browser, "/you", nil); status != http.StatusSeeOther {
		t.Errorf("the session before opens a page: %d", status)
	}
}

func sessionOf(t *testing.T, w *world, browser *http.Client) string {
	t.Helper()
	at, err := url.Parse(w.console)
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range browser.Jar.Cookies(at) {
		if cookie.Name == "brevet-session" {
			return cookie.Value
		}
	}
	t.Fatal("got no session")
	return ""
}
