package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
)

var read = client.Ask{Scope: "git.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: "triage-1"}

func TestTokenByEitherSVID(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	for name, c := range map[string]*client.Client{"X.509": s.Client(t, agent), "JWT": s.JWTClient(t, agent)} {
		t.Run(name, func(t *testing.T) {
			ask := read
			ask.TTL = time.Hour
			got, err := c.Request(t.Context(), ask)
			if err != nil || got.Token == nil {
				t.Fatalf("got %+v, %v, want a token", got, err)
			}
			// H61: a TTL over the maximum is reduced, and the response says so.
			if got.Token.TTL != 15*time.Minute || len(got.Token.Clamped) != 1 || got.Token.Clamped[0].From != 3600 || got.Token.Clamped[0].To != 900 {
				t.Errorf("got TTL %s and %+v, want it clamped to 15m", got.Token.TTL, got.Token.Clamped)
			}
			claims := verify(t, s, got.Token.Secret.Reveal())
			if claims.Subject != agent || claims.ID != got.Token.ID || !claims.Expiry.Time().Equal(got.Token.Expires) {
				t.Errorf("got claims %+v for %+v", claims, got.Token)
			}
			record, err := c.Issuance(t.Context(), got.Token.ID)
			if err != nil || record.SpiffeID != agent || record.Status != "issued" || record.Index != nil {
				t.Errorf("got the record %+v, %v", record, err)
			}
			state, err := c.State(t.Context(), got.Token.ID)
			if err != nil || state.Status != "issued" || state.Scope != "git.issues.read" {
				t.Errorf("got the state %+v, %v", state, err)
			}
		})
	}
	if got := s.Signings(t); got != 2 {
		t.Errorf("Vault signed %d times, want 2", got)
	}
	if strings.Contains(s.Log.String(), "eyJ") {
		t.Error("a token is in the log")
	}
}

// verify verifies a token as a resource server would, with nothing but the key set.
func verify(t *testing.T, s *testkit.Stack, token string) jwt.Claims {
	t.Helper()
	status, header, text := get(t, s, "/.well-known/jwks.json")
	if status != 200 || header.Get("Cache-Control") != "public, max-age=60" || header.Get("Content-Type") != "application/jwk-set+json" {
		t.Fatalf("got the key set with %d and %v", status, header)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(text), &keys); err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys, &claims); err != nil {
		t.Fatalf("verifying: %v", err)
	}
	if err := claims.Validate(jwt.Expected{Issuer: testkit.Audience, AnyAudience: jwt.Audience{"https://git.test"}}); err != nil {
		t.Errorf("the claims: %v", err)
	}
	return claims
}

// H29: identities in headers do not change who the credential is for.
func TestIdentityHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	got := wire{headers: []string{
		"X-Forwarded-Client-Cert: URI=" + twin, "X-SPIFFE-ID: " + twin, "X-Real-IP: 10.0.0.1", "X-Forwarded-For: 10.0.0.1",
		"X-Forwarded-Host: evil.example", "Request-Id: " + canary, "Baggage: user=" + canary,
		"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}}.send(t, s)
	if got.status != 201 || got.header.Get("Cache-Control") != "no-store" || strings.Contains(got.header.Get("Request-Id"), canary) {
		t.Fatalf("got %d %v", got.status, got.header)
	}
	var token struct{ Token string }
	if err := json.Unmarshal([]byte(got.text), &token); err != nil {
		t.Fatal(err)
	}
	if claims := verify(t, s, token.Token); claims.Subject != agent {
		t.Errorf("the credential is for %s, want %s", claims.Subject, agent)
	}
	if log := s.Log.String(); strings.Contains(log, canary) || strings.Contains(log, "10.0.0.1") || !strings.Contains(log, "remote=127.0.0.1") {
		t.Error("the log believes the headers")
	}
}

// TestDenialNamesNearMissesWithoutTheirConditions checks what a sandbox reads of a permit that nearly applied: its id and the field of its
// own request, and nothing with which the policy compares the field.
func TestDenialNamesNearMissesWithoutTheirConditions(t *testing.T) {
	t.Parallel()
	files := slices.Clone(catalogue)
	files = append(files, scopes.File{Name: "near.cedar", Data: []byte(`@id("near-miss")
permit (principal == Sandbox::"` + twin + `", action == Action::"` + read.Scope + `", resource) when { context.task == "confidential" };`)})
	s := testkit.NewStack(t, testkit.Options{Catalogue: files})
	_, err := s.Client(t, twin).Request(t.Context(), read)
	var p *client.Problem
	if !errors.As(err, &p) || p.Reason != "no_permit" || !strings.Contains(p.Explanation, "near-miss (task)") {
		t.Fatalf("got %v, want the near miss", err)
	}
	if text := fmt.Sprintf("%+v", p); strings.Contains(text, "confidential") {
		t.Errorf("got %s, which shows the condition", text)
	}
}

// A denial by policy is a 403 that says how to proceed. It is recorded, and causes no signature.
func TestDenials(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	with := func(scope string, params map[string]any) client.Ask {
		return client.Ask{Scope: scope, Params: params, Task: "triage-1"}
	}
	repo := func(name string) map[string]any { return map[string]any{"repo": name} }
	for name, tc := range map[string]struct {
		who      string
		ask      client.Ask
		reason   string
		policies []string
	}{
		"H33 a longer name":        {twin, read, "no_permit", []string{}},
		"H34 another trust domain": {foreign, read, "no_permit", []string{}},
		"H63 policy error":         {agent, with("db.rows.read", map[string]any{"rows": 9000, "fresh": true}), "policy_error", []string{"overflows"}},
		"H64 nothing says yes":     {agent, with("ssh.login.open", map[string]any{"principal": "deploy"}), "forbidden", []string{"writes-need-people"}},
		"H65 permit and forbid":    {agent, with("git.issues.read", repo("acme/secret")), "forbidden", []string{"secret-repo"}},
		"H67 an unknown scope":     {agent, with("git.issues.raed", repo("acme/api")), "unknown_scope", []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			before := entriesOf(t, s)
			_, err := s.Client(t, tc.who).Request(t.Context(), tc.ask)
			var p *client.Problem
			if !errors.Is(err, client.ErrDenied) || !errors.As(err, &p) {
				t.Fatalf("got %v, want a denial", err)
			}
			if p.Reason != tc.reason || p.Explanation == "" || p.Catalogue == "" || p.ID == "" {
				t.Errorf("got %+v, want the reason %s", p, tc.reason)
			}
			if diff := cmp.Diff(tc.policies, p.Policies, cmp.Transformer("list", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
			added := entriesOf(t, s)
			if added.skip(before); len(added.requests) != 1 || len(added.refusals) != 0 || added.requests[0].Kind != "request.denied" {
				t.Errorf("got %+v, want exactly one record, of the decision", added)
			}
			if got, err := s.Client(t, tc.who).State(t.Context(), p.ID); err != nil || got.Status != "denied" {
				t.Errorf("got the state %+v, %v", got, err)
			}
		})
	}
	if got := s.Signings(t); got != 0 {
		t.Errorf("Vault signed %d times, want never", got)
	}
}

func TestRepeatedRequestGetsTheSamePendingResponse(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	body := `{"scope":"git.issues.write","params":{"repo":"acme/api"},"task":"triage-1"}`
	first := wire{body: body, headers: []string{`Idempotency-Key: "k 1"`}}.send(t, s)
	var p struct {
		ID, Status string
		Approval   struct {
			Group  string
			Quorum int
		}
	}
	if err := json.Unmarshal([]byte(first.text), &p); err != nil {
		t.Fatal(err)
	}
	if first.status != 202 || p.Status != "pending" || p.Approval.Group != "oncall" || p.Approval.Quorum != 2 {
		t.Fatalf("got %d %s, want it pending", first.status, first.text)
	}
	if first.header.Get("Location") != "/v1/requests/"+p.ID || first.header.Get("Retry-After") != "5" || first.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %v", first.header)
	}
	// The same key in its other spelling is equal.
	again := wire{body: body, headers: []string{"Idempotency-Key: k 1"}}.send(t, s)
	if again.status != 202 || strings.Replace(again.text, `"earlier":true,`, "", 1) != first.text {
		t.Errorf("repeated: got %d %s, want the first answer", again.status, again.text)
	}
	if got := entriesOf(t, s); len(got.requests) != 1 {
		t.Errorf("%d requests were recorded, want 1", len(got.requests))
	}
}

// H103 and I16 for one caller: a key is answered once, for one request, and never with the credential again.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	c := s.Client(t, agent)
	ask := read
	ask.IdempotencyKey = "build-42"
	if got, err := c.Request(t.Context(), ask); err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	want := func(err error, code string) {
		t.Helper()
		var p *client.Problem
		if !errors.As(err, &p) || string(p.Code) != code || !errors.Is(err, client.ErrConflict) {
			t.Errorf("got %v, want %s", err, code)
		}
	}
	_, err := c.Request(t.Context(), ask)
	want(err, "already_issued")
	other := ask
	other.Task = "triage-2"
	_, err = c.Request(t.Context(), other)
	want(err, "idempotency_mismatch")
	denied := client.Ask{Scope: "git.issues.read", Params: map[string]any{"repo": "acme/secret"}, Task: "t", IdempotencyKey: "no"}
	var ids []string
	for range 2 {
		var p *client.Problem
		if _, err := c.Request(t.Context(), denied); !errors.As(err, &p) || p.Reason != "forbidden" {
			t.Fatalf("got %v, want a denial", err)
		} else {
			ids = append(ids, p.ID)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("a repeated denial is another record: %v", ids)
	}
	// A key belongs to one caller. The same key of another caller is unrelated.
	if _, err := s.Client(t, foreign).Request(t.Context(), ask); !errors.Is(err, client.ErrDenied) {
		t.Errorf("got %v, want a denial of its own", err)
	}
	if got := s.Signings(t); got != 1 {
		t.Errorf("Vault signed %d times, want once", got)
	}
}

// brokenLedger fails to commit.
type brokenLedger struct{ broker.Ledger }

func (brokenLedger) Begin(context.Context, broker.Record) (*broker.View, error) {
	return nil, broker.ErrLedgerUnavailable
}

// brokenMinter fails, or returns something wrong, once the record is durable.
type brokenMinter struct {
	broker.Minter
	mint func() (broker.Credential, error)
}

func (m brokenMinter) Mint(context.Context, *broker.Order) (broker.Credential, error) {
	return m.mint()
}

func TestDependencyFailuresMapToProblems(t *testing.T) {
	t.Parallel()
	const secret = "hvs.zqsecret"
	minter := func(mint func() (broker.Credential, error)) testkit.Options {
		return testkit.Options{Catalogue: catalogue, Minter: func(m broker.Minter) broker.Minter { return brokenMinter{m, mint} }}
	}
	for name, tc := range map[string]struct {
		options testkit.Options
		status  int
		code    string
		want    error
	}{
		"ledger": {
			testkit.Options{Catalogue: catalogue, Ledger: func(l broker.Ledger) broker.Ledger { return brokenLedger{l} }},
			503, "ledger_unavailable", client.ErrUnavailable,
		},
		"vault":   {minter(func() (broker.Credential, error) { return broker.Credential{}, broker.ErrVaultUnavailable }), 503, "vault_unavailable", client.ErrUnavailable},
		"H70":     {minter(func() (broker.Credential, error) { return broker.Credential{}, broker.ErrMintMismatch }), 503, "mint_mismatch", client.ErrUnavailable},
		"refused": {minter(func() (broker.Credential, error) { return broker.Credential{}, broker.ErrVaultRefused }), 503, "vault_refused", client.ErrVaultRefused},
		"revoked": {minter(func() (broker.Credential, error) { return broker.Credential{}, broker.ErrRevoked }), 409, "revoked", client.ErrRevoked},
		"lost": {minter(func() (broker.Credential, error) {
			return broker.Credential{}, &broker.LostMintError{Err: broker.ErrVaultUnavailable}
		}), 503, "vault_unavailable", client.ErrUnavailable},
		"unknown":  {minter(func() (broker.Credential, error) { return broker.Credential{}, errors.New(secret) }), 500, "internal", client.ErrInternal},
		"panicked": {minter(func() (broker.Credential, error) { panic(secret) }), 500, "internal", client.ErrInternal},
	} {
		t.Run(name, func(t *testing.T) {
			s := testkit.NewStack(t, tc.options)
			got := wire{}.send(t, s)
			if got.status != tc.status || got.code != tc.code || strings.Contains(got.text, secret) {
				t.Errorf("got %d %s, want %d %s", got.status, got.text, tc.status, tc.code)
			}
			if after := got.header.Get("Retry-After"); (tc.status == http.StatusServiceUnavailable) != (after == "5") {
				t.Errorf("got Retry-After %q with %d", after, tc.status)
			}
			if _, err := s.Client(t, agent).Request(t.Context(), read); !errors.Is(err, tc.want) {
				t.Errorf("the client says %v, want %v", err, tc.want)
			}
			if name == "panicked" && strings.Contains(s.Log.String(), secret) {
				t.Error("the log shows the value of the panic")
			}
			if n := s.Signings(t); n != 0 {
				t.Errorf("Vault signed %d times", n)
			}
		})
	}
}

// The problem names the engine that an admin must mount.
func TestProblemNamesTheMissingEngine(t *testing.T) {
	s := testkit.NewStack(t, testkit.Options{Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: db.orders.read
    title: Read orders
    authority: read
    resource: db:orders
    ttl: {default: 1m, max: 5m}
    credential: {kind: database, mount: team/orders-db, role: reader}
`)}, {Name: "policies.cedar", Data: []byte(`@id("agents") permit (principal in Path::"spiffe://acme.test/agents", action, resource);`)}}})
	_, err := s.Client(t, agent).Request(t.Context(), client.Ask{Scope: "db.orders.read", Task: "triage-1"})
	var problem *client.Problem
	if !errors.As(err, &problem) || !errors.Is(err, client.ErrVaultRefused) {
		t.Fatalf("got %v, want the problem vault_refused", err)
	}
	if !strings.Contains(err.Error(), `"team/orders-db"`) || strings.Contains(problem.Detail, "bootstrap") {
		t.Errorf("got %q with the detail %q, want one that names the mount team/orders-db and does not advise bootstrap, which mounts no engines", err, problem.Detail)
	}
	if !strings.Contains(s.Log.String(), "team/orders-db") {
		t.Error("the log does not name the mount")
	}
}

// I10: while a store is down, calls get 503, no token is issued, and nothing is signed without a record. The service resumes when
// the store is up.
func TestNothingIsIssuedDuringAnOutage(t *testing.T) {
	// Readiness is checked once a second.
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: now})
	c := s.Client(t, agent)
	stack := testkit.Devstack(t)
	for _, tc := range []struct {
		name     string
		down, up func() error
		code     string
		readyz   string
	}{
		{
			"Vault sealed",
			func() error { return stack.Vault.Seal(t.Context()) },
			func() error { return stack.Vault.Unseal(t.Context()) },
			"vault_unavailable", `"ledger":"ok"`,
		},
		{
			"Postgres stopped",
			stack.Postgres.Stop,
			func() error { return stack.Postgres.Start(t.Context()) },
			"ledger_unavailable", `"ledger":"failing"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ahead.Add(int64(time.Second))
			signings := s.Signings(t)
			if err := tc.down(); err != nil {
				t.Fatal(err)
			}
			got := wire{}.send(t, s)
			if got.status != 503 || got.code != tc.code || got.header.Get("Retry-After") != "5" || strings.Contains(got.text, "eyJ") {
				t.Errorf("got %d %s, want %s", got.status, got.text, tc.code)
			}
			if _, _, text := get(t, s, "/readyz"); !strings.Contains(text, tc.readyz) || strings.Contains(text, "127.0.0.1") {
				t.Errorf("readiness says %s, want %s", text, tc.readyz)
			}
			if err := tc.up(); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				_, err := c.Request(t.Context(), read)
				return err
			})
			if tc.code == "ledger_unavailable" && s.Signings(t) != signings+1 {
				t.Error("Vault signed without a record")
			}
		})
	}
	s.DB.Check(t)
}

// eventually repeats try until it returns no error, for at most patience.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s: %v", patience, err)
		}
	}
}

// TestReadinessNamesMissingRights takes a right in Vault from a replica that starts.
func TestReadinessNamesMissingRights(t *testing.T) {
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	access := s.VaultAccess()
	text := strings.Replace(mint.Policy("transit", access.SigningKey, access.TokenRole), `path "auth/token/renew-accessor" {`, `path "auth/token/none" {`, 1)
	if err := s.Vault(t).Sys().PutPolicyWithContext(t.Context(), access.SigningKey, text); err != nil {
		t.Fatal(err)
	}
	s = s.FreshReplica(t)
	status, _, body := get(t, s, "/readyz")
	const want = `"vault: update on auth/token/renew-accessor":"failing"`
	if status != http.StatusServiceUnavailable || !strings.Contains(body, want) || !strings.Contains(s.Log.String(), "update on auth/token/renew-accessor") {
		t.Errorf("got %d %s, want 503 and %s, also in the log", status, body, want)
	}
}
