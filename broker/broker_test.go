package broker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const issuer = "https://brevet.acme.example"

// tape is a fake for the ports. It logs the order of their calls, which shows whether a record comes before a mint. The real
// ports have their own tests.
type tape struct {
	mu       sync.Mutex
	events   []string
	records  []broker.Record
	outcomes []broker.Outcome
	orders   []*broker.Order
	beginErr error
	limited  *broker.Limited // the limit that the first record exceeds
	stopped  error           // the error for every record but a denial
	onBegin  func()
	mintErr  error
	earlier  *broker.View
	lifecycle
	broker.Approvals // not called here
}

func (p *tape) Begin(_ context.Context, rec broker.Record) (*broker.View, error) {
	p.events = append(p.events, "begin "+string(rec.Status))
	p.records = append(p.records, rec)
	if p.onBegin != nil {
		p.onBegin()
	}
	if p.stopped != nil && rec.Status != broker.StatusDenied {
		return nil, fmt.Errorf("begin: %w", p.stopped)
	}
	if p.limited != nil && len(p.records) == 1 {
		return nil, fmt.Errorf("begin: %w", p.limited)
	}
	return p.earlier, p.beginErr
}

func (p *tape) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, "settle "+string(out.Status)+" "+out.Detail)
	p.outcomes = append(p.outcomes, out)
	if p.onOutcome != nil {
		p.onOutcome()
	}
	if p.outcomeErr[out.Status] != nil {
		return p.outcomeErr[out.Status]
	}
	return ctx.Err()
}

func (p *tape) Refuse(_ context.Context, ref broker.Refusal) error {
	p.events = append(p.events, fmt.Sprintf("refuse %s suppressed=%d", ref.Code, ref.Suppressed))
	return p.beginErr
}

func (p *tape) Get(context.Context, string, broker.Reach) (*broker.View, error) {
	return nil, broker.ErrNotFound
}

func (p *tape) EqualRequest(context.Context, broker.Record, []string) (*broker.View, error) {
	return nil, nil //nolint:nilnil // there is none
}

func (p *tape) List(context.Context, broker.Query, broker.Reach) (broker.Page, error) {
	return broker.Page{}, nil
}

func (p *tape) Key(algorithm string) (broker.Key, error) {
	return broker.Key{ID: "kid-" + algorithm, Algorithm: algorithm, Version: 1}, nil
}

func (p *tape) Mint(_ context.Context, order *broker.Order) (broker.Credential, error) {
	p.events = append(p.events, "mint")
	p.orders = append(p.orders, order)
	intent, _, err := order.Spend()
	if err != nil {
		return broker.Credential{}, err
	}
	credential := broker.Credential{Secret: secret.New("h.p.s")}
	if intent.Grant != nil {
		credential.Minted = &broker.Minted{VaultLease: broker.VaultLease{Accessor: "accessor", Lease: "lease"}, Name: "name"}
	}
	return credential, p.mintErr
}

const catalogueScopes = `
scopes:
  - name: github.issues.read
    title: Read issues
    authority: read
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    limits:
      - {per: sandbox, count: 60, window: 1h}
      - {per: task, count: 7, window: 1s}
      - {per: trust_domain, count: 1000000, window: 1s}
    credential: {kind: jwt, audience: 'https://gateway.acme.example'}
  - name: reports.read
    title: Read reports
    authority: read
    resource: reports:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: database, mount: database, role: reporting}
  - name: github.issues.write
    title: Write issues
    authority: write
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, expires: 10m}
    credential: {kind: jwt, audience: 'https://gateway.acme.example'}
  - name: cloud.site.deploy
    title: Deploy a site
    authority: write
    params: {repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+'}}
    resource: cloud:site/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, expires: 10m}
    credential: {kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'repo:{repo}:deploy', exchange: {as: aws, role: 'arn:aws:iam::123456789012:role/site', region: eu-central-1}}}
`

const cataloguePolicies = `
@id("research-reads")
permit (principal in Path::"spiffe://acme.example/research", action == Action::"github.issues.read", resource);
@id("research-reports")
permit (principal in Path::"spiffe://acme.example/research", action == Action::"reports.read", resource);
@id("research-deploys")
permit (principal in Path::"spiffe://acme.example/research", action == Action::"cloud.site.deploy", resource)
when { context.approved };
@id("research-writes")
permit (principal in Path::"spiffe://acme.example/research", action == Action::"github.issues.write", resource)
when { context.approved };
`

// Issue returns what the broker delivered.
func (f *fixture) Issue(ctx context.Context, who attest.Identity, req broker.Request) (broker.Result, error) {
	return testkit.Delivered(func(deliver broker.Deliver) error { return f.Broker.Issue(ctx, who, req, deliver) })
}

// Delegate returns what the broker delivered.
func (f *fixture) Delegate(ctx context.Context, who attest.Identity, h broker.TokenExchange) (broker.Result, error) {
	return testkit.Delivered(func(deliver broker.Deliver) error { return f.Broker.Delegate(ctx, who, h, deliver) })
}

// noTokens is a store in which no token is in force.
type noTokens struct{ broker.Tokens }

func (noTokens) Cached(string, [32]byte) (broker.TokenState, bool) {
	return broker.TokenState{}, false
}

func (noTokens) TokenState(context.Context, string, [32]byte) (broker.TokenState, error) {
	return broker.TokenState{}, nil
}

func (noTokens) WaitForReplicas(context.Context) {}

// noCatalogues is a store in which no catalogue was ever applied.
type noCatalogues struct{ broker.Catalogues }

func (noCatalogues) InForce(context.Context) (broker.CatalogueVersion, error) {
	return broker.CatalogueVersion{}, nil
}

type fixture struct {
	*broker.Broker
	tape  *tape
	who   attest.Identity
	clock time.Time
	logs  *bytes.Buffer
	cfg   broker.Config
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	catalogue, err := scopes.Load([]scopes.File{
		{Name: "scopes.yaml", Data: []byte(catalogueScopes)},
		{Name: "policy.cedar", Data: []byte(cataloguePolicies)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var none testkit.Unused
	f := &fixture{tape: &tape{}, clock: time.Now(), logs: &bytes.Buffer{}}
	f.who = identity(t)
	f.cfg = broker.Config{
		Ledger: f.tape, Live: f.tape, Approvals: f.tape, DPoPReplayCache: f.tape, Minter: f.tape, Tokens: noTokens{}, Issuer: issuer,
		Feed: none, Usage: none, Stats: none, Signer: none, Catalogues: noCatalogues{}, Passkeys: none,
		Catalogue: func() *scopes.Catalogue { return catalogue },
		Now:       func() time.Time { return f.clock },
		Log:       slog.New(slog.NewTextHandler(f.logs, nil)),
	}
	f.useTokens(t, noTokens{})
	return f
}

// useTokens makes the broker use tokens.
func (f *fixture) useTokens(t *testing.T, tokens broker.Tokens) {
	t.Helper()
	f.cfg.Tokens = tokens
	var err error
	if f.Broker, err = broker.New(f.cfg); err != nil {
		t.Fatal(err)
	}
}

// identity returns the identity of a sandbox that authenticated with a real JWT-SVID: there is no other way to get one.
func identity(t *testing.T) attest.Identity {
	t.Helper()
	return identityOf(t, "spiffe://acme.example/research/agent-7")
}

func identityOf(t *testing.T, id string) attest.Identity {
	t.Helper()
	domain := spiffeid.RequireFromString(id).TrustDomain()
	authority, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: domain, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	attestor, err := attest.New(attest.Config{
		Bundles: authority.Bundle(), TrustDomains: []spiffeid.TrustDomain{domain}, Audience: issuer, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := authority.JWTSVID(spiffeid.RequireFromString(id), issuer)
	if err != nil {
		t.Fatal(err)
	}
	who, err := attestor.JWT(token)
	if err != nil {
		t.Fatal(err)
	}
	return who
}

func read() broker.Request {
	return broker.Request{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, RequestContext: scopes.RequestContext{Task: "t-1"}, Reason: "triage"}
}

func TestIssueOrdersEvents(t *testing.T) {
	write := read()
	write.Scope = "github.issues.write"
	other := read()
	other.Scope = "github.repo.delete"
	for _, tc := range []struct {
		name    string
		req     broker.Request
		prepare func(*tape)
		want    []string
		wantErr error
	}{
		{"allowed: recorded, then minted", read(), nil, []string{"begin issued", "mint"}, nil},
		{"denied: recorded, never minted", other, nil, []string{"begin denied"}, nil},
		{"pending: recorded, never minted", write, nil, []string{"begin pending"}, nil},
		{
			"no record, no mint (I1)", read(), func(p *tape) { p.beginErr = broker.ErrLedgerUnavailable },
			[]string{"begin issued"},
			broker.ErrLedgerUnavailable,
		},
		{
			"vault away: recorded as failed", read(), func(p *tape) { p.mintErr = broker.ErrVaultUnavailable },
			[]string{"begin issued", "mint", "settle failed vault_unavailable"},
			broker.ErrVaultUnavailable,
		},
		{
			"not what was ordered (I7)", read(), func(p *tape) { p.mintErr = broker.ErrMintMismatch },
			[]string{"begin issued", "mint", "settle failed mint_mismatch"},
			broker.ErrMintMismatch,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			if tc.prepare != nil {
				tc.prepare(f.tape)
			}
			result, err := f.Issue(t.Context(), f.who, tc.req)
			if !errors.Is(err, tc.wantErr) {
				t.Errorf("got error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, f.tape.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if minted := result.Credential != nil; minted != (tc.wantErr == nil && len(f.tape.orders) == 1) {
				t.Errorf("got a credential: %t", minted)
			}
		})
	}
}

func TestIssueRecordsFailureAfterDisconnect(t *testing.T) {
	f := newFixture(t)
	f.tape.mintErr = broker.ErrVaultUnavailable
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = f.Issue(ctx, f.who, read())
	if len(f.tape.outcomes) != 1 || f.logs.Len() != 0 {
		t.Errorf("got %d outcomes and log %q, want the outcome recorded", len(f.tape.outcomes), f.logs)
	}
}

func TestMintOrderIsUsedOnce(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Issue(t.Context(), f.who, read()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.tape.orders[0].Spend(); !errors.Is(err, broker.ErrOrderSpent) {
		t.Errorf("got %v, want %v", err, broker.ErrOrderSpent)
	}
}

// The intent holds every byte of the token but its signature, and the record holds its digest.
func TestIntentContainsTheWholeToken(t *testing.T) {
	f := newFixture(t)
	result, err := f.Issue(t.Context(), f.who, read())
	if err != nil {
		t.Fatal(err)
	}
	rec := result.Record
	var got map[string]any
	if err := json.Unmarshal(rec.Intent.Claims, &got); err != nil {
		t.Fatal(err)
	}
	sub := "spiffe://acme.example/research/agent-7"
	want := map[string]any{
		"iss": issuer, "sub": sub, "client_id": sub, "aud": "https://gateway.acme.example",
		"iat": float64(f.clock.Unix()), "exp": float64(f.clock.Add(5 * time.Minute).Unix()), "jti": rec.ID,
		"scope": "github.issues.read", "task": "t-1",
		"authorization_details": []any{map[string]any{
			"type": "github.issues.read", "actions": []any{"read"},
			"locations": []any{"https://gateway.acme.example"}, "identifier": "github:repo/acme/api",
			"params": map[string]any{"repo": "acme/api"},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if rec.Intent.ClaimsDigest != sha256.Sum256(rec.Intent.Claims) {
		t.Error("the digest in the record is not that of the claims")
	}
	if rec.Expires.After(rec.Time.Add(rec.Decision.TTL)) {
		t.Errorf("expires %s, later than %s was granted from %s", rec.Expires, rec.Decision.TTL, rec.Time)
	}
}

// T8: a repeated request gets no second credential.
func TestIdempotencyKeyUsedBefore(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Issue(t.Context(), f.who, read()); err != nil {
		t.Fatal(err)
	}
	digest := f.tape.records[0].Digest
	changed := read()
	changed.Reason = "another"
	for _, tc := range []struct {
		name    string
		req     broker.Request
		status  broker.Status
		wantErr error
	}{
		{"same request, issued", read(), broker.StatusIssued, broker.ErrAlreadyIssued},
		{"same request, denied", read(), broker.StatusDenied, nil},
		{"same request, pending", read(), broker.StatusPending, nil},
		{"same request, rejected", read(), broker.StatusRejected, nil},
		{"another request", changed, broker.StatusDenied, broker.ErrIdempotencyMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			decision := "pending"
			if tc.status == broker.StatusIssued {
				decision = "allow"
			}
			f.tape.orders, f.tape.earlier = nil, &broker.View{Decision: decision, Status: tc.status, RequestDigest: digest}
			result, err := f.Issue(t.Context(), f.who, tc.req)
			if !errors.Is(err, tc.wantErr) || (tc.wantErr == nil && result.Earlier == nil) {
				t.Errorf("got %v and earlier %v, want error %v", err, result.Earlier, tc.wantErr)
			}
			if len(f.tape.orders) != 0 || result.Credential != nil {
				t.Error("a credential was minted for a key that was used before")
			}
		})
	}
}

// I12: Close also records refusals that were only counted. A flood of unauthenticated calls hides no authenticated caller.
func TestCloseRecordsCountedRefusals(t *testing.T) {
	f := newFixture(t)
	for range 60 {
		if err := f.Refuse(t.Context(), broker.Refusal{Code: "unauthenticated"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Refuse(t.Context(), broker.Refusal{Code: "invalid_request", Subject: &broker.Subject{ID: f.who.ID()}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"refuse invalid_request suppressed=0", "refuse suppressed suppressed=10"}
	if diff := cmp.Diff(want, f.tape.events[50:]); diff != "" {
		t.Errorf("events after the first fifty (-want +got):\n%s", diff)
	}
}

// I12: calls that anybody can make through a gateway are recorded once a second per kind, and do not affect other refusals.
func TestUnauthenticatedGatewayCallsAreSampled(t *testing.T) {
	f := newFixture(t)
	refuse := func(times int, ref broker.Refusal) {
		t.Helper()
		ref.Relayed = true
		for range times {
			if err := f.Refuse(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	missing := broker.Refusal{Code: "missing", Detail: "token_missing", Unsigned: true}
	refuse(1000, missing)
	refuse(3, broker.Refusal{Code: "malformed", Detail: "token_malformed", Unsigned: true})
	refuse(2, broker.Refusal{Code: "expired", Detail: "token_expired"})
	f.clock = f.clock.Add(time.Second)
	refuse(10, missing)
	before := len(f.tape.events)
	want := []string{
		"refuse missing suppressed=0", "refuse malformed suppressed=0", "refuse expired suppressed=0", "refuse expired suppressed=0",
		"refuse missing suppressed=999",
	}
	if diff := cmp.Diff(want, f.tape.events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := slices.Sorted(slices.Values(f.tape.events[before:]))
	if diff := cmp.Diff([]string{"refuse suppressed suppressed=2", "refuse suppressed suppressed=9"}, rest); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}
}

// I12: what is not recorded is counted, also when the record fails, and the next record has the count.
func TestRefusalsAreSampledAndCountedExactly(t *testing.T) {
	f := newFixture(t)
	const calls = 80
	for range calls {
		if err := f.Refuse(t.Context(), broker.Refusal{Code: "unauthenticated"}); err != nil {
			t.Fatal(err)
		}
	}
	recorded := len(f.tape.events)
	if recorded != 50 {
		t.Errorf("got %d recorded in one second, want 50", recorded)
	}
	f.clock = f.clock.Add(time.Second)
	f.tape.beginErr = broker.ErrLedgerUnavailable
	if err := f.Refuse(t.Context(), broker.Refusal{Code: "unauthenticated"}); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
	f.tape.beginErr = nil
	if err := f.Refuse(t.Context(), broker.Refusal{Code: "unauthenticated"}); err != nil {
		t.Fatal(err)
	}
	// 30 over the rate, and one that the ledger failed to record.
	if got, want := f.tape.events[len(f.tape.events)-1], "refuse unauthenticated suppressed=31"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEveryPortIsRequired removes one port after the other.
func TestEveryPortIsRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, remove := range map[string]func(*broker.Config){
		"ledger": func(c *broker.Config) { c.Ledger = nil }, "live": func(c *broker.Config) { c.Live = nil },
		"approvals": func(c *broker.Config) { c.Approvals = nil }, "minter": func(c *broker.Config) { c.Minter = nil },
		"feed": func(c *broker.Config) { c.Feed = nil }, "usage": func(c *broker.Config) { c.Usage = nil },
		"stats": func(c *broker.Config) { c.Stats = nil }, "tokens": func(c *broker.Config) { c.Tokens = nil },
		"signer": func(c *broker.Config) { c.Signer = nil }, "replays": func(c *broker.Config) { c.DPoPReplayCache = nil },
		"catalogues": func(c *broker.Config) { c.Catalogues = nil }, "passkeys": func(c *broker.Config) { c.Passkeys = nil },
		"catalogue": func(c *broker.Config) { c.Catalogue = nil }, "issuer": func(c *broker.Config) { c.Issuer = "" },
		"clock": func(c *broker.Config) { c.Now = nil }, "log": func(c *broker.Config) { c.Log = nil },
	} {
		cfg := f.cfg
		remove(&cfg)
		if _, err := broker.New(cfg); err == nil {
			t.Errorf("a broker without %s was made", name)
		}
	}
}

// TestEveryContextFieldIsPartOfTheRequest checks that a request with another value in any field of its context has another digest,
// and that approvers see the value.
func TestEveryContextFieldIsPartOfTheRequest(t *testing.T) {
	f := newFixture(t)
	issue := func(field scopes.ContextField) broker.Record {
		t.Helper()
		req := read()
		req.Scope = "github.issues.write"
		req.Set(field.Name, field.Value)
		result, err := f.Issue(t.Context(), f.who, req)
		if err != nil || result.Record.Status != broker.StatusPending {
			t.Fatalf("got %+v, %v, want a pending request", result, err)
		}
		return result.Record
	}
	plain := issue(scopes.ContextField{})
	for _, field := range plain.Request.Fields() {
		field.Value = "another"
		got := issue(field)
		shown, err := approval.Canonical(got.Canonical).Shown()
		if err != nil || got.Digest == plain.Digest || !slices.Contains(shown.Fields(), field) {
			t.Errorf("%s: got the digest %x and %+v, %v, want another digest and the value", field.Name, got.Digest, shown, err)
		}
	}
}

// TestApproversSeeTheSubjectOfAFederatedToken checks that approvers see what another system grants permissions to, and that no key
// of the sandbox is named, because nobody would check it.
func TestApproversSeeTheSubjectOfAFederatedToken(t *testing.T) {
	f := newFixture(t)
	req := read()
	req.Scope, req.JKT = "cloud.site.deploy", "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
	result, err := f.Issue(t.Context(), f.who, req)
	if err != nil || result.Record.Status != broker.StatusPending {
		t.Fatalf("got %+v, %v, want a pending request", result, err)
	}
	shown, err := approval.Canonical(result.Record.Canonical).Shown()
	if err != nil || shown.FederatedSubject != "repo:acme/api:deploy" || shown.Audience != "sts.amazonaws.com" || shown.JKT != "" || shown.Exchange != "aws arn:aws:iam::123456789012:role/site" {
		t.Errorf("got %+v, %v", shown, err)
	}
}
