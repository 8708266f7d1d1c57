package testkit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// Package people accepts the ID tokens that a certified provider signs.
func TestProviderTokensAreAccepted(t *testing.T) {
	provider := testkit.Provider(t)
	verifier, err := people.New(people.Config{Issuer: provider.Issuer, ClientID: provider.ClientID, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for username, groups := range map[string][]string{"alice": {"engineers", "oncall"}, "erin": nil} {
		person, err := verifier.Identify(t.Context(), provider.IDToken(t, username))
		if err != nil {
			t.Fatalf("%s: %v", username, err)
		}
		if got, want := person.ID(), provider.Issuer+"#"+username; got != want {
			t.Errorf("got id %q, want %q", got, want)
		}
		if person.Handle() != username || !slices.Equal(person.Groups(), groups) {
			t.Errorf("got handle %q and groups %q, want %q and %q", person.Handle(), person.Groups(), username, groups)
		}
		if got := person.Expires().Sub(person.Issued()); got != 10*time.Minute {
			t.Errorf("got a life of %s, want 10m", got)
		}
	}
}
