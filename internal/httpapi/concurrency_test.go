package httpapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A replica at its limit refuses further requests at once and without a record. Votes, introspection and revocation still work.
func TestOverloadedReplicas(t *testing.T) {
	t.Parallel()
	options := withPeople
	options.Orchestrators, options.ResourceServers = []string{runtime}, map[string][]string{gitServer: {"https://git.test"}}
	s := testkit.NewStack(t, options)
	sandbox, carol := s.Client(t, agent), s.Person(t, "carol")
	first, second := waiting(t, sandbox, askFor("git.issues.write")), waiting(t, sandbox, askFor("vault.notes.write"))
	if _, err := vote(t, carol, first, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), first, askFor("git.issues.write"))
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	held := got.Token

	s.Server.MakeAtOnce(0, 64)
	before := entriesOf(t, s)
	if _, err := vote(t, carol, second, openapi.VerdictApprove); err != nil {
		t.Errorf("voting: got %v", err)
	}
	before.requests = entriesOf(t, s).requests
	for what, ask := range map[string]func() error{
		"asking":    func() error { _, err := sandbox.Request(t.Context(), askFor("git.issues.write")); return err },
		"redeeming": func() error { _, err := sandbox.Redeem(t.Context(), second, askFor("vault.notes.write")); return err },
	} {
		if err := ask(); code(err) != openapi.CodeOverloaded {
			t.Errorf("%s: got %v, want overloaded", what, err)
		}
	}
	if got := (post{svid: s.X509(t, agent), form: reading()}).send(t, s); got.status != http.StatusServiceUnavailable ||
		got.failed.Error != openapi.OAuthTemporarilyUnavailable || !soon(got.header) {
		t.Errorf("got %d %s %v, want temporarily_unavailable", got.status, got.text, got.header)
	}
	s.Server.MakeAtOnce(256, 0)
	if got := (wire{}).send(t, s); got.status != http.StatusTooManyRequests || !soon(got.header) {
		t.Errorf("too much for one: got %d %s, want 429", got.status, got.text)
	}
	after := entriesOf(t, s)
	if after.skip(before); len(after.requests)+len(after.refusals) != 0 {
		t.Errorf("got %+v recorded of what was turned away", after)
	}
	if metrics := scrape(t, s.Server); !strings.Contains(metrics, `brevet_problems_total{code="overloaded"} 3`) {
		t.Errorf("got %s, want those that were turned away counted", metrics)
	}
	if text := introspected(t, s, gitServer, held.Secret.Reveal()); !strings.Contains(text, `"active":true`) {
		t.Errorf("got %s, want introspection as ever", text)
	}
	if _, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: held.ID}, "over"); err != nil {
		t.Errorf("revoking: got %v", err)
	}
	if text := introspected(t, s, gitServer, held.Secret.Reveal()); strings.Contains(text, `"active":true`) {
		t.Errorf("got %s of what was revoked", text)
	}
}

// Every call by which a workload ends something counts among those that end something at once, also the OAuth endpoint.
func TestEndingsAtOnceAreLimited(t *testing.T) {
	t.Parallel()
	options := withPeople
	options.Orchestrators = []string{runtime}
	s := testkit.NewStack(t, options)
	sandbox := s.Client(t, agent)
	first, pending := waiting(t, sandbox, askFor("git.issues.write")), waiting(t, sandbox, askFor("vault.notes.write"))
	if _, err := vote(t, s.Person(t, "carol"), first, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Redeem(t.Context(), first, askFor("git.issues.write"))
	if err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	held := got.Token
	s.Server.EndAtOnce(256, 0)
	for what, end := range map[string]func() error{
		"releasing":     func() error { _, err := sandbox.Release(t.Context(), held.ID); return err },
		"withdrawing":   func() error { return sandbox.Withdraw(t.Context(), pending) },
		"ending a task": func() error { _, err := sandbox.EndTask(t.Context(), "t-1", client.TaskEnd{}); return err },
		"ending another's task": func() error {
			_, err := s.Client(t, runtime).EndTask(t.Context(), "t-1", client.TaskEnd{SPIFFEID: agent})
			return err
		},
	} {
		if err := end(); code(err) != openapi.CodeRateLimited {
			t.Errorf("%s: got %v, want rate_limited", what, err)
		}
	}
	revoke := post{path: "/oauth2/revoke", svid: s.X509(t, agent), form: url.Values{"token": {held.Secret.Reveal()}}}
	if got := revoke.send(t, s); got.status != http.StatusTooManyRequests || got.failed.Error != openapi.OAuthTemporarilyUnavailable || !soon(got.header) {
		t.Errorf("revoking: got %d %s %v, want temporarily_unavailable", got.status, got.text, got.header)
	}
	s.Server.EndAtOnce(256, 32)
	for range 2 {
		if got := revoke.send(t, s); got.status != http.StatusOK {
			t.Errorf("revoking: got %d %s", got.status, got.text)
		}
	}
}

// Orders of a workload are limited, and those of people are not.
func TestOrdersAtOnceAreLimited(t *testing.T) {
	t.Parallel()
	options := withPeople
	options.People = append(slices.Clone(options.People), devstack.DevPerson{Username: "olga", Name: "Olga", Groups: []string{"ops"}})
	options.Rules = append(slices.Clone(options.Rules), people.Rule{Role: people.RoleAdmin, Group: "ops"})
	s := testkit.NewStack(t, options)
	held := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	s.Server.OrderAtOnce(256, 0)
	workload, person := s.Client(t, admin), s.Person(t, "olga")
	for what, order := range map[string]func(*client.Client) error{
		"revoking": func(c *client.Client) error {
			_, err := c.Revoke(t.Context(), client.Selection{ID: held}, "x")
			return err
		},
		"quarantining": func(c *client.Client) error { _, err := c.Quarantine(t.Context(), twin, "x"); return err },
		"lifting":      func(c *client.Client) error { return c.Unquarantine(t.Context(), twin, "x") },
	} {
		if err := order(workload); code(err) != openapi.CodeRateLimited {
			t.Errorf("%s: got %v, want rate_limited", what, err)
		}
		if err := order(person); code(err) == openapi.CodeRateLimited {
			t.Errorf("%s as a person: got %v", what, err)
		}
	}
	s.Server.OrderAtOnce(256, 8)
	for range 2 {
		if _, err := workload.Quarantine(t.Context(), twin, "x"); err != nil {
			t.Errorf("got %v", err)
		}
	}
}

// One sandbox cannot ask many times at once which of its credentials are in force. Introspection is not limited with it.
func TestQuestionsWhatIsInForceAreLimited(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	sandbox := s.Client(t, agent)
	held := token(t, sandbox, read)
	confirming := func() error { _, err := sandbox.InForce(t.Context(), []string{held.ID}); return err }
	s.Server.ConfirmAtOnce(6, 0)
	if err := confirming(); code(err) != openapi.CodeRateLimited {
		t.Errorf("got %v, want rate_limited", err)
	}
	if got := about(t, s, "/oauth2/introspect", agent, held.Secret.Reveal()); got.status != http.StatusOK {
		t.Errorf("introspecting: got %d %s", got.status, got.text)
	}
	s.Server.ConfirmAtOnce(6, 2)
	for range 3 {
		if err := confirming(); err != nil {
			t.Errorf("got %v", err)
		}
	}
}

// soon reports whether Retry-After is from 1 to 3 seconds.
func soon(h http.Header) bool {
	after, err := strconv.Atoi(h.Get("Retry-After"))
	return err == nil && after >= 1 && after <= 3
}

// Every place is freed, however a request ends.
func TestConcurrencySlotsAreReleased(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	s.Server.MakeAtOnce(3, 2)
	var issued, turned, denied atomic.Int64
	var callers sync.WaitGroup
	for _, who := range []string{agent, twin, foreign} {
		c := s.Client(t, who)
		for range 4 {
			callers.Go(func() {
				for answered := 0; answered < 3; { // overloaded and rate-limited calls are repeated
					switch _, err := c.Request(t.Context(), read); code(err) {
					case "":
						issued.Add(1)
						answered++
					case openapi.CodeOverloaded, openapi.CodeRateLimited:
						turned.Add(1)
					case openapi.CodeDenied:
						denied.Add(1)
						answered++
					default:
						t.Errorf("got %v", err)
						return
					}
				}
			})
		}
	}
	callers.Wait()
	if issued.Load() == 0 || turned.Load() == 0 || denied.Load() == 0 {
		t.Errorf("got %d issued, %d turned away, %d denied, want some of each", issued.Load(), turned.Load(), denied.Load())
	}
	s.Server.MakeAtOnce(1, 1)
	for range 5 {
		token(t, s.Client(t, agent), read)
	}
}

// A sandbox that does not read its responses, as HTTP/2 allows, does not hold a place.
func TestStalledReaderHoldsNoConcurrencySlot(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	s.Server.MakeAtOnce(1, 1)
	cfg := s.ClientTLS(s.X509(t, agent))
	cfg.NextProtos = []string{"h2"}
	conn := dialWith(t, s, cfg)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	err := errors.Join(
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock(s.Addr), EndHeaders: true}),
		framer.WriteData(1, true, []byte(`{"scope":"git.issues.read","params":{"repo":"acme/api"},"task":"t-1"}`)),
	)
	if err != nil {
		t.Fatal(err)
	}
	if status := statusOf(t, framer); status != "201" {
		t.Fatalf("got %s, want an answer that begins", status)
	}
	token(t, s.Client(t, agent), read)
}

// statusOf reads until a response begins, and returns its status.
func statusOf(t *testing.T, framer *http2.Framer) (status string) {
	t.Helper()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if headers, ok := frame.(*http2.HeadersFrame); ok {
			fields, err := hpack.NewDecoder(4096, nil).DecodeFull(headers.HeaderBlockFragment())
			if err != nil {
				t.Fatal(err)
			}
			return fields[0].Value
		}
	}
}
