package console_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// clock is the system's clock until it is stopped. While it stands, no limit recovers, whatever the speed of the machine.
type clock struct{ stopped atomic.Pointer[time.Time] }

func (c *clock) now() time.Time {
	if at := c.stopped.Load(); at != nil {
		return *at
	}
	return time.Now()
}

func (c *clock) stop() {
	now := time.Now()
	c.stopped.Store(&now)
}

const (
	// burst is how many requests without a session an address has. A session has half of that, and a person has personBurst.
	burst, personBurst = 1000, 50
	proxiedHost        = "console.brevet.acme.example"
)

// proxied is a world whose console is also served through a real nginx with deploy/proxies/nginx.conf.
type proxied struct {
	*world

	clock *clock
	nginx string // the address on which nginx listens
	roots *x509.CertPool
}

func newProxied(t *testing.T, trusted ...string) *proxied {
	t.Helper()
	proxies, err := clientip.ParseProxies(trusted)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxied{clock: &clock{}, roots: x509.NewCertPool()}
	p.world = newWorldWith(t, func(o *testkit.Options) { o.TrustedProxies, o.Now = proxies, p.clock.now })
	p.console = "https://" + proxiedHost
	listener := testkit.Pages(t)
	p.nginx = listener.Addr().String()

	ca, caKey := testkit.SelfSigned(t)
	p.roots.AddCert(ca)
	own, key := testkit.Certificate(t, &x509.Certificate{DNSNames: []string{proxiedHost}, KeyUsage: x509.KeyUsageDigitalSignature}, ca, caKey)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	site, err := os.ReadFile("../../deploy/proxies/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	behind := p.ConsoleBehind(t, p.console)
	_ = listener.Close() // nginx takes this port
	testkit.Nginx(t, map[string][]byte{
		"console.pem":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Raw}),
		"console-key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		"site.conf":       []byte(strings.NewReplacer("127.0.0.1:8444", behind, "listen 443", "listen "+p.nginx).Replace(string(site))),
	})
	return p
}

// from returns a browser that connects to nginx from an address. It has the session of who, or none if who is empty.
func (p *proxied) from(t *testing.T, address, who string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	carrier := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", p.nginx)
		},
		TLSClientConfig: &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12},
	}
	t.Cleanup(carrier.CloseIdleConnections)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{
		Jar: jar, Transport: carrier, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if who != "" {
		// The provider redirects to loopback only. So who logs in at another address of the console, which has the same sessions.
		direct := p.world.Console(t)
		at := &world{Stack: p.Stack, console: direct, oidc: p.oidc}
		var cookies []*http.Cookie
		for _, cookie := range cookiesOf(t, at.program(t, who), direct) {
			cookie.Name, cookie.Path, cookie.Secure = "__Host-"+cookie.Name, "/", true
			cookies = append(cookies, cookie)
		}
		jar.SetCookies(parsed(t, p.console), cookies)
	}
	return browser
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func cookiesOf(t *testing.T, browser *http.Client, site string) []*http.Cookie {
	t.Helper()
	return browser.Jar.Cookies(parsed(t, site))
}

// answers sends n requests for a path, and counts the statuses.
func (w *world) answers(t *testing.T, browser *http.Client, n int, path string, headers ...string) string {
	t.Helper()
	counts := map[int]int{}
	for range n {
		status, _ := w.ask(t, browser, path, nil, headers...)
		counts[status]++
	}
	return fmt.Sprint(counts)
}

// H95: behind a TLS proxy, strangers use up the limit of their own address, whatever they claim, and nobody else's.
func TestStrangersBehindAProxyLockOutNobody(t *testing.T) {
	p := newProxied(t, "127.0.0.1")
	flooding, near, far := p.from(t, "127.0.0.2", ""), p.from(t, "127.0.0.2", "alice"), p.from(t, "127.0.0.3", "dave")
	p.clock.stop()
	if got := p.answers(t, flooding, burst, "/you"); got != fmt.Sprintf("map[303:%d]", burst) {
		t.Fatalf("a stranger got %s, want that many redirects to the login", got)
	}
	for _, claim := range [][]string{nil, {"X-Forwarded-For", "127.0.0.4"}, {"Forwarded", "for=127.0.0.4"}, {"X-Forwarded-For", "127.0.0.4", "Forwarded", "for=127.0.0.4"}} {
		if status, body := p.ask(t, flooding, "/you", nil, claim...); status != http.StatusTooManyRequests || !strings.Contains(body, "your address") {
			t.Errorf("one more, with %q: got %d, want 429\n%s", claim, status, body)
		}
	}
	for name, browser := range map[string]*http.Client{"at the strangers' address": near, "elsewhere": far} {
		if status, body := p.ask(t, browser, "/you", nil); status != http.StatusOK || !strings.Contains(body, "<h1>Profile</h1>") {
			t.Errorf("a person %s: got %d, want their profile\n%s", name, status, body)
		}
	}
	if status, body := p.ask(t, p.from(t, "127.0.0.3", ""), "/login", nil); status != http.StatusSeeOther {
		t.Errorf("a login from elsewhere: got %d, want a redirect to the provider\n%s", status, body)
	}
}

// If the proxy is not listed, all strangers share its address. They still lock out nobody who is logged in.
func TestStrangersBehindAnUnlistedProxyLockOutNoSession(t *testing.T) {
	p := newProxied(t, "127.0.0.9")
	stranger, alice := p.from(t, "127.0.0.2", ""), p.from(t, "127.0.0.3", "alice")
	p.clock.stop()
	p.answers(t, stranger, burst, "/you", "X-Forwarded-For", "127.0.0.4")
	if status, _ := p.ask(t, p.from(t, "127.0.0.3", ""), "/login", nil); status != http.StatusTooManyRequests {
		t.Errorf("another stranger: got %d, want 429", status)
	}
	if status, body := p.ask(t, alice, "/you", nil); status != http.StatusOK {
		t.Errorf("Alice: got %d, want her profile\n%s", status, body)
	}
}

// The record of a refused request has the client's address, as the proxy saw it. A header of a peer that is not listed changes
// nothing.
func TestRefusalsHaveTheAddressOfTheClient(t *testing.T) {
	claim := []string{"Sec-Fetch-Site", "cross-site", "X-Forwarded-For", "198.51.100.1", "Forwarded", "for=198.51.100.2"}
	remote := func(t *testing.T, w *world, browser *http.Client, headers ...string) string {
		t.Helper()
		if status, body := w.ask(t, browser, "/logout", url.Values{}, headers...); status != http.StatusForbidden {
			t.Fatalf("got %d, want a refusal\n%s", status, body)
		}
		entries := w.DB.Entries(t)
		last := entries[len(entries)-1]
		if last.Kind != "call.refused" || last.Body["operation"] != "console" {
			t.Fatalf("got %+v, want a refusal of the console", last)
		}
		return fmt.Sprint(last.Body["remote"])
	}
	t.Run("through the proxy", func(t *testing.T) {
		p := newProxied(t, "127.0.0.1")
		if got := remote(t, p.world, p.from(t, "127.0.0.2", ""), claim...); got != "127.0.0.2" {
			t.Errorf("got %s, want the address of the client", got)
		}
	})
	t.Run("through a proxy that is not listed", func(t *testing.T) {
		p := newProxied(t, "127.0.0.9")
		if got := remote(t, p.world, p.from(t, "127.0.0.2", ""), claim...); got != "127.0.0.1" {
			t.Errorf("got %s, want the address of the proxy", got)
		}
	})
	t.Run("from a peer that is not listed", func(t *testing.T) {
		w := newWorld(t)
		for _, headers := range [][]string{claim, claim[:4], append(claim[:2:2], claim[4:]...)} {
			if got := remote(t, w, w.program(t, ""), headers...); got != "127.0.0.1" {
				t.Errorf("with %q: got %s, want the address of the peer", headers, got)
			}
		}
	})
}

// A person and a session have limits of their own.
func TestPersonOverTheLimitIsRefusedAlone(t *testing.T) {
	c := &clock{}
	w := newWorldWith(t, func(o *testkit.Options) { o.Now = c.now })
	alice, again, dave, stranger := w.program(t, "alice"), w.program(t, "alice"), w.program(t, "dave"), w.program(t, "")
	c.stop()
	// Each login has opened a page, which may still count.
	const before = 2
	if got := w.answers(t, alice, personBurst-before, "/you"); got != fmt.Sprintf("map[200:%d]", personBurst-before) {
		t.Errorf("Alice got %s", got)
	}
	w.answers(t, alice, before, "/you")
	for _, browser := range []*http.Client{alice, again} {
		if status, body := w.ask(t, browser, "/you", nil); status != http.StatusTooManyRequests || !strings.Contains(body, "the limit for one person") {
			t.Errorf("Alice, over her limit: got %d, want 429\n%s", status, body)
		}
	}
	if status, _ := w.ask(t, dave, "/you", nil); status != http.StatusOK {
		t.Errorf("Dave: got %d", status)
	}
	w.answers(t, alice, burst/2, "/static/0/console.js")
	if status, body := w.ask(t, alice, "/static/0/console.js", nil); status != http.StatusTooManyRequests || !strings.Contains(body, "your session") {
		t.Errorf("a script, over the limit of a session: got %d, want 429\n%s", status, body)
	}
	if status, _ := w.ask(t, again, "/static/0/console.js", nil); status != http.StatusNotFound {
		t.Errorf("a script for another session: got %d, want 404, because there is no such file", status)
	}
	if status, _ := w.ask(t, stranger, "/you", nil); status != http.StatusSeeOther {
		t.Errorf("a stranger: got %d, want a redirect to the login", status)
	}
}

// Only a session cookie that the console has signed leads to the database. While sessions cannot be read, strangers are answered,
// whatever cookies they invent.
func TestForgedSessionsAreNotLookedUp(t *testing.T) {
	w := newWorld(t)
	alice, at := w.program(t, "alice"), parsed(t, w.console)
	held := map[string]*http.Cookie{}
	for _, cookie := range cookiesOf(t, alice, w.console) {
		held[cookie.Name] = cookie
	}
	session, signature := held["brevet-session"], held["brevet-session-signature"]
	if session == nil || signature == nil {
		t.Fatalf("got %v, want a session and its signature", held)
	}
	with := func(cookies ...*http.Cookie) *http.Client {
		browser := w.program(t, "")
		browser.Timeout = 5 * time.Second
		browser.Jar.SetCookies(at, cookies)
		return browser
	}
	other := &http.Cookie{Name: session.Name, Value: strings.Repeat("A", 43)}
	forged := map[string]*http.Client{
		"no signature":        with(session),
		"another session":     with(other, signature),
		"another signature":   with(session, &http.Cookie{Name: signature.Name, Value: strings.Repeat("A", 43)}),
		"an empty signature":  with(session, &http.Cookie{Name: signature.Name}),
		"the session as both": with(session, &http.Cookie{Name: signature.Name, Value: session.Value}),
		"a signature alone":   with(signature),
	}
	locking := testkit.Connect(t, w.DB.AdminURL)
	tx, err := locking.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for name, browser := range forged {
		for _, path := range []string{"/you", "/static/x", "/static/x/y/z", "/nothing"} {
			if status, _ := w.ask(t, browser, path, nil); status != http.StatusSeeOther && status != http.StatusNotFound {
				t.Errorf("%s: %s: got %d, want what a stranger gets", name, path, status)
			}
		}
	}
	if status, _ := w.ask(t, alice, "/static/x", nil); status != http.StatusNotFound {
		t.Errorf("a script with a session: got %d, want 404, because there is no such file", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.console+"/you", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := with(session, signature).Do(req); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("a session was read while nobody can read it: the lock proves nothing")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.ask(t, with(session, signature), "/you", nil); status != http.StatusOK {
		t.Errorf("with both cookies: got %d, want the profile", status)
	}
}

// Somebody whose session has ended counts as a stranger.
func TestEndedSessionsCountForTheAddress(t *testing.T) {
	c := &clock{}
	w := newWorldWith(t, func(o *testkit.Options) { o.Now = c.now })
	alice := w.program(t, "alice")
	held := cookiesOf(t, alice, w.console)
	if status, _ := w.ask(t, alice, "/logout", url.Values{}); status != http.StatusSeeOther {
		t.Fatalf("logging out: got %d", status)
	}
	if left := cookiesOf(t, alice, w.console); len(left) != 0 {
		t.Errorf("got %v after the logout, want no cookie", left)
	}
	ended := w.program(t, "")
	ended.Jar.SetCookies(parsed(t, w.console), held)
	c.stop()
	stranger := w.program(t, "")
	w.answers(t, ended, burst/4, "/you")
	w.answers(t, stranger, burst*3/4, "/you")
	if status, body := w.ask(t, stranger, "/you", nil); status != http.StatusTooManyRequests || !strings.Contains(body, "your address") {
		t.Errorf("a stranger at the same address: got %d, want 429\n%s", status, body)
	}
}

// T11: the console answers a form of a stranger before it reads the form, whatever cookies they invent.
func TestFormsOfStrangersAreNotRead(t *testing.T) {
	w := newWorld(t)
	cookie := func(name, value string) *http.Cookie { return &http.Cookie{Name: name, Value: value} }
	alice := map[string]string{}
	for _, held := range cookiesOf(t, w.program(t, "alice"), w.console) {
		alice[held.Name] = held.Value
	}
	name, signature, signed := strings.Cut(alice["brevet-session-person"], ".")
	if !signed {
		t.Errorf("got the cookie %q, want a signed person", alice["brevet-session-person"])
	}
	other := strings.Repeat("A", 43)
	for who, cookies := range map[string][]*http.Cookie{
		"no cookie":           nil,
		"a name":              {cookie("brevet-session-person", name)},
		"an empty signature":  {cookie("brevet-session-person", name+".")},
		"another name":        {cookie("brevet-session-person", other+"."+signature)},
		"another signature":   {cookie("brevet-session-person", name+"."+other)},
		"nobody":              {cookie("brevet-session-person", ".")},
		"an invented session": {cookie("brevet-session", other), cookie("brevet-session-signature", other)},
	} {
		browser := w.program(t, "")
		browser.Jar.SetCookies(parsed(t, w.console), cookies)
		browser.Timeout = 5 * time.Second // the server waits longer for the form
		for path, want := range map[string]int{
			"/session/keep": http.StatusUnprocessableEntity, "/session/kept": http.StatusUnauthorized, "/session/stay": http.StatusUnauthorized,
			"/approvals/x/vote": http.StatusUnauthorized, "/catalogue/draft": http.StatusUnauthorized, "/endings/task": http.StatusUnauthorized,
			"/you/passkeys/challenge": http.StatusUnauthorized, "/ledger/growth": http.StatusUnauthorized,
		} {
			body, never := io.Pipe()
			method, kind := http.MethodPost, "application/x-www-form-urlencoded"
			if path == "/ledger/growth" {
				method, kind = http.MethodGet, "multipart/form-data; boundary=x"
			}
			req, err := http.NewRequestWithContext(t.Context(), method, w.console+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = 2_000_005
			req.Header.Set("Content-Type", kind)
			resp, err := browser.Do(req)
			_ = never.Close()
			if err != nil {
				t.Errorf("%s: %s: got %v, want an answer without the form", who, path, err)
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: %s: got %d, want %d", who, path, resp.StatusCode, want)
			}
		}
	}
}
