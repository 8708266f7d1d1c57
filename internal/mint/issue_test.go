package mint_test

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/golang-jwt/jwt/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	brevetURL = "https://brevet.acme.example"
	gateway   = "https://gateway.acme.example"
)

// notebook is a ledger that accepts everything and keeps the last record. These tests are about minting, but only broker creates
// orders.
type notebook struct {
	last broker.Record
}

// nobodyVotes is never called in these tests.
type nobodyVotes struct{ broker.Approvals }

func (n *notebook) Begin(_ context.Context, rec broker.Record) (*broker.View, error) {
	n.last = rec
	return nil, nil
}
func (n *notebook) RecordOutcome(context.Context, broker.Outcome) error { return nil }
func (n *notebook) Refuse(context.Context, broker.Refusal) error        { return nil }
func (n *notebook) Get(context.Context, string, broker.Reach) (*broker.View, error) {
	return nil, broker.ErrNotFound
}

func (n *notebook) List(context.Context, broker.Query, broker.Reach) (broker.Page, error) {
	return broker.Page{}, nil
}

func (n *notebook) Announce(context.Context, broker.Command) error { return nil }
func (n *notebook) Live(context.Context, broker.Selector, broker.Reach, broker.LivePage) ([]broker.LiveCredential, error) {
	return nil, nil
}

func (n *notebook) Overdue(context.Context, broker.Overdue) ([]broker.LiveCredential, error) {
	return nil, nil
}

func (n *notebook) Deadlines(context.Context, int) ([]broker.Task, error) {
	return nil, nil
}

func (n *notebook) TaskEnded(context.Context, broker.Task, time.Time) (string, error) {
	return "", broker.ErrNotFound
}

func (n *notebook) RequestsOfEndedTasks(context.Context, broker.Task, int) ([]broker.EndedTaskRequest, error) {
	return nil, nil
}

func (n *notebook) Quarantines(context.Context, broker.Reach) ([]broker.Quarantine, error) {
	return nil, nil
}

const oneScope = `
scopes:
  - name: github.issues.read
    title: Read issues
    authority: read
    params: {repo: {type: string, pattern: '[a-z/-]+'}}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: '` + gateway + `'}
`

const onePolicy = `
@id("all")
permit (principal in Path::"spiffe://acme.example/research", action == Action::"github.issues.read", resource);
`

// issue calls a minter as the broker does.
func issue(t *testing.T, m broker.Minter, now func() time.Time) (broker.Result, *notebook, error) {
	t.Helper()
	return issueOf(t, m, now, oneScope)
}

// issueOf is issue with another definition of the scope.
func issueOf(t *testing.T, m broker.Minter, now func() time.Time, scope string) (broker.Result, *notebook, error) {
	t.Helper()
	catalogue, err := scopes.Load([]scopes.File{
		{Name: "scopes.yaml", Data: []byte(scope)}, {Name: "policy.cedar", Data: []byte(onePolicy)},
	})
	if err != nil {
		t.Fatal(err)
	}
	book := &notebook{}
	var none testkit.Unused
	b, err := broker.New(broker.Config{
		Ledger: book, Live: book, Approvals: nobodyVotes{}, Minter: m, Issuer: brevetURL, Now: now, Log: slog.New(slog.DiscardHandler),
		Feed: none, Usage: none, Stats: none, Tokens: none, Signer: none, DPoPReplayCache: none, Catalogues: none, Passkeys: none,
		Catalogue: func() *scopes.Catalogue { return catalogue },
	})
	if err != nil {
		t.Fatal(err)
	}
	result, err := testkit.Delivered(func(deliver broker.Deliver) error {
		return b.Issue(t.Context(), sandbox(t), broker.Request{
			Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, RequestContext: scopes.RequestContext{Task: "t-1"}, Reason: "triage",
		}, deliver)
	})
	return result, book, err
}

// sandbox authenticates with a JWT-SVID.
func sandbox(t *testing.T) attest.Identity {
	t.Helper()
	domain := spiffeid.RequireTrustDomainFromString("acme.example")
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: domain})
	if err != nil {
		t.Fatal(err)
	}
	attestor, err := attest.New(attest.Config{
		Bundles: issuer.Bundle(), TrustDomains: []spiffeid.TrustDomain{domain}, Audience: brevetURL, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	svid, err := issuer.JWTSVID(spiffeid.RequireFromString("spiffe://acme.example/research/agent-7"), brevetURL)
	if err != nil {
		t.Fatal(err)
	}
	who, err := attestor.JWT(svid)
	if err != nil {
		t.Fatal(err)
	}
	return who
}

// TestMintedTokenMatchesTheIntent signs a real order with the real Vault, with each algorithm.
func TestMintedTokenMatchesTheIntent(t *testing.T) {
	m := open(t, realVault(t).tokenKeys(t, "mint"))
	for algorithm, scope := range map[string]string{
		"ES256": oneScope, "EdDSA": strings.Replace(oneScope, "kind: jwt", "kind: jwt, algorithm: EdDSA", 1),
	} {
		t.Run(algorithm, func(t *testing.T) {
			result, book, err := issueOf(t, m, time.Now, scope)
			if err != nil {
				t.Fatal(err)
			}
			token := result.Credential.Secret.Reveal()
			if got := independently(t, m, token); got != string(book.last.Intent.Claims) {
				t.Errorf("got claims %s, want those of the record %s", got, book.last.Intent.Claims)
			}
			key, err := m.Key(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			parsed, _, err := jwt.NewParser().ParseUnverified(token, jwt.MapClaims{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"alg": algorithm, "kid": key.ID, "typ": "at+jwt"}
			for member, value := range want {
				if parsed.Header[member] != value {
					t.Errorf("header %s: got %v, want %v", member, parsed.Header[member], value)
				}
			}
			if len(parsed.Header) != len(want) {
				t.Errorf("got header %v, want %v alone", parsed.Header, want)
			}
		})
	}
}

// TestMintReleasesOnlyTheIntendedToken lies about the signature of a real order (I7).
func TestMintReleasesOnlyTheIntendedToken(t *testing.T) {
	key := p256(t)
	answer := func(sign func(text []byte) []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			inputs, _ := asked(r)
			reply(w, signed(1, base64.RawURLEncoding.EncodeToString(sign([]byte(inputs[0])))))
		}
	}
	stranger := p256(t)
	for _, tc := range []struct {
		name string
		lie  http.HandlerFunc
		late time.Duration // how far the minter's clock is ahead of the broker's
		want error
	}{
		{"as ordered", nil, 0, nil},
		{"another key signed", answer(func(text []byte) []byte { return signSent(stranger, text) }), 0, broker.ErrMintMismatch},
		{"other claims signed", answer(func(text []byte) []byte { return signSent(key, digestOf(text)) }), 0, broker.ErrMintMismatch},
		{"a longer signature", answer(func(text []byte) []byte { return append(signSent(key, text), 0) }), 0, broker.ErrMintMismatch},
		{"no signature", answer(func([]byte) []byte { return nil }), 0, broker.ErrMintMismatch},
		{"Vault is sealed", says(503, `{"errors":["Vault is sealed"]}`), 0, broker.ErrVaultUnavailable},
		{"expired before it was signed", nil, 5*time.Minute + 10*time.Second, broker.ErrVaultUnavailable},
		{"issued in the future", nil, -10 * time.Second, broker.ErrMintMismatch},
		{"within the leeway", nil, -3 * time.Second, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newImpostor(t, key)
			turned := &clock{now: time.Now()}
			cfg := knock(t, v.URL)
			cfg.Now = turned.Now
			m := open(t, cfg)
			v.lie(signPath, tc.lie)
			now := turned.Now()
			turned.Set(now.Add(tc.late))
			result, _, err := issue(t, m, func() time.Time { return now })
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if (result.Credential != nil) != (tc.want == nil) {
				t.Errorf("got credential %v", result.Credential)
			}
			if got := v.called(signPath); got != 1 {
				t.Errorf("got %d calls to sign, want 1", got)
			}
		})
	}
}
