package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	exchangeURN    = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessTokenURN = "urn:ietf:params:oauth:token-type:access_token"
	jwtURN         = "urn:ietf:params:oauth:token-type:jwt"
	helper         = agent + "/helper"
)

var list = client.Ask{Scope: "git.issues.list", Task: "triage-1"}

// actorToken returns the JWT-SVID that a sub-agent gives to a sandbox which exchanges a token for it.
func actorToken(t *testing.T, s *testkit.Stack, of string) string {
	t.Helper()
	id := spiffeid.RequireFromString(of)
	issuer := s.Acme
	if id.TrustDomain() == s.Other.TrustDomain() {
		issuer = s.Other
	}
	svid, err := issuer.JWTSVID(id, attest.ActorAudience(testkit.Audience))
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

// exchangeToken exchanges a token of holder for a token of another sandbox.
func exchangeToken(t *testing.T, s *testkit.Stack, holder, raw, to string, more ...string) granted {
	t.Helper()
	form := formOf(url.Values{
		"grant_type": {exchangeURN}, "subject_token": {raw}, "subject_token_type": {accessTokenURN},
		"actor_token": {actorToken(t, s, to)}, "actor_token_type": {jwtURN},
	}, more...)
	return post{svid: s.X509(t, holder), form: form}.send(t, s)
}

// seen returns what introspection tells a resource server about a token.
func seen(t *testing.T, s *testkit.Stack, raw string) openapi.Introspection {
	t.Helper()
	var out openapi.Introspection
	if err := json.Unmarshal([]byte(introspected(t, s, gitServer, raw)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTokenExchangeDelegatesAToken(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	ask := list
	ask.TTL = time.Minute
	first := token(t, s.Client(t, agent), ask)
	raw, holder, before := first.Secret.Reveal(), agent, seen(t, s, first.Secret.Reveal())
	var act *openapi.TokenActor
	for _, to := range []string{helper, helper + "/1", twin} {
		got := exchangeToken(t, s, holder, raw, to, "scope", "git.issues.list", "resource", "https://git.test", "task", "triage-1",
			"authorization_details", `[{"type":"git.issues.list"}]`)
		if got.status != 200 || got.token.IssuedTokenType != accessTokenURN || got.token.TokenType != "Bearer" {
			t.Fatalf("to %s: got %d %s", to, got.status, got.text)
		}
		raw, holder, act = got.token.AccessToken, to, &openapi.TokenActor{Sub: to, Act: act}
		after := seen(t, s, raw)
		want := before
		want.Jti, want.Iat, want.Exp, want.ClientID, want.Act = after.Jti, after.Iat, after.Exp, to, *act
		if diff := cmp.Diff(want, after); diff != "" || after.Exp > before.Exp || after.Jti == before.Jti {
			t.Errorf("to %s, from one that ends at %d (-want +got):\n%s", to, before.Exp, diff)
		}
		record, err := s.Client(t, to).Issuance(t.Context(), after.Jti)
		if err != nil || record.Parent != before.Jti || record.SpiffeID != to {
			t.Errorf("got the record %+v, %v, want it handed down from %s", record, err, before.Jti)
		}
		before = after
	}
	if got := exchangeToken(t, s, twin, raw, helper); got.failed.Error != "invalid_request" || !strings.Contains(got.failed.ErrorDescription, "exchanged 3 times") {
		t.Errorf("a fourth time: got %d %s", got.status, got.text)
	}
	s.DB.Check(t)
}

// sweep runs the sweeper until the test ends.
func sweep(t *testing.T, s *testkit.Stack) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	book := s.DB.Ledger(t)
	go func() {
		defer close(done)
		_ = s.Broker.Sweep(ctx, book)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// Once the end of a token is confirmed, all tokens that were exchanged for it are inactive on every replica, and the record says
// so.
func TestExchangedTokenEndsWithItsParent(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	other := s.Replica(t)
	sweep(t, s)
	for name, end := range map[string]func(id, task string) error{
		"released": func(id, _ string) error { _, err := s.Client(t, agent).Release(t.Context(), id); return err },
		"revoked": func(id, _ string) error {
			_, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: id}, "test")
			return err
		},
		"task-ended": func(_, task string) error {
			_, err := s.Client(t, agent).EndTask(t.Context(), task, client.TaskEnd{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ask := list
			ask.Task = name
			first := token(t, s.Client(t, agent), ask)
			child := exchangeToken(t, s, agent, first.Secret.Reveal(), twin)
			grandchild := exchangeToken(t, s, twin, child.token.AccessToken, helper)
			id := seen(t, other, grandchild.token.AccessToken).Jti
			if err := end(first.ID, name); err != nil {
				t.Fatal(err)
			}
			for _, raw := range []string{child.token.AccessToken, grandchild.token.AccessToken} {
				if got := introspected(t, other, gitServer, raw); got != inactive {
					t.Errorf("got %s after the end of what it comes from", got)
				}
			}
			if got := exchangeToken(t, other, twin, child.token.AccessToken, helper); got.failed.Error != "invalid_request" {
				t.Errorf("handing it down: got %d %s", got.status, got.text)
			}
			eventually(t, func() error {
				record, err := s.Client(t, helper).Issuance(t.Context(), id)
				if err == nil && record.StatusDetail != "parent_ended" {
					err = fmt.Errorf("it is %s %s still", record.Status, record.StatusDetail)
				}
				return err
			})
		})
	}
	s.DB.Check(t)
}

// ending is a ledger in which the holder releases a token after the broker has checked it, and before the exchange commits.
type ending struct {
	broker.Ledger
	ends func(parent string)
}

func (l ending) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	if rec.Request.Parent != nil {
		l.ends(rec.Request.Parent.ID)
	}
	return l.Ledger.Begin(ctx, rec)
}

func TestTokenThatEndsDuringItsExchangeIsNotExchanged(t *testing.T) {
	t.Parallel()
	var s *testkit.Stack
	o := withServers
	o.Ledger = func(l broker.Ledger) broker.Ledger {
		return ending{l, func(parent string) {
			if _, err := s.Client(t, agent).Release(t.Context(), parent); err != nil {
				t.Error(err)
			}
		}}
	}
	s = testkit.NewStack(t, o)
	got := exchangeToken(t, s, agent, token(t, s.Client(t, agent), list).Secret.Reveal(), twin)
	if got.status != 400 || got.failed.Error != "invalid_request" || !strings.Contains(got.failed.ErrorDescription, "is not active") {
		t.Errorf("got %d %s, want it refused as not active", got.status, got.text)
	}
	s.DB.Check(t)
}

// A service behind a gateway can tell a sub-agent from the sandbox for which it acts.
func TestGatewayNamesTheActingSubAgent(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	raw := token(t, s.Client(t, agent), readIssues).Secret.Reveal()
	down := exchangeToken(t, s, agent, raw, helper)
	if down.status != 200 {
		t.Fatalf("got %d %s", down.status, down.text)
	}
	for actor, text := range map[string]string{agent: raw, helper: down.token.AccessToken} {
		got := held{token: "Bearer " + text}.asNginx(t, s).send(t, s)
		if subject, told := got.header.Get("X-Brevet-Subject"), got.header.Get("X-Brevet-Actor"); got.status != 200 || subject != agent || told != actor {
			t.Errorf("got %d, the subject %s and the actor %s, want %s and %s", got.status, subject, told, agent, actor)
		}
	}
}

func TestInvalidTokenExchangesAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	mine := token(t, s.Client(t, agent), list).Secret.Reveal()
	other := list
	other.Task = "t-2"
	ended := token(t, s.Client(t, agent), other)
	if _, err := s.Client(t, agent).Release(t.Context(), ended.ID); err != nil {
		t.Fatal(err)
	}
	bound := token(t, s.Client(t, agent), read).Secret.Reveal()
	for name, tc := range map[string]struct {
		holder, raw, to string
		more            []string
		error           openapi.OAuthErrorCode
	}{
		"by a thief":                    {twin, mine, helper, nil, "invalid_request"},
		"by who it is handed down to":   {helper, mine, helper, nil, "invalid_request"},
		"to oneself":                    {agent, mine, agent, nil, "invalid_request"},
		"what has ended":                {agent, ended.Secret.Reveal(), helper, nil, "invalid_request"},
		"what is bound to a key":        {agent, bound, helper, nil, "invalid_request"},
		"what is no token":              {agent, "x", helper, nil, "invalid_request"},
		"an SVID":                       {agent, s.JWT(t, agent), helper, nil, "invalid_request"},
		"no subject token type":         {agent, mine, helper, []string{"subject_token_type", ""}, "invalid_request"},
		"another subject token type":    {agent, mine, helper, []string{"subject_token_type", jwtURN}, "invalid_request"},
		"no actor":                      {agent, mine, helper, []string{"actor_token", "", "actor_token_type", ""}, "invalid_request"},
		"an actor token without a type": {agent, mine, helper, []string{"actor_token_type", ""}, "invalid_request"},
		"a type without an actor token": {agent, mine, helper, []string{"actor_token", ""}, "invalid_request"},
		"a malformed actor token":       {agent, mine, helper, []string{"actor_token", mine}, "invalid_request"},
		"an actor's own proof":          {agent, mine, helper, []string{"actor_token", s.JWT(t, helper)}, "invalid_request"},
		"an actor of elsewhere":         {agent, mine, helper, []string{"actor_token", audience(t, s)}, "invalid_request"},
		"another type of token":         {agent, mine, helper, []string{"requested_token_type", "urn:ietf:params:oauth:token-type:id_token"}, "invalid_request"},
		"another scope":                 {agent, mine, helper, []string{"scope", "git.issues.read"}, "invalid_scope"},
		"another task":                  {agent, mine, helper, []string{"task", "t-9"}, "invalid_request"},
		"another resource":              {agent, mine, helper, []string{"resource", "https://db.test"}, "invalid_target"},
		"another audience":              {agent, mine, helper, []string{"audience", "https://db.test"}, "invalid_target"},
		"another action":                {agent, mine, helper, []string{"authorization_details", `[{"type":"git.issues.list","actions":["write"]}]`}, "invalid_authorization_details"},
		"another parameter":             {agent, mine, helper, []string{"authorization_details", `[{"type":"git.issues.list","params":{"x":1}}]`}, "invalid_authorization_details"},
		"to whom policy does not let":   {agent, mine, foreign, nil, "access_denied"},
	} {
		before, signings := entriesOf(t, s), s.Signings(t)
		got := exchangeToken(t, s, tc.holder, tc.raw, tc.to, tc.more...)
		if got.status != 400 || got.failed.Error != tc.error {
			t.Errorf("%s: got %d %s, want %s", name, got.status, got.text, tc.error)
		}
		added := entriesOf(t, s)
		if added.skip(before); len(added.requests)+len(added.refusals) != 1 || s.Signings(t) != signings {
			t.Errorf("%s: got %+v recorded, want one entry", name, added)
		}
	}
	s.DB.Check(t)
}
