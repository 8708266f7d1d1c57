package testkit

import (
	"testing"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
)

const clientID = "brevet"

// DelegationAudience is the audience of ID tokens that let a sandbox make requests on behalf of a person.
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

// verifier returns nil if the stack has no people.
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

func (s *Stack) approvalPolicy(t testing.TB) approval.Policy {
	t.Helper()
	rules, err := people.NewRules(s.options.Rules)
	if err != nil {
		t.Fatal(err)
	}
	owners, err := people.NewOwners(s.options.Owners)
	if err != nil {
		t.Fatal(err)
	}
	return approval.Policy{Rules: rules, Owners: owners}
}

// Person returns a client that calls as a person whom the stack's provider knows.
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

// Know adds a person to the stack's provider, or changes the claims of later tokens.
func (s *Stack) Know(person devstack.DevPerson) { s.provider.Know(person) }

// Issuer returns the issuer of the stack's provider of people.
func (s *Stack) Issuer() string { return s.provider.Issuer() }

// IDToken returns an ID token of a person whom the stack's provider knows.
func (s *Stack) IDToken(t testing.TB, username string) string {
	t.Helper()
	return s.IDTokenFor(t, clientID, username)
}

// IDTokenFor is like IDToken, but for the given audience.
func (s *Stack) IDTokenFor(t testing.TB, audience, username string) string {
	t.Helper()
	token, err := s.provider.IDTokenFor(audience, username)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
