package broker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/google/go-cmp/cmp"
)

// replicas records when the broker waits for other replicas.
type replicas struct {
	standing
	tape *tape
}

func (r *replicas) WaitForReplicas(context.Context) { r.tape.say("spread") }

// I6: an end is confirmed after it is recorded and every replica knows of it, and before Vault is asked.
func TestRevocationIsConfirmedOnceAllReplicasKnow(t *testing.T) {
	whole := broker.Reach{TrustDomains: []string{"acme.example"}}
	for name, tc := range map[string]struct {
		end  func(*testing.T, *fixture) error
		want []string
	}{
		"a task": {func(t *testing.T, f *fixture) error {
			_, err := f.EndTask(t.Context(), broker.TaskEnd{SPIFFEID: f.who.ID().String(), Task: "t-1"})
			return err
		}, []string{"announce task.end", "settle revoking task_ended", "spread", "revoke a", "settle revoked task_ended"}},
		"a task, later": {func(t *testing.T, f *fixture) error {
			_, err := f.EndTask(t.Context(), broker.TaskEnd{SPIFFEID: f.who.ID().String(), Task: "t-1", At: f.clock.Add(time.Hour)})
			return err
		}, []string{"announce task.end", "spread"}},
		"a revocation": {func(t *testing.T, f *fixture) error {
			_, err := f.Revoke(t.Context(), broker.Revocation{Target: broker.Selector{Scope: "reports.read"}, Reach: whole})
			return err
		}, []string{"announce credentials.revoke", "settle revoking revoked", "spread", "revoke a", "settle revoked revoked"}},
		"a quarantine": {func(t *testing.T, f *fixture) error {
			_, err := f.Quarantine(t.Context(), broker.QuarantineOrder{SPIFFEID: f.who.ID().String(), Reach: whole})
			return err
		}, []string{"announce quarantine.add", "settle revoking quarantined", "spread", "revoke a", "settle revoked quarantined"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.useTokens(t, &replicas{tape: f.tape})
			f.tape.live = []broker.LiveCredential{{
				ID: id(t, time.Minute, f.clock), Kind: "database", Status: broker.StatusIssued, VaultLease: broker.VaultLease{Accessor: "a"},
			}}
			if err := tc.end(t, f); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, f.tape.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// I6: Revoke also waits before it reports that nothing is alive, because somebody else may have just ended it.
func TestRevokeWaitsForReplicasWhenNothingIsLive(t *testing.T) {
	f := newFixture(t)
	f.useTokens(t, &replicas{tape: f.tape})
	_, err := f.Revoke(t.Context(), broker.Revocation{
		Target: broker.Selector{Scope: "reports.read"}, Reach: broker.Reach{TrustDomains: []string{"acme.example"}},
	})
	if diff := cmp.Diff([]string{"spread"}, f.tape.events); diff != "" || !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %v, events (-want +got):\n%s", err, diff)
	}
}

// One-shot tokens are always checked in the store. Other tokens are checked in the cache first.
func TestOneShotTokensBypassTheCache(t *testing.T) {
	f := newFixture(t)
	f.useTokens(t, &standing{active: false}) // which the cache does not know yet
	for _, tc := range []struct {
		token token.Claims
		want  error
	}{{token.Claims{}, nil}, {token.Claims{OneShot: true}, broker.ErrInactive}} {
		if err := f.InForce(t.Context(), broker.PresentedToken{Token: tc.token}); !errors.Is(err, tc.want) {
			t.Errorf("%+v: got %v, want %v", tc.token, err, tc.want)
		}
	}
}
