package client

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Identity picks the X.509-SVID of one workload from those that the SPIFFE Workload API gives. Once it has picked one, it stays
// with that SPIFFE ID: a rotation never changes the workload's identity. It is safe for concurrent use.
//
//	identity := client.NewIdentity(os.Getenv("BREVET_SVID"))
//	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
//	if problem := identity.Err(); problem != nil { ... }
type Identity struct {
	choice string

	mu   sync.Mutex
	id   spiffeid.ID
	last *x509svid.SVID
	err  error
}

// NewIdentity returns an Identity for a choice: a SPIFFE ID, or the hint that the Workload API gives with an SVID. If choice is
// empty, the Workload API must give exactly one SVID.
func NewIdentity(choice string) *Identity { return &Identity{choice: choice} }

// Pick implements the picker of [workloadapi.WithDefaultX509SVIDPicker]. If the identity is not among svids, Pick returns the
// last SVID that it picked, or nil if there is none. Err then returns the reason.
func (i *Identity) Pick(svids []*x509svid.SVID) *x509svid.SVID {
	i.mu.Lock()
	defer i.mu.Unlock()
	var found []*x509svid.SVID
	for _, svid := range svids {
		fits := i.choice == "" || svid.Hint == i.choice
		if !i.id.IsZero() || namesID(i.choice) {
			fits = svid.ID.String() == i.wanted()
		}
		if fits {
			found = append(found, svid)
		}
	}
	switch {
	case len(found) == 1:
		i.id, i.last, i.err = found[0].ID, found[0], nil
	case len(found) == 0 && len(svids) > 0 && i.wanted() != "":
		i.err = &IdentityError{Wanted: i.wanted(), Given: describe(svids)}
	case len(svids) == 0:
		i.err = &IdentityError{Wanted: i.wanted()}
	default:
		i.err = &IdentityError{Wanted: i.choice, Given: describe(found)}
	}
	return i.last
}

// wanted returns the SPIFFE ID that was picked, or the choice before the first pick.
func (i *Identity) wanted() string {
	return cmp.Or(i.id.String(), i.choice)
}

// namesID reports whether a choice is a SPIFFE ID. Such a choice is never compared with hints, although a hint may be any text.
func namesID(choice string) bool { return strings.HasPrefix(choice, "spiffe://") }

// Err returns nil if the last response of the Workload API held the identity, and an [*IdentityError] otherwise.
func (i *Identity) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// ID returns the SPIFFE ID that was picked. It is zero before the first SVID.
func (i *Identity) ID() spiffeid.ID {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.id
}

// Leaf returns the certificate of the last SVID that was picked, or nil before the first.
func (i *Identity) Leaf() *x509.Certificate {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.last == nil || len(i.last.Certificates) == 0 {
		return nil
	}
	return i.last.Certificates[0]
}

// IdentityError means that the Workload API gave no SVID, several without a choice between them, or only SVIDs that are not the
// wanted one.
type IdentityError struct {
	// Wanted is the SPIFFE ID or hint that was chosen. It is empty without a choice.
	Wanted string
	// Given are the SVIDs that the Workload API gave, each as its SPIFFE ID and its hint.
	Given []string
}

func (e *IdentityError) Error() string {
	given := strings.Join(e.Given, ", ")
	switch {
	case len(e.Given) == 0:
		return "the Workload API gives no SVID"
	case e.Wanted == "":
		return fmt.Sprintf("the Workload API gives several SVIDs: %s; choose one by its SPIFFE ID or its hint", given)
	case slices.ContainsFunc(e.Given, func(one string) bool {
		return one == e.Wanted || !namesID(e.Wanted) && strings.HasSuffix(one, " (hint "+e.Wanted+")")
	}):
		return fmt.Sprintf("the Workload API gives several SVIDs for %s: %s; choose one by its SPIFFE ID", e.Wanted, given)
	default:
		return fmt.Sprintf("the Workload API does not give %s, but %s", e.Wanted, given)
	}
}

func describe(svids []*x509svid.SVID) []string {
	var all []string
	for _, svid := range svids {
		one := svid.ID.String()
		if svid.Hint != "" {
			one += " (hint " + svid.Hint + ")"
		}
		all = append(all, one)
	}
	return all
}
