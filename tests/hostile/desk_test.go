package hostile_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/chromedp/chromedp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// desk is a deployment with every surface that people read: a command line on which alice is logged in, a workload of an auditor,
// webhooks, and the console in a browser in which alice is logged in.
type desk struct {
	*world

	oidc         *testkit.OIDC
	program      string
	env, auditor []string // of alice, and of an auditor's workload
	idToken      string   // of alice
	hooks        *receiver
	chat         chan string
	told, said   map[string]string // by request ID
	console      string
	browser      context.Context //nolint:containedctx // of chromedp, for which it is a tab
}

// surface is a place that shows a sandbox's words, or must not show them.
type surface struct {
	name  string
	check func(t *testing.T, d *desk, s sight)
}

var surfaces = []surface{
	{"the API", overAPI},
	{"a terminal", onScreen},
	{"a list on a terminal", listed},
	{"CSV", inCSV},
	{"lines of JSON", inLines},
	{"the log", inLog},
	{"a webhook", inWebhook},
	{"a chat", inChat},
	{"the page", onPage},
	{"the list of the console", onInbox},
}

// openDesk opens the desk for the first row that needs it. The desk stays open until the last row ends.
func (w *world) openDesk(t *testing.T) *desk {
	t.Helper()
	w.deskOnce.Do(func() { w.desk = newDesk(w.root) })
	if w.desk == nil {
		t.Fatal("there is no desk: the first row that needed it says why")
	}
	return w.desk
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	o := staffed
	o.People, o.OIDC = nil, testkit.Provider(t)
	d := &desk{world: newWorld(t, o), oidc: o.OIDC, chat: make(chan string, 1000), hooks: newReceiver(t), told: map[string]string{}, said: map[string]string{}}
	d.program = filepath.Join(t.TempDir(), "brevet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, "../../cmd/brevet").CombinedOutput(); err != nil {
		t.Fatalf("building brevet: %v\n%s", err, out)
	}
	d.logIn(t, o.OIDC)
	d.idToken = o.OIDC.IDToken(t, "alice")
	d.deliver(t, d.hooks.spec("hook"), d.chatSpec(t))
	d.console = d.s[1].Console(t)
	d.openBrowser(t)
	return d
}

// logIn logs alice in on the command line, and gives the auditor's workload a socket.
func (d *desk) logIn(t *testing.T, oidc *testkit.OIDC) {
	t.Helper()
	home := t.TempDir()
	var authorities bytes.Buffer
	for _, ca := range d.s[0].Acme.Bundle().X509Authorities() {
		_ = pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	}
	caFile := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(caFile, authorities.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	d.env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "BREVET_SERVER="+d.s[0].URL, "BREVET_SERVER_ID=spiffe://acme.test/brevet",
		"BREVET_OIDC_ISSUER="+oidc.Issuer, "BREVET_OIDC_CLIENT_ID="+oidc.ClientID, "TERM=xterm-256color")
	endpoint, err := d.s[0].Acme.ServeWorkload(filepath.Join(home, "a.sock"), spiffeid.RequireFromString(inspector))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	d.auditor = append(d.env[:len(d.env):len(d.env)], "SPIFFE_ENDPOINT_SOCKET="+endpoint.Addr())
	d.env = append(d.env[:len(d.env):len(d.env)], "BREVET_CA_FILE="+caFile)

	login := exec.CommandContext(t.Context(), d.program, "login", "-o", "json")
	login.Env = d.env
	output, err := login.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := login.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	var device struct {
		Address string `json:"verification_uri_complete"`
	}
	if json.Unmarshal(line, &device) != nil || device.Address == "" {
		t.Fatalf("got %q, %v, want where to log in", line, err)
	}
	oidc.Approve(t, device.Address, "alice")
	if err := login.Wait(); err != nil {
		t.Fatalf("logging in: %v", err)
	}
}

func (d *desk) run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), d.program, args...)
	cmd.Env = env
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, &said)
	}
	return string(out)
}

// overAPI reads the request as a program does: the reason is the value of one member.
func overAPI(t *testing.T, d *desk, s sight) {
	got := call{method: "GET", target: "/v1/approvals/" + s.id, auth: "Bearer " + d.idToken}.send(t, d.next())
	var shown struct {
		Status, Reason, Canonical string
		VotesCast                 int `json:"votes_cast"`
	}
	if err := json.Unmarshal([]byte(got.text), &shown); err != nil || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %v %s", err, got.text)
	}
	if shown.Reason != s.reason || shown.Status != "pending" || shown.VotesCast != 0 || strings.Contains(shown.Canonical, "reason") {
		t.Errorf("got %+v, want the words, and facts without them", shown)
	}
	if strings.ContainsAny(got.text, "<>\x1b\x07\r\n\t") {
		t.Errorf("got %q, want it escaped", got.text)
	}
}

// onScreen shows one request on a terminal.
func onScreen(t *testing.T, d *desk, s sight) {
	cmd := exec.CommandContext(t.Context(), d.program, "approvals", "show", s.id)
	cmd.Env = d.env
	code, screen := onTerminal(t, cmd)
	if code != 0 {
		t.Fatalf("got exit code %d and %q", code, screen)
	}
	showsAll(t, screen, "\r\n")
	screen = strings.ReplaceAll(screen, "\r\n", "\n")
	facts, said, found := strings.Cut(screen, "\nreason given by the sandbox")
	if !found || !strings.Contains(facts, s.id) || !strings.Contains(facts, "git:repo/acme/api") || !strings.Contains(facts, "\nhash ") {
		t.Fatalf("got %q, want the facts before the words", screen)
	}
	heading, lines, _ := strings.Cut(strings.TrimSuffix(said, "\n"), "\n")
	if !strings.Contains(heading, "unverified") || strings.Contains(heading, "mixes alphabets") != mixes(s.reason) {
		t.Errorf("got the heading %q", heading)
	}
	for line := range strings.SplitSeq(lines, "\n") {
		if !strings.HasPrefix(line, "  | ") {
			t.Errorf("the line %q of the words is not behind the bar", line)
		}
	}
}

// listed lists all pending requests on a terminal.
func listed(t *testing.T, d *desk, s sight) {
	cmd := exec.CommandContext(t.Context(), d.program, "approvals", "list")
	cmd.Env = d.env
	_, screen := onTerminal(t, cmd)
	showsAll(t, screen, "\r\n")
	if lines := strings.Count(screen, "\n"); !strings.Contains(screen, s.id) || lines != 2 {
		t.Errorf("got %d lines: %q, want the request on the second of two", lines, screen)
	}
}

// inCSV reads the entry as a spreadsheet does.
func inCSV(t *testing.T, d *desk, s sight) {
	text := d.run(t, d.auditor, "audit", "export", "--format", "csv", "--from", strconv.FormatInt(s.index, 10))
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) < 2 || rows[1][0] != strconv.FormatInt(s.index, 10) {
		t.Fatalf("got %q, %v, want the entry below the header", text, err)
	}
	for i, name := range rows[0] {
		cell := rows[1][i]
		if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n|%") || strings.HasPrefix(strings.TrimLeft(cell, " \"\ufeff"), "=") {
			t.Errorf("%s begins like a formula: %q", name, cell)
		}
		// encoding/csv reads \r\n in a cell as \n.
		if want := strings.ReplaceAll(s.reason, "\r\n", "\n"); name == "reason" && strings.TrimPrefix(cell, "'") != strings.TrimPrefix(want, "'") {
			t.Errorf("got the reason %q, want %q", cell, want)
		}
	}
}

// inLines reads the entry as programs do that parse one event per line.
func inLines(t *testing.T, d *desk, s sight) {
	for _, format := range []string{"ndjson", "ocsf"} {
		text := d.run(t, d.auditor, "audit", "export", "--format", format, "--from", strconv.FormatInt(s.index, 10))
		if strings.ContainsAny(text, "\x1b\r\t") {
			t.Errorf("%s: got %q", format, text)
		}
		for line := range strings.Lines(text) {
			var event map[string]any
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				t.Errorf("%s: %v of the line %q", format, err, line)
			}
		}
	}
}

// inLog checks that the log of the replicas holds none of a sandbox's words.
func inLog(t *testing.T, d *desk, s sight) {
	for line := range strings.Lines(d.s[0].Log.String()) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "forged") || strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\x1b\r") {
			t.Errorf("got the line %q", line)
		}
		if word := longest(s.reason); strings.Contains(line, word) {
			t.Errorf("the log says %q: %q", word, line)
		}
	}
}

// longest returns the longest word of a text, which is the easiest to find.
func longest(text string) (word string) {
	for w := range strings.FieldsSeq(text) {
		if len(w) > len(word) {
			word = w
		}
	}
	return word
}

func (d *desk) chatSpec(t *testing.T) webhook.Spec {
	t.Helper()
	chat := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.chat <- string(body)
	}))
	t.Cleanup(chat.Close)
	spec := d.hooks.spec("chat")
	spec.Format, spec.Secret = webhook.FormatSlack, secret.Text{}
	spec.Target = safehttp.Target{URL: secret.New(chat.URL), Roots: spec.Roots.Clone(), AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	spec.Roots.AddCert(chat.Certificate())
	return spec
}

// inWebhook waits for the webhook and checks its body.
func inWebhook(t *testing.T, d *desk, s sight) {
	eventually(t, "the webhook", func() bool {
		for len(d.hooks.took) > 0 {
			got := string((<-d.hooks.took).body)
			d.told[requestOf(got)] = got
		}
		return d.told[s.id] != ""
	})
	wordless(t, d.told[s.id], s)
}

// inChat waits for the chat message and checks it.
func inChat(t *testing.T, d *desk, s sight) {
	eventually(t, "the message", func() bool {
		for len(d.chat) > 0 {
			if got := <-d.chat; strings.Contains(got, s.id) {
				d.said[s.id] = got
			}
		}
		return d.said[s.id] != ""
	})
	wordless(t, d.said[s.id], s)
	if message := d.said[s.id]; strings.Contains(message, "<!") || strings.Contains(message, `\u003c!`) || strings.Contains(message, "<@") {
		t.Errorf("it mentions somebody: %s", message)
	}
}

func requestOf(body string) string {
	var told struct{ Data struct{ ID string } }
	_ = json.Unmarshal([]byte(body), &told)
	return told.Data.ID
}

// wordless checks that a message holds the facts and none of the sandbox's words.
func wordless(t *testing.T, body string, s sight) {
	t.Helper()
	encoded, _ := json.Marshal(longest(s.reason))
	if strings.Contains(body, strings.Trim(string(encoded), `"`)) || strings.Contains(body, "evil.example") || strings.Contains(body, `"reason"`) {
		t.Errorf("it has the sandbox's words: %s", body)
	}
	if !strings.Contains(body, "git:repo/acme/api") {
		t.Errorf("it lacks the facts: %s", body)
	}
}

// openBrowser logs alice in to the console.
func (d *desk) openBrowser(t *testing.T) {
	t.Helper()
	d.browser = testkit.Tab(t, testkit.Browser(t), chromedp.WithNewBrowserContext())
	d.steps(t, chromedp.Navigate(d.console+"/login?return=/you"),
		chromedp.WaitVisible(`input[name="login"]`), chromedp.SendKeys(`input[name="login"]`, "alice"), chromedp.SendKeys(`input[name="password"]`, "any"),
		chromedp.Click(`button[type="submit"]`), chromedp.WaitNotPresent(`input[name="login"]`), chromedp.WaitVisible(`button[type="submit"], main#main`))
	if look[bool](t, d, `!document.querySelector("main#main")`) {
		d.steps(t, chromedp.Click(`button[type="submit"]`))
	}
	d.steps(t, chromedp.WaitVisible("main#main"))
}

func (d *desk) steps(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for i, step := range steps {
		ctx, cancel := context.WithTimeout(d.browser, patience)
		_, err := chromedp.Run(ctx, step)
		cancel()
		if err != nil {
			ctx, cancel := context.WithTimeout(d.browser, patience/4)
			defer cancel()
			page, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
			t.Fatalf("step %d: %v at %s", i+1, err, page)
		}
	}
}

// look runs a script on the page and returns its result.
func look[T any](t *testing.T, d *desk, script string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(d.browser, patience)
	defer cancel()
	found, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("looking at the page: %v", err)
	}
	return found
}

// onPage opens one request in the console.
func onPage(t *testing.T, d *desk, s sight) {
	d.steps(t, chromedp.Navigate(d.console+"/approvals/"+s.id), chromedp.WaitVisible("main#main"))
	d.inert(t, "", s)
}

// onInbox opens the list of pending requests in the console.
func onInbox(t *testing.T, d *desk, s sight) {
	d.steps(t, chromedp.Navigate(d.console+"/approvals"), chromedp.WaitVisible("main#main"))
	d.inert(t, "#ask-"+s.id+" ", s)
}

// inert checks that a page shows the facts first, and a sandbox's words as one plain text in a separate pane.
func (d *desk) inert(t *testing.T, within string, s sight) {
	t.Helper()
	pane := within + "figure.words"
	if look[bool](t, d, `window.pwned === 1 || !!document.querySelector("a[href*=evil], form[action*=evil], img[src*=evil], img[src=x], svg[onload], [onerror]")`) {
		t.Error("the words are markup")
	}
	inside := look[string](t, d, fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.tagName).join(" ")`, pane+" pre *"))
	if strings.Trim(strings.ReplaceAll(inside, "MARK", ""), " ") != "" {
		t.Errorf("got the elements %s among the words", inside)
	}
	said := look[string](t, d, fmt.Sprintf(`document.querySelector(%q).textContent`, pane+" pre"))
	showsAll(t, said, "\n")
	heading := look[string](t, d, fmt.Sprintf(`document.querySelector(%q).textContent`, pane+" figcaption"))
	if !strings.Contains(heading, "unverified") || strings.Contains(heading, "mixes alphabets") != mixes(s.reason) {
		t.Errorf("got the heading %q", heading)
	}
	first := look[bool](t, d, fmt.Sprintf(`(() => { const facts = document.querySelector(%q), words = document.querySelector(%q);
		return !words.contains(facts) && !!(facts.compareDocumentPosition(words) & Node.DOCUMENT_POSITION_FOLLOWING); })()`, within+"dl.facts", pane))
	if !first {
		t.Error("the words come before the facts")
	}
	if text := look[string](t, d, fmt.Sprintf(`document.querySelector(%q).textContent`, within+"dl.facts")); !strings.Contains(text, "acme/api") {
		t.Errorf("got the facts %q", text)
	}
}
