package scopes_test

import (
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

const openHosts = `{kind: none}
    egress: [{hosts: [registry.example], methods: [GET, HEAD], paths: ['/{name}', '/{name}/-/*'], headers: [x-client-*]}]`

// A scope without a credential opens hosts: it has egress rules, no way to send anything, and nothing for Vault.
func TestScopeWithoutCredentialIsRead(t *testing.T) {
	c, err := scopes.Load(oneScope(openHosts))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := c.Scope("one.scope")
	if diff := cmp.Diff(scopes.Credential{Kind: scopes.KindNone}, s.Credential); diff != "" {
		t.Errorf("credential (-want +got):\n%s", diff)
	}
	want := []scopes.Egress{{
		Hosts: []string{"registry.example"}, Methods: []string{"GET", "HEAD"}, Paths: []string{"/{name}", "/{name}/-/*"}, Headers: []string{"x-client-*"},
	}}
	if diff := cmp.Diff(want, s.Egress); diff != "" {
		t.Errorf("egress (-want +got):\n%s", diff)
	}
	if got := s.Credential.Summary(); got != "no credential: opens hosts" {
		t.Errorf("got the summary %q", got)
	}
	if got := c.VaultPolicies(); len(got) != 0 {
		t.Errorf("got policies for Vault: %v", got)
	}
	if s.Credential.Leased() || s.Credential.AccessToken() || s.Credential.Federated() {
		t.Error("the scope is taken for one with a credential")
	}
}

// Policy, parameters and TTL of a scope without a credential are those of every other scope.
func TestScopeWithoutCredentialIsDecidedLikeOthers(t *testing.T) {
	c := load(t, replace(t, worldScopes, mailJWT, "{kind: none}\n    egress: ["+mailRule+"]\n"), worldPolicies)
	for _, ask := range []struct {
		scope string
		ttl   time.Duration
	}{{"mail.read", 0}, {"mail.read", 24 * time.Hour}} {
		want, err := world(t).Decide(boundSubject("spiffe://acme.test/agents/a"), scopes.Ask{Scope: ask.scope, TTL: ask.ttl, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Decide(boundSubject("spiffe://acme.test/agents/a"), scopes.Ask{Scope: ask.scope, TTL: ask.ttl, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
		if err != nil || got.Outcome != want.Outcome || got.TTL != want.TTL || got.Grant != nil {
			t.Errorf("%s for %s: got %s for %s (%v), want %s for %s without a grant", ask.scope, ask.ttl, got.Outcome, got.TTL, err, want.Outcome, want.TTL)
		}
	}
	_, err := c.Decide(subject("spiffe://acme.test/agents/a"), scopes.Ask{Scope: "mail.read", CSR: "x", RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err == nil {
		t.Error("a request with a key for a certificate was decided")
	}
}
