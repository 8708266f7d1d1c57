package httpapi_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// H102 and T2: if a second admin is required, nobody can extend their own rights.
func TestCatalogueNeedsASecondAdmin(t *testing.T) {
	t.Parallel()
	o := kept
	o.SecondAdmin = true
	s := testkit.NewStack(t, o)
	proposer, second := s.Client(t, chief), s.Replica(t).Client(t, deputy)
	base, next := digestOf(t, catalogue), withoutReading(t)
	digest := digestOf(t, next)
	approve := openapi.CatalogueDecision{Verdict: openapi.CatalogueApprove, Reason: "looked at it"}
	if _, err := second.DecideCatalogue(t.Context(), base, digest, approve); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("approving what nobody has proposed: got %v, want ErrNotFound", err)
	}
	var proposed openapi.CatalogueChange
	for range 2 { // repeating a proposal changes nothing
		got := apply(t, proposer, next)
		if got.State != openapi.CatalogueProposed || got.Version != 2 || proposed.ID != "" && got.ID != proposed.ID {
			t.Fatalf("got %+v, want it proposed", got)
		}
		proposed = got
	}
	token(t, s.Client(t, agent), read)
	if _, err := proposer.DecideCatalogue(t.Context(), base, digest, approve); code(err) != openapi.CodeOwnProposal {
		t.Errorf("approving one's own: got %v, want own_proposal", err)
	}
	if _, err := second.DecideCatalogue(t.Context(), noDigest, digest, approve); !errors.Is(err, client.ErrOtherCatalogue) {
		t.Errorf("approving for another catalogue: got %v, want ErrOtherCatalogue", err)
	}
	got, err := second.DecideCatalogue(t.Context(), base, digest, approve)
	if err != nil || got.State != openapi.CatalogueApplied || got.ID != proposed.ID || got.Actor != chief || got.Decider != deputy || got.DecidedReason != "looked at it" {
		t.Fatalf("got %+v, %v, want it applied by the second admin", got, err)
	}
	if _, err := s.Client(t, agent).Request(t.Context(), read); !errors.Is(err, client.ErrDenied) {
		t.Errorf("got %v, want it denied", err)
	}
	if _, err := second.DecideCatalogue(t.Context(), digest, digest, approve); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("approving again: got %v, want ErrNotFound", err)
	}
	s.DB.Check(t)
}

// A proposal is a change to the catalogue that was in force, so applying another catalogue voids it.
func TestProposalsAreRejectedAndSuperseded(t *testing.T) {
	t.Parallel()
	o := kept
	o.SecondAdmin = true
	s := testkit.NewStack(t, o)
	a, b := s.Client(t, chief), s.Client(t, deputy)
	one, two := changed(t, catalogue, "title: Read issues", "title: One"), changed(t, catalogue, "title: Read issues", "title: Two")
	base := digestOf(t, catalogue)
	decide := func(c *client.Client, verdict openapi.CatalogueVerdict, files []scopes.File) error {
		_, err := c.DecideCatalogue(t.Context(), base, digestOf(t, files), openapi.CatalogueDecision{Verdict: verdict})
		return err
	}
	apply(t, a, one)
	if err := decide(a, openapi.CatalogueReject, one); err != nil { // withdrawn by its proposer
		t.Error(err)
	}
	if err := decide(b, openapi.CatalogueApprove, one); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("approving what was rejected: got %v, want ErrNotFound", err)
	}
	apply(t, a, one)
	apply(t, b, two)
	if err := decide(b, openapi.CatalogueApprove, one); err != nil {
		t.Error(err)
	}
	base = digestOf(t, one)
	if err := decide(a, openapi.CatalogueApprove, two); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("approving what another was applied before: got %v, want ErrNotFound", err)
	}
	changes, err := a.CatalogueChanges(t.Context(), 10)
	var states []openapi.CatalogueState
	for _, c := range changes {
		states = append(states, c.State)
	}
	want := []openapi.CatalogueState{"superseded", "applied", "rejected", "applied"}
	if err != nil || !slices.Equal(states, want) {
		t.Errorf("got %v, %v, want %v", states, err, want)
	}
	s.DB.Check(t)
}

// If the ledger has no catalogue, there is none to read or change.
func TestNoCatalogueInForce(t *testing.T) {
	t.Parallel()
	o := kept
	o.Applied = false
	s := testkit.NewStack(t, o)
	c := s.Client(t, chief)
	if _, err := c.Catalogue(t.Context()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("reading: got %v, want ErrNotFound", err)
	}
	if _, err := c.ApplyCatalogue(t.Context(), noDigest, order(catalogue, "x")); !errors.Is(err, client.ErrOtherCatalogue) {
		t.Errorf("applying: got %v, want ErrOtherCatalogue", err)
	}
	if changes, err := c.CatalogueChanges(t.Context(), 1); err != nil || len(changes) != 0 {
		t.Errorf("got %v, %v, want no changes", changes, err)
	}
	s.DB.Check(t)
}
