package broker_test

import (
	"errors"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/google/go-cmp/cmp"
)

func TestReachOf(t *testing.T) {
	for name, tc := range map[string]struct {
		prefixes []string
		want     broker.Reach
	}{
		"nothing": {nil, broker.Reach{}},
		"a trust domain and a path of another": {
			[]string{"spiffe://b.example/x", "spiffe://a.example"},
			broker.Reach{TrustDomains: []string{"a.example"}, Within: []string{"spiffe://b.example/x"}},
		},
		"what is below another, or there twice": {
			[]string{"spiffe://a.example/x/y", "spiffe://a.example/x-y", "spiffe://a.example/x", "spiffe://a.example/x"},
			broker.Reach{Within: []string{"spiffe://a.example/x", "spiffe://a.example/x-y"}},
		},
		"a path of a trust domain that is there": {
			[]string{"spiffe://a.example/x", "spiffe://a.example"}, broker.Reach{TrustDomains: []string{"a.example"}},
		},
		"no SPIFFE IDs": {[]string{"", "spiffe://", "spiffe:", "a.example", "spiffe://a.example/"}, broker.Reach{}},
	} {
		if diff := cmp.Diff(tc.want, broker.ReachOf(tc.prefixes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// I14: a path reaches what is below it, and nothing that only begins like it.
func TestReachCovers(t *testing.T) {
	r := broker.ReachOf([]string{"spiffe://a.example", "spiffe://b.example/x"})
	for id, want := range map[string]bool{
		"spiffe://a.example": true, "spiffe://a.example/x": true, "spiffe://b.example/x": true, "spiffe://b.example/x/y": true,
		"spiffe://b.example": false, "spiffe://b.example/xy": false, "spiffe://b.example/x-y": false, "spiffe://c.example/x": false,
		"": false, "spiffe://": false, "a.example": false, "spiffe://b.example/x/../y": false,
	} {
		if got := r.Covers(id); got != want {
			t.Errorf("%q: got %t, want %t", id, got, want)
		}
	}
	if (broker.Reach{All: true, Subject: "spiffe://a.example/x"}).Covers("spiffe://a.example/x") {
		t.Error("somebody covers what neither a trust domain nor a path gives them")
	}
}

// An admin whose reach is a path can quarantine what is at or below it, but never the whole trust domain.
func TestPathAdminCannotQuarantineTheTrustDomain(t *testing.T) {
	f := newFixture(t)
	within := broker.ReachOf([]string{"spiffe://acme.example/research"})
	for name, wantErr := range map[string]error{
		"spiffe://acme.example/research": nil, "spiffe://acme.example/research/a": nil,
		"spiffe://acme.example": broker.ErrNotFound, "spiffe://acme.example/researchers": broker.ErrNotFound,
		"spiffe://other.example/research": broker.ErrNotFound,
	} {
		order := broker.QuarantineOrder{Actor: broker.Actor{Person: "https://idp#alice"}, SPIFFEID: name, Reach: within}
		if _, err := f.Quarantine(t.Context(), order); !errors.Is(err, wantErr) {
			t.Errorf("%s: got %v, want %v", name, err, wantErr)
		}
		if err := f.Unquarantine(t.Context(), order); !errors.Is(err, wantErr) {
			t.Errorf("lifting %s: got %v, want %v", name, err, wantErr)
		}
	}
}

// Quarantines apply to workloads. People can lift any quarantine within their reach.
func TestQuarantineDoesNotApplyToPeople(t *testing.T) {
	f := newFixture(t)
	f.tape.quarantines = []broker.Quarantine{{SPIFFEID: "spiffe://acme.example", Actor: "spiffe://acme.example/ops"}}
	for name, tc := range map[string]struct {
		actor broker.Actor
		want  error
	}{
		"a workload of it": {broker.WorkloadActor(f.who), broker.ErrNotFound},
		"a person":         {broker.Actor{Person: "https://idp#alice"}, nil},
	} {
		lift := broker.QuarantineOrder{
			Actor: tc.actor, SPIFFEID: "spiffe://acme.example", Reach: broker.ReachOf([]string{"spiffe://acme.example"}),
		}
		if err := f.Unquarantine(t.Context(), lift); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}
