package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

const (
	gitServer = "spiffe://acme.test/services/git"
	dbServer  = "spiffe://other.test/services/db"
	inactive  = `{"active":false}`
)

// withServers has two resource servers, and a caller for each way to end a token.
var withServers = testkit.Options{
	Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(strings.Replace(string(catalogue[0].Data),
		"    credential: {kind: jwt, audience: https://git.test}\n  - name: git.issues.list",
		"    credential: {kind: jwt, audience: https://git.test, bind: mtls}\n  - name: git.issues.list", 1))}, catalogue[1]},
	Admins:          []string{admin},
	ResourceServers: map[string][]string{gitServer: {"https://elsewhere.test", "https://git.test"}, dbServer: {"https://db.test"}},
}

// about calls an endpoint about a token, as who.
func about(t *testing.T, s *testkit.Stack, path, who, token string) granted {
	t.Helper()
	return post{path: path, svid: s.X509(t, who), form: url.Values{"token": {token}, "token_type_hint": {"refresh_token"}}}.send(t, s)
}

func introspected(t *testing.T, s *testkit.Stack, who, token string) string {
	t.Helper()
	got := about(t, s, "/oauth2/introspect", who, token)
	if got.status != 200 || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %s", got.status, got.text)
	}
	return got.text
}

func TestIntrospection(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	issued := token(t, s.Client(t, agent), read)
	raw := issued.Secret.Reveal()
	want := openapi.Introspection{
		Active: true, Scope: "git.issues.read", ClientID: agent, TokenType: "Bearer", Sub: agent, Aud: "https://git.test",
		Iss: testkit.Audience, Jti: issued.ID, Task: "triage-1", Exp: issued.Expires.Unix(), Iat: issued.Expires.Unix() - 300,
		AuthorizationDetails: []openapi.AuthorizationDetail{{
			Type: "git.issues.read", Actions: []string{"read"}, Locations: []string{"https://git.test"},
			Identifier: "git:repo/acme/api", Params: map[string]any{"repo": "acme/api"},
		}},
	}
	for _, who := range []string{gitServer, agent} {
		var got openapi.Introspection
		if err := json.Unmarshal([]byte(introspected(t, s, who, raw)), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Cnf.X5T) != 43 {
			t.Errorf("%s: got cnf %+v, want the certificate's thumbprint", who, got.Cnf)
		}
		got.Cnf = openapi.Confirmation{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", who, diff)
		}
	}
	for name, tc := range map[string]struct{ who, token string }{
		"for another audience": {dbServer, raw},
		"another sandbox's":    {twin, raw},
		"to an admin":          {admin, raw},
		"an SVID":              {gitServer, s.JWT(t, agent)},
		"nothing":              {gitServer, "x"},
		"with a changed end":   {gitServer, raw[:len(raw)-4] + "AAAA"},
		"a vault token":        {agent, token(t, s.Client(t, agent), client.Ask{Scope: "vault.notes.read", Task: "t-1"}).Secret.Reveal()},
	} {
		if got := introspected(t, s, tc.who, tc.token); got != inactive {
			t.Errorf("%s: got %s", name, got)
		}
	}
	bearer := post{path: "/oauth2/introspect", form: url.Values{"token": {raw}}, headers: []string{"Authorization", "Bearer " + s.JWT(t, gitServer)}}
	if got := bearer.send(t, s); got.status != 200 || !strings.Contains(got.text, `"active":true`) {
		t.Errorf("by a bearer token: got %d %s", got.status, got.text)
	}
}

// H106 and I6: once a token's end on one replica is confirmed, the token is inactive on the other.
func TestEndedTokensAreInactiveEverywhere(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	other := s.Replica(t)
	for name, end := range map[string]func(*client.Token) error{
		"released": func(tok *client.Token) error { _, err := s.Client(t, agent).Release(t.Context(), tok.ID); return err },
		"task ended": func(tok *client.Token) error {
			_, err := s.Client(t, agent).EndTask(t.Context(), tok.Task, client.TaskEnd{})
			return err
		},
		"revoked": func(tok *client.Token) error {
			_, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{ID: tok.ID}, "test")
			return err
		},
		"revoked by RFC 7009": func(tok *client.Token) error {
			if got := about(t, s, "/oauth2/revoke", agent, tok.Secret.Reveal()); got.status != 200 || got.text != "" {
				t.Errorf("got %d %s", got.status, got.text)
			}
			return nil
		},
		"quarantined": func(*client.Token) error {
			_, err := s.Client(t, admin).Quarantine(t.Context(), agent, "test")
			if err == nil {
				err = s.Client(t, admin).Unquarantine(t.Context(), agent, "test") // this reactivates nothing
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ask := read
			ask.Task = strings.ReplaceAll(name, " ", "-")
			tok := token(t, s.Client(t, agent), ask)
			for _, on := range []*testkit.Stack{s, other} {
				if got := introspected(t, on, gitServer, tok.Secret.Reveal()); got == inactive {
					t.Fatalf("got %s before its end", got)
				}
			}
			if err := end(tok); err != nil {
				t.Fatal(err)
			}
			for _, on := range []*testkit.Stack{other, s} {
				if got := introspected(t, on, gitServer, tok.Secret.Reveal()); got != inactive {
					t.Errorf("got %s after its end", got)
				}
			}
		})
	}
	s.DB.Check(t)
}

// No caller can revoke a token of another holder, or learn who holds it.
func TestRevokingAnotherHoldersTokenHasNoEffect(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	tok := token(t, s.Client(t, agent), read)
	for _, call := range [][2]string{{twin, tok.Secret.Reveal()}, {gitServer, tok.Secret.Reveal()}, {agent, "x"}, {agent, s.JWT(t, agent)}} {
		if got := about(t, s, "/oauth2/revoke", call[0], call[1]); got.status != 200 || got.text != "" {
			t.Errorf("got %d %s", got.status, got.text)
		}
	}
	if got := introspected(t, s, gitServer, tok.Secret.Reveal()); got == inactive {
		t.Errorf("got %s, want it in force", got)
	}
}

// If the record is unavailable, introspection and revocation fail instead of answering.
func TestIntrospectionFailsWithoutTheRecord(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	raw := token(t, s.Client(t, agent), read).Secret.Reveal()
	exec(t, s, `ALTER TABLE issuances RENAME TO elsewhere`)
	for path, who := range map[string]string{"/oauth2/introspect": gitServer, "/oauth2/revoke": agent} {
		got := about(t, s, path, who, raw)
		if got.status != http.StatusServiceUnavailable || got.failed.Error != "temporarily_unavailable" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: got %d %s", path, got.status, got.text)
		}
	}
	exec(t, s, `ALTER TABLE elsewhere RENAME TO issuances`)
	if got := introspected(t, s, gitServer, raw); got == inactive {
		t.Errorf("got %s, want it in force still", got)
	}
}

func TestInvalidIntrospectionRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	for _, path := range []string{"/oauth2/introspect", "/oauth2/revoke"} {
		for name, tc := range map[string]struct {
			call   post
			status int
			error  openapi.OAuthErrorCode
		}{
			"nobody":        {post{form: url.Values{"token": {"x"}}}, 401, "invalid_client"},
			"a wrong proof": {post{form: url.Values{"token": {"x"}}, headers: []string{"Authorization", "Bearer x"}}, 401, "invalid_client"},
			"no token":      {post{svid: s.X509(t, gitServer), form: url.Values{}}, 400, "invalid_request"},
			"two tokens":    {post{svid: s.X509(t, gitServer), form: url.Values{"token": {"x", "y"}}}, 400, "invalid_request"},
			"another name":  {post{svid: s.X509(t, gitServer), form: url.Values{"token": {"x"}, "client_id": {agent}}}, 401, "invalid_client"},
		} {
			before := entriesOf(t, s)
			tc.call.path = path
			if got := tc.call.send(t, s); got.status != tc.status || got.failed.Error != tc.error {
				t.Errorf("%s %s: got %d %s", path, name, got.status, got.text)
			}
			added := entriesOf(t, s)
			if added.skip(before); len(added.refusals) != 1 {
				t.Errorf("%s %s: got %+v recorded, want one refusal", path, name, added)
			}
		}
	}
}

// withOneShots has a scope with one-shot tokens.
var withOneShots = testkit.Options{
	Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: bank.order.pay
    title: Pay an order
    authority: payment
    resource: bank:orders
    ttl: {default: 5m, max: 15m}
    limits: [{per: sandbox, live: 1}]
    credential: {kind: jwt, audience: https://bank.test, uses: 1}
`)}, {Name: "policies.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)}},
	Auditors: []string{auditor}, ResourceServers: map[string][]string{gitServer: {"https://bank.test"}},
}

// T8: of many concurrent introspections on two replicas, one reports a one-shot token as active, and none after that. Then the
// sandbox can get another one.
func TestOneShotTokenIsUsedOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withOneShots)
	replicas := []*testkit.Stack{s, s.Replica(t)}
	ask := client.Ask{Scope: "bank.order.pay", Task: "t-1"}
	tok := token(t, s.Client(t, agent), ask)
	raw := tok.Secret.Reveal()
	if got := introspected(t, s, agent, raw); !strings.Contains(got, `"one_shot":true`) { // this does not count as a use
		t.Fatalf("got %s", got)
	}
	answers := make([]string, 100)
	var askers sync.WaitGroup
	for i := range answers {
		askers.Go(func() { answers[i] = introspected(t, replicas[i%2], gitServer, raw) })
	}
	askers.Wait()
	var active int
	for _, got := range answers {
		if got != inactive {
			active++
		}
	}
	if active != 1 {
		t.Errorf("got active %d times, want once", active)
	}
	for _, on := range replicas {
		if got := introspected(t, on, agent, raw); got != inactive {
			t.Errorf("got %s after its use", got)
		}
	}
	record, err := s.Client(t, auditor).Issuance(t.Context(), tok.ID)
	if err != nil || record.Status != openapi.StatusUsed || record.EndedBy != gitServer {
		t.Errorf("got %+v, %v, want it used", record, err)
	}
	token(t, s.Client(t, agent), ask)
	s.DB.Check(t)
}
