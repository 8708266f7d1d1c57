package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

func svid(id, hint string) *x509svid.SVID {
	return &x509svid.SVID{ID: spiffeid.RequireFromString(id), Hint: hint}
}

func TestIdentityIsPickedByIDOrHint(t *testing.T) {
	t.Parallel()
	one, two, twin := svid("spiffe://acme.test/one", "internal"), svid("spiffe://acme.test/two", "external"), svid("spiffe://acme.test/three", "external")
	mimic := svid("spiffe://acme.test/mimic", "spiffe://acme.test/two")
	for name, tc := range map[string]struct {
		choice string
		given  []*x509svid.SVID
		want   *x509svid.SVID
		says   string
	}{
		"the only one":               {"", []*x509svid.SVID{one}, one, ""},
		"by its ID":                  {"spiffe://acme.test/two", []*x509svid.SVID{one, two}, two, ""},
		"by its hint":                {"external", []*x509svid.SVID{one, two}, two, ""},
		"several without a choice":   {"", []*x509svid.SVID{one, two}, nil, "spiffe://acme.test/one (hint internal), spiffe://acme.test/two (hint external); choose one"},
		"a hint of several":          {"external", []*x509svid.SVID{one, two, twin}, nil, "several SVIDs for external: spiffe://acme.test/two"},
		"one that is not among them": {"spiffe://acme.test/x", []*x509svid.SVID{one, two}, nil, "does not give spiffe://acme.test/x, but spiffe://acme.test/one"},
		"another than the only one":  {"external", []*x509svid.SVID{one}, nil, "does not give external"},
		"none":                       {"", nil, nil, "gives no SVID"},
		"a hint like an ID":          {"spiffe://acme.test/two", []*x509svid.SVID{mimic}, nil, "does not give spiffe://acme.test/two, but spiffe://acme.test/mimic"},
		"an ID beside such a hint":   {"spiffe://acme.test/two", []*x509svid.SVID{mimic, two}, two, ""},
	} {
		identity := client.NewIdentity(tc.choice)
		if got := identity.Pick(tc.given); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
		var problem *client.IdentityError
		if err := identity.Err(); (err != nil) != (tc.says != "") || err != nil && (!errors.As(err, &problem) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.says)
		}
	}
}

// If the Workload API starts to give a second SVID, before or after the first, the identity does not change.
func TestRotationNeverChangesTheIdentity(t *testing.T) {
	t.Parallel()
	one, renewed, two := svid("spiffe://acme.test/one", ""), svid("spiffe://acme.test/one", ""), svid("spiffe://acme.test/two", "")
	identity := client.NewIdentity("")
	identity.Pick([]*x509svid.SVID{one})
	for _, given := range [][]*x509svid.SVID{{two, renewed}, {renewed, two}} {
		if got := identity.Pick(given); got != renewed || identity.Err() != nil || identity.ID() != one.ID {
			t.Errorf("got %v, %v of %v, want the renewed SVID of the same identity", got, identity.Err(), given)
		}
	}
	if got := identity.Pick([]*x509svid.SVID{two}); got != renewed || identity.Err() == nil {
		t.Errorf("got %v, %v, want the last SVID of the identity and an error", got, identity.Err())
	}
	if got := identity.Pick([]*x509svid.SVID{renewed}); got != renewed || identity.Err() != nil {
		t.Errorf("got %v, %v, want the identity back", got, identity.Err())
	}
}
