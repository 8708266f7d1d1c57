package broker_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/broker"
)

// Sandboxes of a few trust domains can take all places of followers for as long as they like. Auditors still get theirs.
func TestFollowingSandboxesLeavePlacesForAuditors(t *testing.T) {
	f := newFixture(t)
	taken := 0
	for domain := range 4 {
		for n := range 400 {
			id := fmt.Sprintf("spiffe://loud%d.example/agents/%d", domain, n%100)
			if _, err := f.Follow(id, broker.Reach{Subject: id}); err == nil {
				taken++
			} else if !errors.Is(err, broker.ErrCrowded) {
				t.Fatal(err)
			}
		}
	}
	quiet := "spiffe://quiet.example/agents/1"
	if _, err := f.Follow(quiet, broker.Reach{Subject: quiet}); !errors.Is(err, broker.ErrCrowded) || taken != 200 {
		t.Fatalf("got %v with %d places taken, want ErrCrowded with all 200", err, taken)
	}
	everything := broker.ReachOf([]string{"spiffe://loud0.example", "spiffe://quiet.example"})
	for _, auditor := range []string{"https://idp.example#olga", "https://idp.example#paul", "spiffe://loud0.example/siem", "spiffe://quiet.example/siem"} {
		for n := range 4 {
			if _, err := f.Follow(auditor, everything); err != nil {
				t.Errorf("stream %d of the auditor %s: got %v", n, auditor, err)
			}
		}
		if _, err := f.Follow(auditor, everything); !errors.Is(err, broker.ErrCrowded) {
			t.Errorf("stream 4 of the auditor %s: got %v, want ErrCrowded", auditor, err)
		}
	}
}
