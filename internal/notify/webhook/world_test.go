package webhook_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const (
	agent = "spiffe://acme.test/agents/a"
	other = "spiffe://other.test/agents/a"
	whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	words = "please <!channel> hvs.CANARY"
)

var withPeople = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, break_glass: leads}
    credential: {kind: jwt, audience: https://git.test}
`)},
		{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);
@id("people") forbid (principal, action, resource) unless { context.approved };`)},
	},
	People: []devstack.DevPerson{
		{Username: "bob", Name: "Bob", Groups: []string{"oncall"}},
		{Username: "dave", Name: "Dave", Groups: []string{"leads"}},
		{Username: "erin", Name: "Erin", Groups: []string{"leads"}},
	},
	Rules: []people.Rule{{Role: people.RoleApprover, Group: "oncall"}, {Role: people.RoleApprover, Group: "leads"}},
}

// received is a call to a receiver.
type received struct {
	ID, Type, Request, Status string
	Body                      string
}

// receiver is a webhook endpoint with a certificate of a private CA.
type receiver struct {
	*httptest.Server
	calls chan received
}

// newReceiver returns a receiver that responds with the status from answer, and reports the calls that it accepts.
func newReceiver(t *testing.T, answer func(received) int) *receiver {
	t.Helper()
	r := &receiver{calls: make(chan received, 1000)}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("reading a call: %v", err)
		}
		id, err := client.VerifyWebhook(req.Header, body, secret.New(whsec), time.Now())
		if err != nil || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %v %q, %v, want a webhook that is authentic", req.Header, body, err)
		}
		var p struct {
			Type string
			Data struct{ ID, Status string }
		}
		if err := json.Unmarshal(body, &p); err != nil {
			t.Error(err)
		}
		got := received{id, p.Type, p.Data.ID, p.Data.Status, string(body)}
		status := http.StatusNoContent
		if answer != nil {
			status = answer(got)
		}
		w.WriteHeader(status)
		if status < 300 {
			r.calls <- got
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// patience is how long a test waits for an event on a busy machine.
const patience = time.Minute

func (r *receiver) next(t *testing.T) received {
	t.Helper()
	select {
	case got := <-r.calls:
		return got
	case <-time.After(patience):
		t.Fatalf("waited %s for a call of the webhook", patience)
	}
	return received{}
}

func (r *receiver) wants(t *testing.T, kind broker.NoticeKind, request, status string) received {
	t.Helper()
	got := r.next(t)
	if got.Type != string(kind) || got.Request != request || got.Status != status {
		t.Errorf("got %+v, want %s of %s as %s", got, kind, request, status)
	}
	return got
}

func (r *receiver) spec(name string) webhook.Spec {
	roots := x509.NewCertPool()
	roots.AddCert(r.Certificate())
	return webhook.Spec{
		Name: name, Secret: secret.New(whsec),
		Target: safehttp.Target{URL: secret.New(r.URL + "/hook"), Roots: roots, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Events: []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided}, Within: []string{people.Everywhere},
	}
}

func outbox(t *testing.T, s *testkit.Stack) *ledger.Outbox {
	t.Helper()
	box, err := ledger.OpenOutbox(t.Context(), ledger.Config{URL: s.DB.BrokerURL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// courier runs one replica's courier with subscribed webhooks, and returns a function that stops it and waits for its end.
func courier(t *testing.T, s *testkit.Stack, specs ...webhook.Spec) (stop func()) {
	t.Helper()
	box := outbox(t, s)
	for _, spec := range specs {
		if err := box.Subscribe(t.Context(), spec.Name); err != nil {
			t.Fatal(err)
		}
	}
	c, err := webhook.New(webhook.Config{
		Webhooks: specs, Outbox: box, Link: "https://brevet.test/v1/approvals/{id}", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(s.Log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func ask(t *testing.T, s *testkit.Stack, id string) string {
	t.Helper()
	got, err := s.Client(t, id).Request(t.Context(), client.Ask{
		Scope: "git.issues.write", Params: map[string]any{"repo": "acme/api"}, Task: "task-1", Reason: words,
		IdempotencyKey: rand.Text(), // otherwise equal requests that wait are one
	})
	if err != nil || got.Pending == nil {
		t.Fatalf("got %+v, %v, want it pending", got, err)
	}
	return got.Pending.ID
}

func approve(t *testing.T, s *testkit.Stack, id string) {
	t.Helper()
	says(t, s.Person(t, "bob"), openapi.VerdictApprove, id)
}

// says casts a vote with a note for a person who has opened the request.
func says(t *testing.T, who *client.Client, verdict openapi.Verdict, id string) {
	t.Helper()
	shown, err := who.Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := who.Vote(t.Context(), shown, verdict, words); err != nil {
		t.Fatal(err)
	}
}
