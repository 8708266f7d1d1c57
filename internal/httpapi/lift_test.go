package httpapi_test

import (
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// A quarantine whose replica died right after recording it has revoked nothing yet, but the tokens of its sandboxes are inactive.
// Lifting it then reactivates none of them on any replica (I13). What is issued after the lift is in force, and a second lift
// ends none of it.
func TestLiftedQuarantineReactivatesNothing(t *testing.T) {
	t.Parallel()
	options := withServers
	options.Auditors, options.Admins = []string{auditor}, []string{admin, outsider}
	s := testkit.NewStack(t, options)
	other := s.Replica(t)
	for _, name := range []string{agent, "spiffe://acme.test/agents", "spiffe://acme.test"} {
		t.Run(name, func(t *testing.T) {
			c := s.Client(t, agent)
			before, leased := token(t, c, read), token(t, c, client.Ask{Scope: "vault.notes.read", Task: "triage-1"})
			bystander := token(t, s.Client(t, twin), client.Ask{Scope: "git.issues.list", Task: "triage-1"})
			recordQuarantine(t, s, name)
			for _, on := range []*testkit.Stack{s, other} {
				eventuallyInactive(t, on, before)
			}
			if err := other.Client(t, outsider).Unquarantine(t.Context(), name, "all well"); err != nil {
				t.Fatal(err)
			}
			for _, on := range []*testkit.Stack{s, other} {
				if got := introspected(t, on, gitServer, before.Secret.Reveal()); got != inactive {
					t.Errorf("I13: got %s of a token that was inactive before the lift", got)
				}
			}
			for _, tok := range []*client.Token{before, leased} {
				one, err := s.Client(t, auditor).Issuance(t.Context(), tok.ID)
				if err != nil || one.Status != "revoked" || one.StatusDetail != "quarantined" || one.EndedBy != admin {
					t.Errorf("got the record %+v, %v, want it revoked by the quarantine, of %s", one, err, admin)
				}
			}
			if state, err := s.Client(t, twin).State(t.Context(), bystander.ID); err != nil || (state.Status == "issued") != (name == agent) {
				t.Errorf("a sandbox beside it: got %+v, %v", state, err)
			}
			after := token(t, c, read)
			if err := s.Client(t, outsider).Unquarantine(t.Context(), name, ""); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("lifting it again: got %v, want ErrNotFound", err)
			}
			if got := introspected(t, other, gitServer, after.Secret.Reveal()); got == inactive {
				t.Error("what was issued after the lift is not in force")
			}
			revokeAll(t, s.Client(t, admin))
		})
	}
	s.DB.Check(t)
}

// recordQuarantine records the order of an admin, and does not execute it.
func recordQuarantine(t *testing.T, s *testkit.Stack, name string) {
	t.Helper()
	err := s.DB.Ledger(t).Announce(t.Context(), broker.Command{
		ID: uuid.Must(uuid.NewV7()).String(), Time: time.Now(), Kind: broker.CommandQuarantineAdd,
		Target: broker.Selector{SPIFFEID: name}, Reason: "odd",
		Actor: &broker.Actor{Workload: broker.Subject{ID: spiffeid.RequireFromString(admin), Kind: "x509", Thumbprint: "dGh1bWI"}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eventuallyInactive waits until a replica reports a token as inactive.
func eventuallyInactive(t *testing.T, s *testkit.Stack, tok *client.Token) {
	t.Helper()
	eventually(t, func() error {
		if got := introspected(t, s, gitServer, tok.Secret.Reveal()); got != inactive {
			return errors.New(got)
		}
		return nil
	})
}
