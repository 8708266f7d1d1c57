package neighbours_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
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
	loudSandbox  = "spiffe://acme.test/agents/loud"
	nextDoor     = "spiffe://acme.test/agents/next-door"
	elsewhere    = "spiffe://other.test/agents/elsewhere"
	adminOfBoth  = "spiffe://other.test/ops/admin"
	auditsBoth   = "spiffe://other.test/ops/auditor"
	approvalsOf  = "spiffe://other.test/agents/asking"
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
		CatalogueAdmins: []string{adminOfBoth}, CatalogueAuditors: []string{auditsBoth},
		People: []devstack.DevPerson{{Username: "carol", Name: "Carol", Groups: []string{"oncall"}}},
		Rules:  []people.Rule{{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://other.test"}}},
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
	var asking []*client.Client // many, because one sandbox may have people decide on sixty requests an hour
	for n := range 60 {
		asking = append(asking, s.Client(t, fmt.Sprintf("%s-%d", approvalsOf, n)))
	}
	carol := s.Person(t, "carol")
	return []victim{
		{name: "another sandbox", call: func(ctx context.Context) error { _, err := w.reads(ctx, same, "t"); return err }},
		{name: "another trust domain", call: func(ctx context.Context) error { _, err := w.reads(ctx, other, "t"); return err }},
		{name: "an admin who quarantines", call: func(ctx context.Context) error {
			if _, err := admin.Quarantine(ctx, quarantines, "a test"); err != nil {
				return err
			}
			return admin.Unquarantine(ctx, quarantines, "a test")
		}},
		{name: "an auditor who searches", call: func(ctx context.Context) error {
			_, err := auditor.Page(ctx, client.Filter{TrustDomain: "other.test", Scope: clockAllowed})
			return err
		}},
		{name: "a person who votes", rest: 200 * time.Millisecond, call: func(ctx context.Context) error {
			got, err := asking[w.next.Add(1)%int64(len(asking))].Request(ctx, client.Ask{Scope: "clock.set", Task: w.name("task")})
			if err != nil || got.Pending == nil {
				return fmt.Errorf("got %+v, %w, want it pending", got, err)
			}
			shown, err := carol.Approval(ctx, got.Pending.ID)
			if err == nil {
				_, err = carol.Vote(ctx, shown, openapi.VerdictDeny, "no")
			}
			return err
		}},
	}
}

// louds are the callers that are loud. All but the handshakes authenticate as one sandbox of acme.test.
func (w *world) louds(t *testing.T) []loud {
	t.Helper()
	s := w.s[0]
	c, raw := s.Client(t, loudSandbox), s.HTTP(t, s.X509(t, loudSandbox))
	held, err := w.reads(t.Context(), c, "held")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(scope string) func(context.Context, int, int) {
		return func(ctx context.Context, _, _ int) { _, _ = c.Request(ctx, client.Ask{Scope: scope, Task: "t"}) }
	}
	get := func(path string) func(context.Context, int, int) {
		return func(ctx context.Context, _, _ int) { fetch(ctx, raw, http.MethodGet, s.URL+path, "") }
	}
	stranger := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{selfSigned(t)}}
	return []loud{
		{name: "ends of one task", callers: 400, ends: true, call: func(ctx context.Context, _, _ int) { _, _ = c.EndTask(ctx, "same", client.TaskEnd{}) }},
		{name: "ends of many tasks", callers: 64, ends: true, call: func(ctx context.Context, caller, n int) {
			_, _ = c.EndTask(ctx, fmt.Sprintf("end-%d-%d", caller, n), client.TaskEnd{})
		}},
		{name: "releases", callers: 64, ends: true, call: func(ctx context.Context, _, _ int) { _, _ = c.Release(ctx, held.ID) }},
		{name: "withdrawals", callers: 64, ends: true, call: func(ctx context.Context, caller, _ int) {
			if got, err := c.Request(ctx, client.Ask{Scope: "clock.set", Task: fmt.Sprintf("w-%d", caller)}); err == nil && got.Pending != nil {
				_ = c.Withdraw(ctx, got.Pending.ID)
			}
		}},
		{name: "denied requests", callers: 64, call: ask("clock.forbidden")},
		{name: "limited requests", callers: 64, call: ask("clock.limited")},
		{name: "requests for an unknown scope", callers: 64, call: ask("clock.unknown")},
		{name: "pending requests", callers: 64, call: ask("clock.set")},
		{name: "invalid requests", callers: 64, call: func(ctx context.Context, _, _ int) {
			fetch(ctx, raw, http.MethodPost, s.URL+"/v1/tokens", `{"scope":"clock.read","task":"not a task"}`)
		}},
		{name: "refused handshakes", callers: 32, call: func(ctx context.Context, _, _ int) {
			conn, err := (&tls.Dialer{Config: stranger}).DialContext(ctx, "tcp", host(s.URL))
			if err == nil {
				_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
				_ = conn.Close()
			}
		}},
		{name: "event streams", callers: 64, call: func(ctx context.Context, _, _ int) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_ = c.WatchIssuances(client.Filter{}).Follow(ctx, func(openapi.Issuance) error { return nil })
		}},
		{name: "introspection", callers: 64, call: func(ctx context.Context, _, _ int) {
			form(ctx, raw, s.URL+"/oauth2/introspect", url.Values{"token": {held.Secret.Reveal()}})
		}},
		{name: "status lists", callers: 64, call: get("/v1/status-lists/0192f3f4-0000-7000-8000-000000000000")},
		{name: "checkpoints", callers: 64, call: func(ctx context.Context, _, _ int) { _, _ = c.Checkpoint(ctx) }},
		{name: "searches", callers: 64, call: func(ctx context.Context, _, _ int) { _, _ = c.Page(ctx, client.Filter{Words: "nothing"}) }},
		{name: "own records", callers: 64, call: get("/v1/issuances/" + held.ID)},
	}
}

func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	return u.Host
}

func fetch(ctx context.Context, c *http.Client, method, target, body string) {
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	do(c, req)
}

func form(ctx context.Context, c *http.Client, target string, values url.Values) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(values.Encode()))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	do(c, req)
}

func do(c *http.Client, req *http.Request) {
	resp, err := c.Do(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

// selfSigned returns a certificate that no bundle has an authority for.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key := testkit.SelfSigned(t)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}
