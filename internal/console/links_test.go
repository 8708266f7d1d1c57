package console_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	underA, underB = "spiffe://acme.test/agents/a", "spiffe://acme.test/agents/b"
	sandboxA       = underA + "/1"
	sandboxB       = underB + "/1"
)

// holders are people by the groups that they are in, each of which has a role: everywhere, or below one path only.
var holders = map[string][]string{
	"nobody": nil, "approver": {"approver"}, "auditor": {"auditor"}, "admin": {"admin"}, "approver-auditor": {"approver", "auditor"},
	"approver-admin": {"approver", "admin"}, "auditor-admin": {"auditor", "admin"}, "all": {"approver", "auditor", "admin"},
	"approver-a": {"approver-a"}, "auditor-a": {"auditor-a"}, "auditor-b": {"auditor-b"}, "admin-a": {"admin-a"}, "both-a": {"auditor-a", "admin-a"},
	"auditor-a-admin-b": {"auditor-a", "admin-b"}, "auditor-admin-a": {"auditor", "admin-a"}, "auditor-a-admin": {"auditor-a", "admin"},
	"domain": {"auditor-domain", "admin-domain"}, "approver-admin-a": {"approver-a", "admin-a"},
}

func linkedWorld(t *testing.T) *devWorld {
	t.Helper()
	d := newDevWorld(t, func(o *testkit.Options) {
		o.People, o.SecondAdmin, o.Sessions = nil, true, func(*console.Config) {}
		for name, groups := range holders {
			o.People = append(o.People, devstack.DevPerson{Username: name, Name: name, Groups: append([]string{"oncall"}, groups...)})
		}
		o.Rules = nil
		for _, role := range []people.Role{people.RoleApprover, people.RoleAuditor, people.RoleAdmin} {
			for suffix, within := range map[string][]string{"": nil, "-a": {underA}, "-b": {underB}, "-domain": {"spiffe://acme.test"}} {
				o.Rules = append(o.Rules, people.Rule{Role: role, Group: string(role) + suffix, Within: within})
			}
		}
	})
	for _, id := range []string{sandboxA, sandboxB} {
		held := d.reads(t, id, "t-1")
		other := map[string]string{sandboxA: sandboxB, sandboxB: sandboxA}[id]
		d.exchange(t, id, held.Secret.Reveal(), other)
		d.reads(t, id, "t-2")
		waits(t, d.Client(t, id), comment("acme/api", "the milestone is done"))
		if _, err := d.Client(t, id).Request(t.Context(), client.Ask{Scope: "github.issues.close", Task: "t-1"}); err == nil {
			t.Fatal("got a credential of a scope that does not exist")
		}
		if err := d.Client(t, id).Withdraw(t.Context(), waits(t, d.Client(t, id), comment("acme/web", ""))); err != nil {
			t.Fatal(err)
		}
		quarantined := strings.TrimSuffix(id, "1") + "bad"
		d.reads(t, quarantined, "t-9")
		if _, err := d.Broker.Quarantine(t.Context(), broker.QuarantineOrder{Actor: broker.PersonActor(d.Somebody(t, "all")), SPIFFEID: quarantined, Reach: broker.ReachOf([]string{"spiffe://acme.test"}), Reason: "leaked a token"}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := d.Broker.CatalogueHead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proposed := d.apply(t, "somebody", "less waiting", files(catalogue, wider))
	if _, err := d.Broker.DecideCatalogue(t.Context(), broker.CatalogueVerdict{Actor: "another", Digest: proposed.Digest, Base: first.Digest, Verdict: "approve", Reason: "fine"}); err != nil {
		t.Fatal(err)
	}
	d.apply(t, "somebody", "more waiting", files(catalogue, policies))
	return d
}

// reads issues a credential to a sandbox.
func (d *devWorld) reads(t *testing.T, id, task string) *client.Token {
	t.Helper()
	defer d.clock.by.Store(d.clock.by.Swap(0)) // Vault has the system's clock
	got, err := d.Client(t, id).Request(t.Context(), client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: task})
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v, want a token", got, err)
	}
	return got.Token
}

// exchange gives a token of one sandbox to another one (RFC 8693).
func (d *devWorld) exchange(t *testing.T, holder, raw, to string) {
	t.Helper()
	actor, err := d.Acme.JWTSVID(spiffeid.RequireFromString(to), attest.ActorAudience(testkit.Audience))
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {raw}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"actor_token": {actor}, "actor_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+"/oauth2/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if status, body := answer(t, d.HTTP(t, d.X509(t, holder)), req); status != http.StatusOK {
		t.Fatalf("exchanging a token: got %d %s", status, body)
	}
}

// Nobody is led to a page that their roles do not open: every link and every form on every page that a person can reach from the
// dashboard opens, and nothing is recorded as a refused attempt.
func TestLinksOpen(t *testing.T) {
	d := linkedWorld(t)
	seen := map[string]bool{}
	for name := range holders {
		browser := d.as(t, name)
		c := &crawl{d: d, t: t, browser: browser, who: name, seen: map[string]bool{}, alike: map[string]int{}}
		c.follow("/", "the address bar")
		c.act()
		for path := range c.seen {
			seen[strings.Trim(regexp.MustCompile(`^/[a-z]+(/[a-z]+)?`).FindString(path), "/")] = true
		}
	}
	for _, page := range []string{
		"", "you", "approvals", "live", "history", "issuances", "tasks", "whose", "ledger", "system", "endings/revoke", "endings/quarantine", "endings/task", "endings/lift",
		"endings/receipt", "catalogue", "catalogue/scopes", "catalogue/versions", "catalogue/diff", "catalogue/explain", "catalogue/draft", "catalogue/proposals", "catalogue/replay", "reference",
	} {
		if !seen[page] {
			t.Errorf("nobody came to a page /%s", page)
		}
	}
	var refused int
	err := testkit.Connect(t, d.DB.AdminURL).QueryRow(t.Context(), `SELECT count(*) FROM entries WHERE kind = 'call.refused' AND convert_from(body, 'UTF8') LIKE '%console%'`).Scan(&refused)
	if err != nil || refused != 0 {
		t.Errorf("got %d refused attempts, %v, want none", refused, err)
	}
}

// crawl follows all links of one person.
type crawl struct {
	d       *devWorld
	t       *testing.T
	browser *http.Client
	who     string
	seen    map[string]bool
	alike   map[string]int // how many links alike have been followed
}

// enoughAlike is how many links are followed that lead from one page to another and differ only in what varies.
const enoughAlike = 6

// varies matches what differs between links that are alike: an ID, a digest, a time, a number, a value in the query.
var varies = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{40,}|[0-9]+|=[^&]*`)

var (
	linkTag   = regexp.MustCompile(`<a [^>]*href="(/[^"#]*)`)
	formTag   = regexp.MustCompile(`(?s)<form [^>]*?method="(get|post)" action="(/[^"]*)"(.*?)</form>`)
	inputTag  = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
	buttonTag = regexp.MustCompile(`<button[^>]* name="([^"]+)" value="([^"]*)"`)
)

// follow opens a page, and all pages to which it leads.
func (c *crawl) follow(path, from string) {
	c.t.Helper()
	if c.seen[path] || strings.HasPrefix(path, "/static/") || strings.HasPrefix(path, "/login") {
		return
	}
	start, _, _ := strings.Cut(from, "?")
	link := varies.ReplaceAllString(start+" "+path, "0")
	if c.alike[link]++; c.alike[link] > enoughAlike {
		return
	}
	c.seen[path] = true
	c.d.clock.pass(100 * time.Millisecond) // a person's rate limit
	status, page := c.d.ask(c.t, c.browser, path, nil)
	if status != http.StatusOK {
		c.t.Errorf("%s comes from %s to %s: got %d", c.who, from, path, status)
		return
	}
	c.links(page, path)
}

func (c *crawl) links(page, from string) {
	c.t.Helper()
	for _, link := range linkTag.FindAllStringSubmatch(page, -1) {
		c.follow(html.UnescapeString(link[1]), from)
	}
	for _, form := range formTag.FindAllStringSubmatch(page, -1) {
		method, action, inside := form[1], html.UnescapeString(form[2]), form[3]
		fields := url.Values{}
		for _, input := range append(inputTag.FindAllStringSubmatch(inside, -1), buttonTag.FindAllStringSubmatch(inside, -1)...) {
			fields.Add(input[1], html.UnescapeString(input[2]))
		}
		switch {
		case method == "get":
			c.follow(action+"?"+fields.Encode(), from)
		case action != "/logout" && !strings.Contains(action, "passkeys"):
			c.send(action, fields, from)
		}
	}
}

// send sends a form without what a person has to type. So nothing changes, but a form that is not for its reader is refused.
func (c *crawl) send(action string, fields url.Values, from string) {
	c.t.Helper()
	key := "POST " + action
	if c.seen[key] || strings.HasSuffix(action, "/vote") {
		return
	}
	c.seen[key] = true
	if strings.HasSuffix(action, "replay") {
		c.seen["/catalogue/replay"], fields = true, url.Values{"since": {"24h"}, "base": fields["base"], "gone": fields["gone"], "name": fields["name"], "text": {}}
	}
	c.d.clock.pass(100 * time.Millisecond)
	status, page := c.d.ask(c.t, c.browser, action, fields)
	if !slices.Contains([]int{http.StatusOK, http.StatusUnprocessableEntity, http.StatusConflict}, status) {
		c.t.Errorf("%s sends the form %s of %s: got %d\n%s", c.who, action, from, status, page)
	}
	c.links(page, action)
}

// act does what changes something, as far as the roles go, and follows the links of what comes then.
func (c *crawl) act() {
	c.t.Helper()
	under := underA
	if strings.HasSuffix(c.who, "-b") {
		under = underB
	}
	for _, order := range []struct{ name, target, confirmation string }{
		{"revoke", "spiffe_id_prefix=" + under, under},
		{"task", "spiffe_id=" + under + "/1&task=t-1", "t-1"},
		{"quarantine", "spiffe_id=" + under + "/x", under + "/x"},
		{"lift", "spiffe_id=" + under + "/x", under + "/x"},
	} {
		path := "/endings/" + order.name
		if !c.seen[path] && !c.seen["/endings/revoke"] {
			continue // not an admin
		}
		fields, err := url.ParseQuery(order.target)
		if err != nil {
			c.t.Fatal(err)
		}
		fields.Set("confirmation", order.confirmation)
		fields.Set("reason", "try it")
		c.d.reads(c.t, under+"/1", "t-"+c.who) // so that there is something to revoke
		c.d.clock.pass(time.Second)
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.d.console+path, strings.NewReader(fields.Encode()))
		if err != nil {
			c.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := c.browser.Do(req)
		if err != nil {
			c.t.Fatal(err)
		}
		_ = resp.Body.Close()
		to, err := resp.Location()
		if err != nil {
			c.t.Fatalf("%s: %s: got %d", c.who, path, resp.StatusCode)
		}
		delete(c.seen, to.Path)
		c.follow(to.Path, path)
	}
	if !c.seen["/catalogue/draft"] {
		return
	}
	head, _, err := c.d.Broker.CatalogueInForce(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	draft := url.Values{"base": {head.Digest}, "name": {"policy.cedar"}, "text": {policies + "\n"}}
	status, page := c.d.ask(c.t, c.browser, "/catalogue/draft", draft)
	if status != http.StatusOK || !strings.Contains(page, "The draft is valid") {
		c.t.Errorf("%s: got %d for a draft:\n%s", c.who, status, page)
	}
	c.seen["POST /catalogue/apply"] = false
	c.links(page, "a checked draft")
	if may := slices.Contains(holders[c.who], "auditor") && slices.Contains(holders[c.who], "admin"); strings.Contains(page, "/catalogue/replay") != may {
		c.t.Errorf("%s: the page of a draft offers a replay: want %t", c.who, may)
	}
}
