package broker

import (
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Reach limits what a reader may see. It is never empty: the zero value reaches nothing.
type Reach struct {
	// Subject, when set, reaches that sandbox's own records only.
	Subject string
	// TrustDomains reaches all records of these trust domains, and Within those of SPIFFE IDs at or below these: what
	// either reaches is within reach.
	TrustDomains, Within []string
	// All reaches everything: for Brevet's own upkeep, and for no caller ever.
	All bool
}

// ReachOf is how far SPIFFE IDs, paths and trust domains (as "spiffe://" and their name) reach. Whatever is none of
// these reaches nothing. The same reach always has the same form.
func ReachOf(prefixes []string) Reach {
	var r Reach
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) { // what is wider comes first
		id, err := spiffeid.FromString(prefix)
		switch {
		case err != nil || r.Covers(prefix):
		case id.Path() == "":
			r.TrustDomains = append(r.TrustDomains, id.TrustDomain().Name())
		default:
			r.Within = append(r.Within, prefix)
		}
	}
	return r
}

// Covers tells whether all of a SPIFFE ID and what is below it, or all of a trust domain, is in the trust domains and
// paths.
func (r Reach) Covers(id string) bool {
	parsed, err := spiffeid.FromString(id)
	if err != nil {
		return false
	}
	return slices.Contains(r.TrustDomains, parsed.TrustDomain().Name()) ||
		slices.ContainsFunc(r.Within, func(prefix string) bool { return below(id, prefix) })
}

// below tells whether an ID is the prefix or under it. A prefix ends where a segment does.
func below(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && (rest == "" || rest[0] == '/')
}
