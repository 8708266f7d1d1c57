package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// standing is a fake Tokens that gives the same answer for every token. Its cache always says active.
type standing struct{ active bool }

func (s *standing) Cached(string, [32]byte) (broker.TokenState, bool) {
	return broker.TokenState{Active: true}, true
}

func (s *standing) WaitForReplicas(context.Context) {}

func (s *standing) TokenState(context.Context, string, [32]byte) (broker.TokenState, error) {
	return broker.TokenState{Active: s.active}, nil
}

func (s *standing) AliveAmong(_ context.Context, _ string, ids []string) ([]string, error) {
	if !s.active {
		return nil, nil
	}
	return ids, nil
}

func (s *standing) EndedIn(context.Context, string) ([]int, error) { return nil, broker.ErrNotFound }

// often returns the usual value eight times, and the others once.
func often[T any](usual T, others ...T) []T { return append(slices.Repeat([]T{usual}, 8), others...) }

// heldToken draws a token that research/agent-7 may hold, valid for the catalogue or not.
func heldToken(t *rapid.T, now time.Time, holder string) token.Claims {
	repo := rapid.SampledFrom([]string{"acme/api", "acme/web"}).Draw(t, "repo")
	c := token.Claims{
		Issuer: issuer, Subject: holder, ClientID: holder, ID: "parent", Task: "t-1",
		Audience: rapid.SampledFrom(often("https://gateway.acme.example", "https://elsewhere.example")).Draw(t, "audience"),
		Scope:    rapid.SampledFrom(often("github.issues.read", "github.issues.write", "github.issues.gone")).Draw(t, "scope"),
		Expires:  now.Add(time.Duration(rapid.Int64Range(-5, 2000).Draw(t, "left")) * time.Second).Unix(),
		OneShot:  rapid.IntRange(0, 9).Draw(t, "one_shot") == 0,
	}
	action := rapid.SampledFrom(often("read", "write")).Draw(t, "action")
	c.Details = []token.Detail{{
		Type: c.Scope, Actions: []string{action}, Locations: []string{c.Audience}, Identifier: "github:repo/" + repo,
		Params: map[string]any{"repo": repo},
	}}
	for i := range rapid.IntRange(0, 4).Draw(t, "actors") {
		if c.Actor == nil {
			c.Subject = "spiffe://acme.example/research/root"
		}
		c.Actor = &token.Actor{Subject: fmt.Sprintf("spiffe://acme.example/research/%d", i), Actor: c.Actor}
	}
	if c.Actor != nil {
		c.Actor.Subject = holder
	}
	if rapid.IntRange(0, 9).Draw(t, "bound") == 0 {
		c.Confirm = &token.Confirm{X5T: "x"}
	}
	return c
}

// A delegated token allows exactly what its parent allows and expires no later. Nothing else is minted, whatever the request.
func TestDelegatedTokenIsNoBroaderThanItsParent(t *testing.T) {
	f := newFixture(t)
	f.cfg.Ledger = &record{Ledger: f.tape}
	state := &standing{}
	f.useTokens(t, state)
	to := identityOf(t, "spiffe://acme.example/research/helper")
	stranger := identityOf(t, "spiffe://acme.example/sales/helper")
	handed := 0
	rapid.Check(t, func(t *rapid.T) {
		f.tape.records, f.tape.orders = nil, nil
		parent := heldToken(t, f.clock, f.who.ID().String())
		h := broker.TokenExchange{
			PresentedToken: broker.PresentedToken{Token: parent}, To: rapid.SampledFrom(often(to, stranger)).Draw(t, "to"),
			TTL: time.Duration(rapid.Int64Range(0, 4000).Draw(t, "ttl")) * time.Second,
		}
		state.active = rapid.IntRange(0, 9).Draw(t, "active") > 0
		who := rapid.SampledFrom(often(f.who, stranger)).Draw(t, "who")
		result, err := f.Delegate(t.Context(), who, h)
		if result.Credential == nil {
			var unfit *broker.NotExchangeableError
			if len(f.tape.orders) != 0 || err != nil && !errors.As(err, &unfit) || err == nil && result.Record.Status != broker.StatusDenied {
				t.Fatalf("got %+v, %v and %d orders, want it refused", result, err, len(f.tape.orders))
			}
			return
		}
		handed++
		var child token.Claims
		if err := json.Unmarshal(result.Record.Intent.Claims, &child); err != nil {
			t.Fatal(err)
		}
		if !state.active || who != f.who || h.To != to || parent.OneShot || parent.Confirm != nil || parent.Actors() >= broker.MaxActors {
			t.Fatalf("got %+v from what cannot be handed down: %+v", child, parent)
		}
		want := parent
		want.ID, want.IssuedAt, want.Expires = child.ID, child.IssuedAt, child.Expires
		want.ClientID, want.Actor = to.ID().String(), &token.Actor{Subject: to.ID().String(), Actor: parent.Actor}
		if diff := cmp.Diff(want, child); diff != "" {
			t.Fatalf("more than the end and the holder changed (-want +got):\n%s", diff)
		}
		most := min(parent.Expires, f.clock.Add(15*time.Minute).Unix())
		if h.TTL > 0 {
			most = min(most, f.clock.Add(h.TTL).Unix())
		}
		if child.Expires > most || child.Expires <= child.IssuedAt {
			t.Fatalf("it ends at %d, and %d is the latest", child.Expires, most)
		}
	})
	if handed == 0 {
		t.Error("nothing was handed down")
	}
}

// I3: a delegated token ends with its parent, however little longer it would live otherwise.
func TestDelegatedTokenEndsWithItsParent(t *testing.T) {
	f := newFixture(t)
	f.cfg.Ledger = &record{Ledger: f.tape}
	f.clock = f.clock.Truncate(time.Second)
	f.useTokens(t, &standing{active: true})
	self := f.who.ID().String()
	parent := token.Claims{
		Issuer: issuer, Subject: self, ClientID: self, ID: "parent", Task: "t-1", Scope: "github.issues.read",
		Audience: "https://gateway.acme.example", Expires: f.clock.Add(100 * time.Second).Unix(),
		Details: []token.Detail{{
			Type: "github.issues.read", Actions: []string{"read"}, Locations: []string{"https://gateway.acme.example"},
			Identifier: "github:repo/acme/api", Params: map[string]any{"repo": "acme/api"},
		}},
	}
	for asked, want := range map[time.Duration]time.Duration{
		99 * time.Second: 99 * time.Second, 100 * time.Second: 100 * time.Second, 101 * time.Second: 100 * time.Second, 0: 100 * time.Second,
		time.Hour: 100 * time.Second,
	} {
		result, err := f.Delegate(t.Context(), f.who, broker.TokenExchange{
			PresentedToken: broker.PresentedToken{Token: parent}, To: identityOf(t, "spiffe://acme.example/research/helper"), TTL: asked,
		})
		if err != nil || !result.Record.Expires.Equal(f.clock.Add(want)) {
			t.Errorf("asked for %s: got the end %s, %v, want %s after the start", asked, result.Record.Expires, err, want)
		}
	}
}

// record is a fake ledger in which every issuance has the same user.
type record struct {
	broker.Ledger
	user *scopes.User
}

func (r *record) Get(context.Context, string, broker.Reach) (*broker.View, error) {
	return &broker.View{RequestContext: scopes.RequestContext{Task: "t-1"}, User: r.user}, nil
}

// The signed token names the person that it acts for. If the record names another, Delegate refuses.
func TestDelegatedTokenKeepsItsPerson(t *testing.T) {
	f := newFixture(t)
	book := &record{Ledger: f.tape}
	f.cfg.Ledger = book
	f.useTokens(t, &standing{active: true})
	h := broker.TokenExchange{PresentedToken: broker.PresentedToken{Token: token.Claims{
		Issuer: issuer, Subject: f.who.ID().String(), ClientID: f.who.ID().String(), ID: "parent", Task: "t-1",
		Audience: "https://gateway.acme.example", Scope: "github.issues.read", Expires: f.clock.Add(5 * time.Minute).Unix(),
		Details: []token.Detail{{
			Type: "github.issues.read", Actions: []string{"read"}, Locations: []string{"https://gateway.acme.example"},
			Identifier: "github:repo/acme/api", Params: map[string]any{"repo": "acme/api"},
		}},
		OnBehalfOf: &token.Person{Issuer: "https://idp.test", Subject: "alice"},
	}}, To: identityOf(t, "spiffe://acme.example/research/helper")}
	for name, user := range map[string]*scopes.User{"nobody": nil, "Bob": {ID: "https://idp.test#bob"}} {
		book.user = user
		var unfit *broker.NotExchangeableError
		if result, err := f.Delegate(t.Context(), f.who, h); !errors.As(err, &unfit) {
			t.Errorf("%s: got %+v, %v, want it refused", name, result, err)
		}
	}
	book.user = &scopes.User{ID: "https://idp.test#alice"}
	result, err := f.Delegate(t.Context(), f.who, h)
	if err != nil || result.Record.Request.User != book.user {
		t.Errorf("got %+v, %v, want it on behalf of Alice", result.Record, err)
	}
}

// The ledger finds that the parent has ended since Delegate checked it. Nothing is minted, and the holder learns that the token
// is not active.
func TestTokenThatEndsDuringTheExchangeIsNotDelegated(t *testing.T) {
	f := newFixture(t)
	f.cfg.Ledger = &record{Ledger: f.tape}
	f.useTokens(t, &standing{active: true})
	f.tape.stopped = broker.ErrInactive
	h := broker.TokenExchange{PresentedToken: broker.PresentedToken{Token: token.Claims{
		Issuer: issuer, Subject: f.who.ID().String(), ClientID: f.who.ID().String(), ID: "parent", Task: "t-1",
		Audience: "https://gateway.acme.example", Scope: "github.issues.read", Expires: f.clock.Add(5 * time.Minute).Unix(),
		Details: []token.Detail{{
			Type: "github.issues.read", Actions: []string{"read"}, Locations: []string{"https://gateway.acme.example"},
			Identifier: "github:repo/acme/api", Params: map[string]any{"repo": "acme/api"},
		}},
	}}, To: identityOf(t, "spiffe://acme.example/research/helper")}
	result, err := f.Delegate(t.Context(), f.who, h)
	var unfit *broker.NotExchangeableError
	if !errors.As(err, &unfit) || unfit.Why != "is not active" || len(f.tape.orders) != 0 {
		t.Errorf("got %+v, %v and %d orders, want it refused as not active", result, err, len(f.tape.orders))
	}
	if len(f.tape.records) != 1 {
		t.Errorf("got %d records, want one attempt", len(f.tape.records))
	}
}
