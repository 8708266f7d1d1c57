package testkit

import (
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
)

const clientID = "brevet"

// DelegationAudience is of ID tokens by which a sandbox may ask on behalf of a person.
const DelegationAudience = "https://agents.test"

func (s *Stack) openProvider(t testing.TB) {
	t.Helper()
	if len(s.options.People) == 0 {
		return
	}
	var err error
	s.provider, err = devstack.NewProvider(devstack.ProviderConfig{
		Address: "127.0.0.1:0", ClientID: clientID, People: s.options.People, Now: s.options.Now,
	})
	if err != nil {
		t.Fatalf("starting the provider of people: %v", err)
	}
	t.Cleanup(func() { _ = s.provider.Close() })
}

// verifier is nil when the stack knows nobody.
func (s *Stack) verifier(t testing.TB) *people.Verifier {
	t.Helper()
	if s.options.OIDC != nil {
		v, err := people.New(people.Config{Issuer: s.options.OIDC.Issuer, ClientID: s.options.OIDC.ClientID, Now: s.options.Now})
		if err != nil {
			t.Fatalf("recognising people: %v", err)
		}
		return v
	}
	if s.provider == nil {
		return nil
	}
	v, err := people.New(people.Config{Issuer: s.provider.Issuer(), ClientID: clientID, Delegations: s.options.Delegations, Now: s.options.Now})
	if err != nil {
		t.Fatalf("recognising people: %v", err)
	}
	return v
}

func (s *Stack) approvalPolicy(t testing.TB) broker.ApprovalPolicy {
	t.Helper()
	rules, err := people.NewRules(s.options.Rules)
	if err != nil {
		t.Fatal(err)
	}
	owners, err := people.NewOwners(s.options.Owners)
	if err != nil {
		t.Fatal(err)
	}
	return broker.ApprovalPolicy{Rules: rules, Owners: owners}
}

// Person calls as somebody whom the stack's provider knows.
func (s *Stack) Person(t testing.TB, username string) *client.Client {
	t.Helper()
	anyone, err := client.New(client.Config{BaseURL: s.URL}, client.WithServer(s.bundles, s.IsBrevet()))
	if err != nil {
		t.Fatal(err)
	}
	person, err := anyone.AsPerson(s.provider.Person(username))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(person.Close)
	return person
}

// Know has the stack's provider know somebody, or say something else of them from now on.
func (s *Stack) Know(person devstack.DevPerson) { s.provider.Know(person) }

// Issuer is that of the people whom the stack's provider knows.
func (s *Stack) Issuer() string { return s.provider.Issuer() }

// IDToken is a login of somebody whom the stack's provider knows.
func (s *Stack) IDToken(t testing.TB, username string) string {
	t.Helper()
	return s.IDTokenFor(t, clientID, username)
}

// IDTokenFor is an ID token of that somebody for an audience.
func (s *Stack) IDTokenFor(t testing.TB, audience, username string) string {
	t.Helper()
	token, err := s.provider.IDTokenFor(audience, username)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
