package neighbours_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	loudOnes     = "spiffe://acme.test/loud/" // begins the SPIFFE ID of each loud caller
	loudSandbox  = loudOnes + "sandbox"
	loudAuditor  = loudOnes + "auditor"
	nextDoor     = "spiffe://acme.test/agents/next-door"
	elsewhere    = "spiffe://other.test/agents/elsewhere"
	adminOfBoth  = "spiffe://other.test/ops/admin"
	auditsBoth   = "spiffe://other.test/ops/auditor"
	approvalsOf  = "spiffe://other.test/agents/asking"
	revokes      = "spiffe://other.test/agents/revoked"
	quarantines  = "spiffe://other.test/agents/suspect"
	clockAllowed = "clock.read"
)

var catalogue = []scopes.File{
	{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: clock.read
    title: Read the clock
    authority: read
    resource: clock:utc
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://clock.test, status_list: true}
  - name: clock.forbidden
    title: Stop the clock
    authority: write
    resource: clock:utc
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://clock.test}
  - name: clock.limited
    title: Read the clock rarely
    authority: read
    resource: clock:utc
    ttl: {default: 1m, max: 5m}
    limits: [{count: 1, per: sandbox, window: 1h}]
    credential: {kind: jwt, audience: https://clock.test}
  - name: clock.set
    title: Set the clock
    authority: write
    resource: clock:utc
    ttl: {default: 1m, max: 5m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://clock.test}
`)},
	{Name: "policy.cedar", Data: []byte(`@id("reads") permit (principal, action in [Action::"clock.read", Action::"clock.limited"], resource);
@id("sets") permit (principal, action == Action::"clock.set", resource) when { context.approved };
`)},
}

// newWorld starts two replicas with the budget of attempts that a deployment has by default.
func newWorld(t *testing.T) *world {
	t.Helper()
	first := testkit.NewStack(t, testkit.Options{
		Catalogue: catalogue, Attempts: broker.AttemptBudget{SandboxBurst: 50, SandboxPerMinute: 6, DomainBurst: 500, DomainPerMinute: 60},
		CatalogueAdmins: []string{adminOfBoth}, CatalogueAuditors: []string{auditsBoth, loudAuditor},
		People: []devstack.DevPerson{
			{Username: "carol", Name: "Carol", Groups: []string{"oncall"}}, {Username: "dana", Name: "Dana", Groups: []string{"auditors"}},
		},
		Rules: []people.Rule{
			{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://other.test"}},
			{Role: people.RoleAuditor, Group: "auditors", Within: []string{"spiffe://acme.test"}},
		},
	})
	return &world{s: [2]*testkit.Stack{first, first.Replica(t)}, conn: testkit.Connect(t, first.DB.AdminURL)}
}

func code(err error) openapi.ProblemCode {
	if p, ok := errors.AsType[*client.Problem](err); ok {
		return p.Code
	}
	return ""
}

// reads requests a credential that policy allows.
func (w *world) reads(ctx context.Context, c *client.Client, task string) (*client.Token, error) {
	got, err := c.Request(ctx, client.Ask{Scope: clockAllowed, Task: task})
	if err == nil && got.Token == nil {
		err = errors.New("got no credential")
	}
	return got.Token, err
}

// victims are served by the replica that the loud caller uses too.
func (w *world) victims(t *testing.T) []victim {
	t.Helper()
	s := w.s[0]
	same, other, admin, auditor := s.Client(t, nextDoor), s.Client(t, elsewhere), s.Client(t, adminOfBoth), s.Client(t, auditsBoth)
	revoked := s.Client(t, revokes)
	var asking []*client.Client // many, because one sandbox may have people decide on sixty requests an hour
	for n := range 60 {
		asking = append(asking, s.Client(t, fmt.Sprintf("%s-%d", approvalsOf, n)))
	}
	carol := s.Person(t, "carol")
	var shown openapi.ApprovalCase // what Carol votes on next
	return []victim{
		{name: "another sandbox", call: func(ctx context.Context) error { _, err := w.reads(ctx, same, "t"); return err }},
		{name: "another trust domain", call: func(ctx context.Context) error { _, err := w.reads(ctx, other, "t"); return err }},
		{name: "an admin who quarantines", call: func(ctx context.Context) error {
			if _, err := admin.Quarantine(ctx, quarantines, "a test"); err != nil {
				return err
			}
			return admin.Unquarantine(ctx, quarantines, "a test")
		}},
		{name: "an admin who revokes", call: func(ctx context.Context) error {
			held, err := w.reads(ctx, revoked, "t")
			if err == nil {
				_, err = admin.Revoke(ctx, client.Selection{ID: held.ID}, "a test")
			}
			return err
		}},
		{name: "an auditor who searches", call: func(ctx context.Context) error {
			_, err := auditor.Page(ctx, client.Filter{TrustDomain: "other.test", Scope: clockAllowed})
			return err
		}},
		{name: "a person who votes", rest: 200 * time.Millisecond, before: func(ctx context.Context) error {
			got, err := asking[w.next.Add(1)%int64(len(asking))].Request(ctx, client.Ask{Scope: "clock.set", Task: w.name("task")})
			if err != nil || got.Pending == nil {
				return fmt.Errorf("got %+v, %w, want it pending", got, err)
			}
			shown, err = carol.Approval(ctx, got.Pending.ID)
			return err
		}, call: func(ctx context.Context) error {
			_, err := carol.Vote(ctx, shown, openapi.VerdictDeny, "no")
			return err
		}},
	}
}

// site returns what the loud callers need: their identities, a credential, and a session of Dana in the console.
func (w *world) site(t *testing.T) site {
	t.Helper()
	s := w.s[0]
	held, err := w.reads(t.Context(), s.Client(t, loudSandbox), "held")
	if err != nil {
		t.Fatal(err)
	}
	out := site{URL: s.URL, Pages: s.Console(t), Held: held.ID, Token: held.Secret.Reveal()}
	if out.Authorities, err = s.Acme.Bundle().X509Bundle().Marshal(); err != nil {
		t.Fatal(err)
	}
	for id, into := range map[string]*identity{loudSandbox: &out.Sandbox, loudAuditor: &out.Auditor} {
		if into.Cert, into.Key, err = s.X509(t, id).Marshal(); err != nil {
			t.Fatal(err)
		}
	}
	own := selfSigned(t)
	out.SelfSigned = own.Certificate[0]
	if out.SelfSignedKey, err = x509.MarshalPKCS8PrivateKey(own.PrivateKey); err != nil {
		t.Fatal(err)
	}
	pages, err := url.Parse(out.Pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range logIn(t, out.Pages, "dana").Jar.Cookies(pages) {
		out.Cookies = append(out.Cookies, cookie.Name+"="+cookie.Value)
	}
	return out
}

// logIn returns a browser that is logged in to the console.
func logIn(t *testing.T, pages, who string) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := plain(insecure{jar})
	browser.CheckRedirect = nil
	resp, err := browser.Get(pages + "/login")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	asked := resp.Request.URL
	fields := asked.Query()
	fields.Set("username", who)
	resp, err = browser.PostForm(asked.String(), fields)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || host(resp.Request.URL.String()) != host(pages) {
		t.Fatalf("logging in got %d at %s, %v:\n%s", resp.StatusCode, resp.Request.URL, err, text)
	}
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

// plain returns an HTTP client that keeps its connections and follows no redirect.
func plain(jar http.CookieJar) *http.Client {
	return &http.Client{
		Jar: jar, Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// selfSigned returns a certificate that no bundle has an authority for.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key := testkit.SelfSigned(t)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}
