package console_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

var shots = flag.String("shots", "", "folder to keep a picture of each page in")

const catalogue = `
scopes:
  - name: github.issues.read
    title: Read issues of one repository
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: 'https://github-gateway.test'}
  - name: github.issues.write
    title: Comment on issues of one repository
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, expires: 10m}
    credential: {kind: jwt, audience: 'https://github-gateway.test'}
`

const policies = `
@id("agents-may-read")
permit (principal in Path::"spiffe://acme.test/agents", action == Action::"github.issues.read", resource);

@id("agents-may-write")
permit (principal in Path::"spiffe://acme.test/agents", action == Action::"github.issues.write", resource);

@id("writes-need-a-person")
forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
`

// world is a complete Brevet with its console, an OpenID provider and a browser.
type world struct {
	*testkit.Stack

	console string
	oidc    *testkit.OIDC
	browser context.Context //nolint:containedctx // it is how chromedp holds a browser
	axe     string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(*testkit.Options) {})
}

// newWorldWith returns a world with changed options.
func newWorldWith(t *testing.T, change func(*testkit.Options)) *world {
	t.Helper()
	oidc := testkit.Provider(t)
	options := testkit.Options{
		Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(catalogue)}, {Name: "policy.cedar", Data: []byte(policies)}},
		Applied:   true,
		OIDC:      oidc,
		Rules: []people.Rule{
			{Role: people.RoleApprover, Group: "oncall"},
			{Role: people.RoleAuditor, Group: "auditors"},
			{Role: people.RoleAdmin, Group: "admins"},
			{Role: people.RoleAuditor, Group: "admins"},
		},
	}
	change(&options)
	w := &world{Stack: testkit.NewStack(t, options)}
	w.console, w.oidc = w.Stack.Console(t), oidc
	return w
}

// program returns an HTTP client that keeps cookies but runs no scripts and follows no redirects. It is logged in as who,
// or not at all if who is empty.
func (w *world) program(t *testing.T, who string) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: insecure{jar}, Timeout: patience}
	if who != "" {
		if page := w.oidc.LogIn(t, browser, w.console+"/login?return=/you", who); !strings.Contains(page, "<h1>Profile</h1>") {
			t.Fatalf("after the login got:\n%s", page)
		}
	}
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return browser
}

// insecure sends Secure cookies to http://localhost, as browsers do.
type insecure struct{ http.CookieJar }

func (j insecure) SetCookies(u *url.URL, cookies []*http.Cookie) {
	for _, cookie := range cookies {
		cookie.Secure = cookie.Secure && u.Scheme == "https"
	}
	j.CookieJar.SetCookies(u, cookies)
}

// ask sends one request with headers in pairs, and returns the status and the body. If there is a form, it sends a POST.
func (w *world) ask(t *testing.T, browser *http.Client, path string, form url.Values, headers ...string) (status int, body string) {
	t.Helper()
	method, sent := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, sent = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(t.Context(), method, w.console+path, sent)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return answer(t, browser, req)
}

func answer(t *testing.T, browser *http.Client, req *http.Request) (status int, body string) {
	t.Helper()
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// agent returns the client of a sandbox of acme.test.
func (w *world) agent(t *testing.T, name string) *client.Client {
	t.Helper()
	return w.Client(t, "spiffe://acme.test/agents/"+name)
}

// tab is one person's browser with separate cookies.
type tab struct {
	t     *testing.T
	world *world
	ctx   context.Context //nolint:containedctx // it is how chromedp holds a tab
	// patience is how long one step may take.
	patience time.Duration

	mu       sync.Mutex
	reported []string // script errors and policy violations on the page
}

// tab opens a separate browser without a login.
func (w *world) tab(t *testing.T) *tab {
	t.Helper()
	if w.browser == nil {
		w.browser, w.axe = testkit.Browser(t), testkit.Axe(t)
	}
	ctx := testkit.Tab(t, w.browser, chromedp.WithNewBrowserContext())
	b := &tab{t: t, world: w, ctx: ctx, patience: patience}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatalf("opening a tab: %v", err)
	}
	call(b, log.Enable, cdp.Empty{})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, one := range b.reported {
			t.Errorf("the page complains: %s", one)
		}
	})
	return b
}

// hear records the errors that a page reports.
func (b *tab) hear(event any) {
	var text string
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if !strings.HasPrefix(e.Entry.URL, b.world.console) && e.Entry.URL != "" {
			return // a page of the provider
		}
		if e.Entry.Source == log.EntrySourceNetwork && strings.HasPrefix(e.Entry.Text, "Failed to load resource: the server responded with a status of 4") {
			return // error pages have such a status
		}
		text = string(e.Entry.Source) + ": " + e.Entry.Text + " " + e.Entry.URL
	case *runtime.EventExceptionThrown:
		text = fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reported = append(b.reported, text)
}

const (
	// patience is how long one step in the browser may take on a busy machine. Every call to the browser has this deadline:
	// a Chromium that crashed under load must fail the test within a minute, and not hang it until the suite times out.
	patience = 40 * time.Second
	// seenPatience is how long a failed test asks the browser for its page.
	seenPatience = 5 * time.Second
)

func (b *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for i, step := range steps {
		if _, err := within(b, step); err != nil {
			b.t.Fatalf("step %d of %d: got %v%s", i+1, len(steps), err, b.seen())
		}
	}
}

// within runs one action with a deadline.
func within[T any](b *tab, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeoutCause(b.ctx, b.patience, fmt.Errorf("the browser did not finish this within %s", b.patience))
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return result, err
}

// seen returns the page after a failed step, if the browser still responds.
func (b *tab) seen() string {
	ctx, cancel := context.WithTimeout(b.ctx, min(b.patience, seenPatience))
	defer cancel()
	where, err := chromedp.Run(ctx, chromedp.Location())
	if err != nil {
		return fmt.Sprintf("; the browser does not answer any more: %v", err)
	}
	body, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body?.innerText ?? ""`))
	return fmt.Sprintf(" at %s:\n%s", where, body)
}

// get returns the result of an action.
func get[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	found, err := within(b, action)
	if err != nil {
		b.t.Fatalf("got %v%s", err, b.seen())
	}
	return found
}

// call sends a DevTools command, for what a page cannot do.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("got %v within %s", err, patience)
	}
	return result
}

// login logs in at the provider, after the console redirects there.
func (b *tab) login(who string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.world.console + "/login?return=/you"))
	b.signIn(who)
	if got := b.title(); got != "Profile" {
		b.t.Fatalf("after the login got the page %q:\n%s", got, b.text("body"))
	}
}

// signIn fills in the provider's forms.
func (b *tab) signIn(who string) {
	b.t.Helper()
	b.run(
		chromedp.WaitVisible(`input[name="login"]`), chromedp.SendKeys(`input[name="login"]`, who), chromedp.SendKeys(`input[name="password"]`, "any"),
		chromedp.Click(`button[type="submit"]`), chromedp.WaitNotPresent(`input[name="login"]`),
		chromedp.WaitVisible(`button[type="submit"], main#main`),
	)
	if get(b, chromedp.Evaluate[bool](`!document.querySelector("main#main")`)) {
		b.run(chromedp.Click(`button[type="submit"]`))
	}
	b.run(chromedp.WaitVisible("main#main"))
}

// open opens a page and checks its accessibility.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.world.console+path), chromedp.WaitVisible("main#main"))
	b.check(path)
}

func (b *tab) title() string {
	b.t.Helper()
	return get(b, chromedp.Evaluate[string](`document.querySelector("h1")?.innerText ?? ""`))
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(get(b, chromedp.Text(selector, chromedp.NodeVisible)))
}

// check checks the page against WCAG 2.2 AA, as far as axe-core can, in light and dark mode and on a narrow screen. It
// saves screenshots.
func (b *tab) check(name string) {
	b.t.Helper()
	for _, look := range []struct {
		name   string
		scheme string
		width  int64
	}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"narrow", "light", 320}} {
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: look.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		b.run(chromedp.EmulateViewport(look.width, 900))
		b.accessible(name + " " + look.name)
		b.shoot(name, look.name)
	}
	b.run(chromedp.ResetViewport())
}

// accessible runs axe-core on the page. It also fails if the page is wider than the screen.
func (b *tab) accessible(name string) {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](b.world.axe + ";0"))
	found := get(b, chromedp.Evaluate[string](`axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r => JSON.stringify(
		r.violations.map(v => v.id + ": " + v.help + " " + v.nodes.map(n => n.html + " " + n.failureSummary).join(" | "))))`, chromedp.EvalAwaitPromise))
	wide := get(b, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > document.documentElement.clientWidth`))
	var violations []string
	if err := json.Unmarshal([]byte(found), &violations); err != nil {
		b.t.Fatalf("reading what axe-core found: %v", err)
	}
	for _, v := range violations {
		b.t.Errorf("%s: %s", name, v)
	}
	if wide {
		b.t.Errorf("%s: the page is wider than the screen", name)
	}
}

func (b *tab) shoot(name, look string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	picture := get(b, chromedp.FullScreenshot(100))
	file := strings.Trim(strings.NewReplacer("/", "-", "?", "-", "&", "-", "=", "-", ":", "-", "%", "-").Replace(name), "-")
	if file == "" {
		file = "home"
	}
	if err := os.WriteFile(filepath.Join(*shots, file+"."+look+".png"), picture, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
