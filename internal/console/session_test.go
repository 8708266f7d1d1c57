package console_test

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/chromedp/chromedp"
)

// later is the system's clock, moved ahead.
type later struct{ by atomic.Int64 }

func (l *later) now() time.Time          { return time.Now().Add(time.Duration(l.by.Load())) }
func (l *later) pass(time time.Duration) { l.by.Add(int64(time)) }

// devWorld is a world whose provider is that of brevet dev, which knows any people and has the clock of the console.
type devWorld struct {
	*world

	clock *later
}

func newDevWorld(t *testing.T, change func(*testkit.Options)) *devWorld {
	t.Helper()
	d := &devWorld{clock: &later{}}
	options := testkit.Options{
		Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(catalogue)}, {Name: "policy.cedar", Data: []byte(policies)}},
		Applied:   true, Now: d.clock.now,
		People: []devstack.DevPerson{{Username: "alice", Name: "Alice Archer", Groups: []string{"oncall"}}, {Username: "bob", Name: "Bob Baker", Groups: []string{"oncall", "admins"}}},
		Rules: []people.Rule{
			{Role: people.RoleApprover, Group: "oncall"}, {Role: people.RoleAdmin, Group: "admins"}, {Role: people.RoleAuditor, Group: "admins"},
		},
		Sessions: func(c *console.Config) {
			c.SessionIdle, c.SessionLength, c.LoginMaxAge = 4*time.Minute, 12*time.Minute, 3*time.Minute
		},
	}
	change(&options)
	d.world = &world{Stack: testkit.NewStack(t, options)}
	d.console = d.Stack.Console(t)
	return d
}

// logIn logs somebody in, in a browser in which somebody else may be logged in.
func (d *devWorld) logIn(t *testing.T, browser *http.Client, who string) {
	t.Helper()
	step := func(method, address, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		to, err := resp.Location()
		if err != nil || resp.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s: got %d and no way on: %v", address, resp.StatusCode, err)
		}
		return to.String()
	}
	back := step(http.MethodPost, step(http.MethodGet, d.console+"/login?return=/you", ""), url.Values{"username": {who}}.Encode())
	if to := step(http.MethodGet, back, ""); to != d.console+"/you" {
		t.Fatalf("after the login of %s got %s", who, to)
	}
}

func (d *devWorld) as(t *testing.T, who string) *http.Client {
	t.Helper()
	browser := d.program(t, "")
	d.logIn(t, browser, who)
	return browser
}

var keptField = regexp.MustCompile(`name="page-kept" value="([^"]+)"`)

// keptIn returns the kept form in a page, or nothing.
func keptIn(page string) string {
	if found := keptField.FindStringSubmatch(page); found != nil {
		return html.UnescapeString(found[1])
	}
	return ""
}

const note = "seen with the release manager"

// I5: a vote whose session has ended is not lost. Its person sends it again after a login, and it counts once. Nobody else gets it.
func TestVoteSurvivesTheEndOfTheSession(t *testing.T) {
	for name, passes := range map[string]struct {
		time  time.Duration
		title string
	}{
		"no activity":           {5 * time.Minute, "Login required"},
		"the login is too old":  {3*time.Minute + time.Second, "Log in again to continue"},
		"the session was ended": {0, "Login required"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevWorld(t, func(*testkit.Options) {})
			id := waits(t, d.agent(t, "triage-1"), comment("acme/api", ""))
			path := "/approvals/" + id + "/vote"
			browser := d.as(t, "alice")
			form := d.voteForm(t, browser, id, "approve")
			form.Set("note", note)
			d.clock.pass(passes.time)
			if passes.time == 0 {
				if _, err := testkit.Connect(t, d.DB.AdminURL).Exec(t.Context(), `DELETE FROM sessions`); err != nil {
					t.Fatal(err)
				}
			}
			status, page := d.ask(t, browser, path, form)
			kept := keptIn(page)
			if status != http.StatusUnauthorized || kept == "" || !strings.Contains(page, "<h1>"+passes.title+"</h1>") || strings.Contains(page, note) {
				t.Fatalf("got %d, want the form kept, and its text hidden:\n%s", status, page)
			}
			again := url.Values{"page-kept": {kept}}
			d.logIn(t, browser, "bob")
			for _, other := range []string{path, "/session/kept"} {
				status, page = d.ask(t, browser, other, url.Values{"page-kept": {kept}, "page-action": {path}})
				if status != http.StatusConflict || !strings.Contains(page, "Form of another person") || strings.Contains(page, note) {
					t.Errorf("%s: got %d for another person:\n%s", other, status, page)
				}
			}
			d.logIn(t, browser, "alice")
			if _, page = d.ask(t, browser, "/approvals/"+id, nil); !strings.Contains(page, "no votes yet") {
				t.Errorf("somebody has voted:\n%s", page)
			}
			if status, page = d.ask(t, browser, "/session/kept", url.Values{"page-kept": {kept}, "page-action": {path}}); status != http.StatusOK || !strings.Contains(page, note) {
				t.Errorf("got %d, want what Alice has typed:\n%s", status, page)
			}
			if status, page = d.ask(t, browser, path, again); status != http.StatusOK || !strings.Contains(page, "Check the kept form") || !strings.Contains(page, note) {
				t.Errorf("got %d, want the fields shown before anything is sent:\n%s", status, page)
			}
			if _, page = d.ask(t, browser, "/approvals/"+id, nil); !strings.Contains(page, "no votes yet") {
				t.Errorf("a kept form that nobody has seen voted:\n%s", page)
			}
			again.Set("page-seen", "yes")
			for _, says := range []string{"Approved: the sandbox can redeem", "already voted this way"} {
				if status, page = d.ask(t, browser, path, again); status != http.StatusSeeOther {
					t.Fatalf("got %d, want the vote taken:\n%s", status, page)
				}
				if _, page = d.ask(t, browser, "/approvals", nil); !strings.Contains(page, says) {
					t.Errorf("%q is not on the page:\n%s", says, page)
				}
			}
			if _, page = d.ask(t, browser, "/approvals/"+id, nil); strings.Count(page, note) != 1 {
				t.Errorf("want one vote with the note:\n%s", page)
			}
		})
	}
}

// I5: every form that changes something requires a recent login, which reading does not.
func TestChangeRequiresARecentLogin(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	id := waits(t, d.agent(t, "triage-1"), comment("acme/api", ""))
	bob := d.as(t, "bob")
	d.clock.pass(3*time.Minute + time.Second)
	for _, path := range []string{
		"/approvals/" + id + "/vote", "/endings/task", "/endings/revoke", "/endings/quarantine", "/endings/lift", "/catalogue/apply",
		"/catalogue/proposals/sha256:" + strings.Repeat("0", 64), "/you/passkeys", "/you/passkeys/" + id + "/remove",
	} {
		if status, page := d.ask(t, bob, path, url.Values{"reason": {"x"}}); status != http.StatusUnauthorized || !strings.Contains(page, "Log in again to continue") {
			t.Errorf("%s: got %d:\n%s", path, status, page)
		}
	}
	for _, path := range []string{"/you", "/history", "/approvals/" + id} {
		if status, _ := d.ask(t, bob, path, nil); status != http.StatusOK {
			t.Errorf("%s: got %d, want the page", path, status)
		}
	}
	if status, page := d.ask(t, bob, "/catalogue/draft", url.Values{"base": {"x"}}); status != http.StatusUnprocessableEntity {
		t.Errorf("a check of a draft changes nothing: got %d:\n%s", status, page)
	}
}

// A session ends without activity, and in any case. A page that refreshes by itself is no activity.
func TestSessionsEnd(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	reads := func(browser *http.Client, headers ...string) int {
		t.Helper()
		status, _ := d.ask(t, browser, "/you", nil, headers...)
		return status
	}
	for name, tc := range map[string]struct {
		method  url.Values
		path    string
		headers []string
		alive   bool
	}{
		"a page":              {nil, "/you", nil, true},
		"a person at a page":  {url.Values{}, "/session/stay", []string{"Sec-Fetch-Dest", "empty"}, true},
		"a page by itself":    {nil, "/", []string{"HX-Request", "true"}, false},
		"a script by itself":  {nil, "/live/rates.json", []string{"Sec-Fetch-Dest", "empty"}, false},
		"an old browser":      {nil, "/live/rates.json", nil, false},
		"another old browser": {nil, "/ledger/growth?from=0&to=0", nil, false},
		"a form kept open":    {url.Values{"note": {"x"}}, "/session/keep", []string{"Sec-Fetch-Dest", "empty"}, false},
		"what is never shown": {nil, "/static/0/console.js", nil, false},
	} {
		browser := d.as(t, "bob")
		d.clock.pass(3 * time.Minute)
		d.ask(t, browser, tc.path, tc.method, tc.headers...)
		d.clock.pass(2 * time.Minute)
		want := http.StatusSeeOther
		if tc.alive {
			want = http.StatusOK
		}
		if got := reads(browser); got != want {
			t.Errorf("%s: got %d without other activity for five minutes, want %d", name, got, want)
		}
	}

	browser := d.as(t, "bob")
	for range 5 {
		d.clock.pass(2 * time.Minute)
		if got := reads(browser); got != http.StatusOK {
			t.Fatalf("got %d in an active session", got)
		}
	}
	d.clock.pass(2 * time.Minute)
	if got := reads(browser, "HX-Request", "true"); got != http.StatusUnauthorized {
		t.Errorf("got %d for a script after the longest duration", got)
	}
	if got := reads(browser); got != http.StatusSeeOther {
		t.Errorf("got %d after the longest duration, want a login", got)
	}
	d.clock.pass(-3 * time.Minute)
	if got := reads(browser); got != http.StatusSeeOther {
		t.Errorf("got %d: a session that has ended goes on", got)
	}
	// The stream of approvals is no activity either. It does not end, so its body is not read.
	browser = d.as(t, "bob")
	d.clock.pass(3 * time.Minute)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.console+"/approvals/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := browser.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %+v, %v, want a stream", resp, err)
	}
	_ = resp.Body.Close()
	d.clock.pass(2 * time.Minute)
	if got := reads(browser); got != http.StatusSeeOther {
		t.Errorf("a stream: got %d, want the session ended", got)
	}
}

// Nothing is kept that looks like a secret or belongs to nobody, and a kept form is good for its person, its address and an hour.
func TestKeptForms(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	id := waits(t, d.agent(t, "triage-1"), comment("acme/api", ""))
	path := "/approvals/" + id + "/vote"
	alice := d.as(t, "alice")
	form := d.voteForm(t, alice, id, "approve")
	with := func(name, value string) url.Values {
		changed := url.Values{name: {value}}
		for k, v := range form {
			changed[k] = append(changed[k], v...)
		}
		return changed
	}
	_, you := d.ask(t, alice, "/you", nil)
	person := regexp.MustCompile(`data-person="([^"]+)"`).FindStringSubmatch(you)
	if person == nil {
		t.Fatalf("the page names nobody:\n%s", you)
	}
	bob := d.as(t, "bob")
	if status, page := d.ask(t, bob, path, with("page-person", person[1])); status != http.StatusConflict || !strings.Contains(page, "Form of another person") {
		t.Errorf("Bob sends a form of Alice's page: got %d\n%s", status, page)
	}
	d.clock.pass(5 * time.Minute)
	for name, tc := range map[string]struct {
		browser *http.Client
		form    url.Values
		says    string
	}{
		"a secret": {alice, with("note", "hvs.CAESIJ0123456789abcdefghij"), "looks like it contains a secret"},
		"nobody":   {d.program(t, ""), with("note", note), "could not be kept"},
	} {
		if status, page := d.ask(t, tc.browser, path, tc.form); status != http.StatusUnauthorized || keptIn(page) != "" || !strings.Contains(page, tc.says) {
			t.Errorf("%s: got %d, want nothing kept:\n%s", name, status, page)
		}
	}
	_, page := d.ask(t, alice, path, with("note", note))
	kept := keptIn(page)
	if kept == "" {
		t.Fatalf("nothing is kept:\n%s", page)
	}
	// A login that ends once more loses nothing either.
	if _, page = d.ask(t, alice, path, url.Values{"page-kept": {kept}}); keptIn(page) != kept {
		t.Errorf("the form is not kept again:\n%s", page)
	}
	d.logIn(t, alice, "alice")
	for name, tc := range map[string]struct{ path, kept string }{
		"changed":         {path, kept[:len(kept)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(kept, "A")] + "A"},
		"another address": {"/endings/task", kept},
		"a word":          {path, "kept"},
	} {
		browser := alice
		if tc.path != path {
			browser = d.as(t, "bob")
		}
		if status, page := d.ask(t, browser, tc.path, url.Values{"page-kept": {tc.kept}}); status != http.StatusUnprocessableEntity || !strings.Contains(page, "Form was not kept") {
			t.Errorf("%s: got %d:\n%s", name, status, page)
		}
	}
	d.clock.pass(time.Hour)
	d.logIn(t, alice, "alice")
	if status, page := d.ask(t, alice, path, url.Values{"page-kept": {kept}}); status != http.StatusUnprocessableEntity {
		t.Errorf("after an hour: got %d\n%s", status, page)
	}
}

// T11: without a session, only a short form is kept, and only some in a time. A long draft is kept in a session that is too old for
// a change.
func TestKeptFormsAreLimited(t *testing.T) {
	var still clock
	d := newDevWorld(t, func(o *testkit.Options) {
		passing := o.Now
		o.Now = func() time.Time { return passing().Add(time.Until(still.now())) }
	})
	bob := d.as(t, "bob")
	form := func(size int) url.Values { return url.Values{"reason": {strings.Repeat("a", size)}} }
	long := form(100_000)
	d.clock.pass(3*time.Minute + time.Second)
	for path, want := range map[string]int{"/catalogue/apply": http.StatusUnauthorized, "/session/keep": http.StatusOK} {
		status, page := d.ask(t, bob, path, long, "Sec-Fetch-Dest", "empty")
		if kept := keptIn(page) != "" || strings.HasPrefix(page, `{"kept":`); status != want || !kept {
			t.Errorf("%s: a long form in a session that is too old: got %d, want it kept", path, status)
		}
	}
	d.clock.pass(5 * time.Minute)
	for _, cookie := range cookiesOf(t, bob, d.console) {
		if cookie.Name != "brevet-session-person" { // a browser drops the others when the session ends
			bob.Jar.SetCookies(parsed(t, d.console), []*http.Cookie{{Name: cookie.Name, MaxAge: -1}})
		}
	}
	if _, page := d.ask(t, bob, "/catalogue/apply", form(60_000)); keptIn(page) == "" {
		t.Errorf("a short form is not kept after the end of the session:\n%s", page)
	}
	if status, page := d.ask(t, bob, "/catalogue/apply", long); status != http.StatusUnauthorized || keptIn(page) != "" {
		t.Errorf("a long form after the end of the session: got %d, want nothing kept", status)
	}
	if status, _ := d.ask(t, bob, "/session/keep", long); status != http.StatusUnprocessableEntity {
		t.Errorf("a long text after the end of the session: got %d, want nothing kept", status)
	}
	still.stop()
	keptAll := true
	for range personBurst + 1 {
		_, page := d.ask(t, bob, "/endings/task", form(10))
		keptAll = keptAll && keptIn(page) != ""
	}
	if keptAll {
		t.Error("without a session, any number of forms is kept")
	}
}

// devLogin logs in at the provider of brevet dev.
func (b *tab) devLogin(who string) {
	b.t.Helper()
	b.run(chromedp.Click(`button[name="username"][value="`+who+`"]`, chromedp.NodeVisible), chromedp.WaitVisible("main#main"))
}

// The session ends while somebody types a note. After the login the note is back in the same form, and the vote counts once.
func TestBrowserVoteSurvivesTheLogin(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	id := waits(t, d.agent(t, "triage-1"), comment("acme/api", ""))
	b, page := d.tab(t), "/approvals/"+id
	field := "form:has(" + approve + ") textarea"
	b.visit("/login?return=" + page)
	b.devLogin("alice")
	b.run(chromedp.SendKeys(field, note))
	d.clock.pass(5 * time.Minute)
	b.presses(approve, "Login required")
	b.has("sealed for you")
	b.check("/unsent")
	b.run(chromedp.Click("[data-login]"))
	b.devLogin("bob")
	b.run(chromedp.WaitVisible(approve))
	eventually(t, "what Alice has typed is dropped", func() bool { return get(b, chromedp.Evaluate[bool](`sessionStorage.length === 0`)) })
	if got := get(b, chromedp.Evaluate[string](`[...document.querySelectorAll("textarea")].map(e => e.value).join("")`)); got != "" {
		t.Errorf("Bob sees %q", got)
	}

	// Once more, with the same person.
	b.visit("/login?return=" + page)
	b.devLogin("alice")
	b.run(chromedp.SendKeys(field, note))
	d.clock.pass(3*time.Minute + time.Second)
	b.presses(approve, "Log in again to continue")
	b.run(chromedp.Click("[data-login]"))
	b.devLogin("alice")
	b.run(chromedp.WaitVisible("form:has(" + approve + ") .notice"))
	if got := get(b, chromedp.Evaluate[string](`document.querySelector('`+field+`').value`)); got != note {
		t.Errorf("got the note %q, want %q", got, note)
	}
	b.has("Nothing was sent", "no votes yet")
	b.check("/restored")
	b.presses(approve, "Approvals")
	b.has("Approved: the sandbox can redeem")
	b.visit(page)
	if got := strings.Count(b.page(), note); got != 1 {
		t.Errorf("got %d votes with the note, want one", got)
	}
	if got := get(b, chromedp.Evaluate[float64](`sessionStorage.length`)); got != 0 {
		t.Error("the text stays in the browser after it was sent")
	}
}

// I5: somebody at the browser of another person can have a form kept there for this person, who then sees its fields before anything
// is sent.
func TestPlantedFormIsShownToItsPerson(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	id := waits(t, d.agent(t, "triage-1"), comment("acme/api", ""))
	path := "/approvals/" + id + "/vote"
	browser := d.as(t, "alice")
	form := d.voteForm(t, browser, id, "approve")
	form.Set("note", `planted <img src=x onerror=alert(1)>`)
	form.Set("page-seen", "yes")
	form.Set("page-action", path)
	d.clock.pass(5 * time.Minute) // nobody is logged in
	status, answer := d.ask(t, browser, "/session/keep", form)
	var kept struct{ Kept string }
	if err := json.Unmarshal([]byte(answer), &kept); status != http.StatusOK || err != nil {
		t.Fatalf("got %d, %v and %s, want the form sealed", status, err, answer)
	}
	d.logIn(t, browser, "alice")
	status, page := d.ask(t, browser, path, url.Values{"page-kept": {kept.Kept}, "page-address": {"/approvals/" + id}})
	for _, part := range []string{"somebody else may have used this browser", path, "<dt>verdict</dt>", "planted &lt;img src=x onerror=alert(1)&gt;"} {
		if status != http.StatusOK || !strings.Contains(page, part) {
			t.Errorf("got %d without %q:\n%s", status, part, page)
		}
	}
	if _, page = d.ask(t, browser, "/approvals/"+id, nil); !strings.Contains(page, "no votes yet") {
		t.Errorf("a planted form voted:\n%s", page)
	}
}

// A draft that a login interrupted keeps its base: its text must not silently undo what another admin has changed since.
func TestBrowserDraftKeepsItsBaseOverTheLogin(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	b := d.tab(t)
	b.visit("/login?return=/catalogue/draft%3Ffile%3Dpolicy.cedar")
	b.devLogin("bob")
	b.run(chromedp.WaitVisible("textarea.mono"), chromedp.SendKeys("textarea.mono", "// mine "))
	was := get(b, chromedp.Evaluate[string](`document.querySelector('input[name="base"]').value`))
	_, err := d.Broker.ApplyCatalogue(t.Context(), broker.CatalogueOrder{
		Actor: "another", Base: was, Reason: "wider", Files: files(catalogue, wider),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`document.body.dataset.ends = new Date(Date.parse(document.body.dataset.now) + 40000).toISOString(); 0`), chromedp.WaitVisible("[data-renew]"), chromedp.Click("[data-renew]"))
	b.devLogin("bob")
	b.run(chromedp.WaitVisible("form .notice"))
	if got := get(b, chromedp.Evaluate[string](`document.querySelector("textarea.mono").value`)); strings.Contains(got, "// mine") {
		t.Errorf("the text is in a form with another base:\n%s", got)
	}
	b.presses("form:has(.notice) button", "Check the kept form")
	b.has("// mine", was)
	b.check("/kept")
	b.presses("main form button", "Effect of the draft")
	if got := get(b, chromedp.Evaluate[string](`document.querySelector('form[action="/catalogue/apply"] input[name="base"]').value`)); got != was {
		t.Errorf("got the base %s, want %s", got, was)
	}
	b.confirms(`form[action="/catalogue/apply"]`, "mine", "apply")
	b.presses(`form[action="/catalogue/apply"] button:not([disabled])`, "Catalogue has changed")
}

// A page warns before the session ends. Somebody can stay, or log in again and keep what they have typed.
func TestBrowserWarnsBeforeTheEnd(t *testing.T) {
	d := newDevWorld(t, func(*testkit.Options) {})
	b := d.tab(t)
	b.visit("/login?return=/endings/task%3Fspiffe_id%3Dspiffe%3A%2F%2Facme.test%2Fagents%2Fa%26task%3Dt-1")
	b.devLogin("bob")
	soon := func(name string) {
		t.Helper()
		b.run(chromedp.Evaluate[chromedp.Void](`document.body.dataset.` + name + ` = new Date(Date.parse(document.body.dataset.now) + 40000).toISOString(); 0`))
	}
	soon("idle")
	b.run(chromedp.WaitVisible("#session"))
	b.has("Your session ends in", "It ends without activity")
	b.check("/warning")
	if got := get(b, chromedp.Evaluate[string](`document.querySelector("#session-says[aria-live]").textContent`)); !strings.Contains(got, "Your session ends in less than 1 min 0 s") {
		t.Errorf("got %q said", got)
	}
	b.run(chromedp.Click("[data-stay]"), chromedp.WaitNotVisible("#session"))

	b.run(chromedp.SendKeys("#reason", "leaked a token"))
	soon("ends")
	b.run(chromedp.WaitVisible("[data-renew]"))
	b.has("It has reached its longest duration")
	b.run(chromedp.Click("[data-renew]"))
	b.devLogin("bob")
	b.run(chromedp.WaitVisible("main form .notice"))
	if got := get(b, chromedp.Evaluate[string](`document.getElementById("reason").value`)); got != "leaked a token" {
		t.Errorf("got the reason %q after the login", got)
	}

	// A script that learns that the session has ended says so, and leaves the page and its text alone.
	b.visit("/")
	if _, err := testkit.Connect(t, d.DB.AdminURL).Exec(t.Context(), `DELETE FROM sessions`); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`htmx.ajax("GET", "/", {source: "#dashboard", target: "#dashboard"}); 0`), chromedp.WaitVisible("#session"))
	b.has("Your session has ended", "Dashboard")
}
