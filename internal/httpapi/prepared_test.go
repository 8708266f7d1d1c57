package httpapi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// withAlso returns a catalogue whose scope vault.notes.read needs a policy that Vault does not have.
func withAlso(t *testing.T, capability string) []scopes.File {
	return changed(t, catalogue, "capabilities: [read]}]}", "capabilities: [read, "+capability+"]}]}")
}

// policyOf returns the policy of vault.notes.read.
func policyOf(t *testing.T, files []scopes.File) scopes.VaultPolicy {
	t.Helper()
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.VaultPolicies() {
		if p.Scope() == "vault.notes.read" {
			return p
		}
	}
	t.Fatal("vault.notes.read has no policy")
	return scopes.VaultPolicy{}
}

// refusedUnprepared checks that a change is refused, and that the answer names the scope and the policy.
func refusedUnprepared(t *testing.T, err error, files []scopes.File) {
	t.Helper()
	p, ok := errors.AsType[*client.Problem](err)
	if !ok || p.Code != openapi.CodeVaultNotPrepared || p.Status != 409 || !strings.Contains(p.Detail, "brevet bootstrap") {
		t.Fatalf("got %v, want vault_not_prepared with the command to run", err)
	}
	want := "scope vault.notes.read needs the policy " + policyOf(t, files).Name
	if len(p.Problems) != 1 || p.Problems[0].What != want {
		t.Errorf("got %+v, want only %q", p.Problems, want)
	}
}

// A catalogue whose scopes Vault cannot serve is not put in force, unless an admin forces it. Then the record says so.
func TestCatalogueThatVaultCannotServeIsRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	c, vault := s.Client(t, chief), s.Vault(t)
	base, next := digestOf(t, catalogue), withAlso(t, "update")
	_, err := c.ApplyCatalogue(t.Context(), base, order(next, "x"))
	refusedUnprepared(t, err, next)
	if now, err := c.Catalogue(t.Context()); err != nil || now.Digest != base {
		t.Fatalf("got %v, %v, want the first catalogue", now.Digest, err)
	}

	policy := policyOf(t, next)
	if err := vault.Sys().PutPolicyWithContext(t.Context(), policy.Name, policy.Text); err != nil {
		t.Fatal(err)
	}
	role := "auth/token/roles/" + s.VaultAccess().TokenRole
	allow := func(glob string) {
		t.Helper()
		if _, err := vault.Logical().WriteWithContext(t.Context(), role, map[string]any{"allowed_policies_glob": []string{glob}}); err != nil {
			t.Fatal(err)
		}
	}
	allow("another-scope.*")
	_, err = c.ApplyCatalogue(t.Context(), base, order(next, "x"))
	refusedUnprepared(t, err, next)
	allow(scopes.PolicyPrefix + "*")
	if got := apply(t, c, next); got.Forced || got.State != openapi.CatalogueApplied {
		t.Errorf("got %+v, want it applied and not forced", got)
	}

	other := withAlso(t, "delete")
	insist := order(other, "now")
	insist.Force = true
	got, err := c.ApplyCatalogue(t.Context(), digestOf(t, next), insist)
	if err != nil || !got.Forced || got.State != openapi.CatalogueApplied {
		t.Fatalf("got %+v, %v, want it applied and forced", got, err)
	}
	// What Vault lacks already does not stand in the way of another change, and an order that need not force is not recorded as forced.
	insist = order(changed(t, other, "title: Read issues", "title: Read all issues"), "a title")
	if got := apply(t, c, changed(t, other, "title: Read issues", "title: Read the issues")); got.Forced {
		t.Errorf("got %+v, want it applied and not forced", got)
	}
	insist.Force = true
	if got, err := c.ApplyCatalogue(t.Context(), digestOf(t, changed(t, other, "title: Read issues", "title: Read the issues")), insist); err != nil || got.Forced {
		t.Errorf("got %+v, %v, want it applied and not forced", got, err)
	}
	history, err := c.CatalogueChanges(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range history {
		if want := change.Digest == digestOf(t, other); change.Forced != want {
			t.Errorf("%s: got forced %t, want %t", change.Digest, change.Forced, want)
		}
	}
	for _, e := range s.DB.Entries(t) {
		if forced, _ := e.Body["forced"].(bool); strings.HasPrefix(e.Kind, "catalogue.") && forced != (e.Body["digest"] == digestOf(t, other)) {
			t.Errorf("entry %d: got forced %t", e.Index, forced)
		}
	}
	noProbeLeft(t, s)
	if err := vault.Sys().DeletePolicyWithContext(t.Context(), policy.Name); err != nil { // Vault is shared, and so may the name be
		t.Error(err)
	}
	s.DB.Check(t)
}

// noProbeLeft checks that Vault has no token of this stack's checks any more.
func noProbeLeft(t *testing.T, s *testkit.Stack) {
	t.Helper()
	vault := s.Vault(t)
	all, err := vault.Logical().ListWithContext(t.Context(), "auth/token/accessors")
	if err != nil {
		t.Fatal(err)
	}
	for _, accessor := range all.Data["keys"].([]any) {
		held, err := vault.Auth().Token().LookupAccessorWithContext(t.Context(), accessor.(string))
		if err == nil && held.Data["display_name"] == "token-brevet-check" && held.Data["role"] == s.VaultAccess().TokenRole {
			t.Errorf("got the token of a check, with %v, want it revoked", held.Data["policies"])
		}
	}
}

// If Vault does not answer, nobody knows whether the new scopes can work. A change that adds no policy does not need Vault.
func TestCatalogueIsRefusedWhileVaultIsDown(t *testing.T) {
	t.Parallel()
	var relay *testkit.Relay
	o := kept
	o.VaultVia = func(addr string) (through string) {
		relay, through = testkit.RelayTo(t, addr)
		return through
	}
	s := testkit.NewStack(t, o)
	c, base, next := s.Client(t, chief), digestOf(t, catalogue), withAlso(t, "update")
	relay.Cut()
	_, err := c.ApplyCatalogue(t.Context(), base, order(next, "x"))
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Code != openapi.CodeVaultUnavailable || p.Status != 503 || p.Title != "Vault did not answer" {
		t.Fatalf("got %v, want 503 vault_unavailable", err)
	}
	title := changed(t, catalogue, "title: Read issues", "title: Read the issues")
	if got := apply(t, c, title); got.Forced {
		t.Errorf("got %+v, want it applied and not forced", got)
	}
	insist := order(next, "now")
	insist.Force = true
	if got, err := c.ApplyCatalogue(t.Context(), digestOf(t, title), insist); err != nil || !got.Forced {
		t.Errorf("got %+v, %v, want it applied and forced", got, err)
	}
	s.DB.Check(t)
}

// Where a second admin is required, Vault is checked at the proposal and again at the approval. Each admin forces for themselves.
func TestProposalThatVaultCannotServeIsRefused(t *testing.T) {
	t.Parallel()
	o := kept
	o.SecondAdmin = true
	s := testkit.NewStack(t, o)
	proposer, second := s.Client(t, chief), s.Client(t, deputy)
	base, next := digestOf(t, catalogue), withAlso(t, "list")
	_, err := proposer.ApplyCatalogue(t.Context(), base, order(next, "x"))
	refusedUnprepared(t, err, next)
	insist := order(next, "soon")
	insist.Force = true
	if got, err := proposer.ApplyCatalogue(t.Context(), base, insist); err != nil || !got.Forced || got.State != openapi.CatalogueProposed {
		t.Fatalf("got %+v, %v, want it proposed and forced", got, err)
	}
	approve := openapi.CatalogueDecision{Verdict: openapi.CatalogueApprove, Reason: "fine"}
	_, err = second.DecideCatalogue(t.Context(), base, digestOf(t, next), approve)
	refusedUnprepared(t, err, next)
	approve.Force = true
	if got, err := second.DecideCatalogue(t.Context(), base, digestOf(t, next), approve); err != nil || !got.Forced || got.State != openapi.CatalogueApplied {
		t.Errorf("got %+v, %v, want it applied and forced", got, err)
	}
	s.DB.Check(t)
}
