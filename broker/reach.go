package broker

import (
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Reach limits what a reader may see. The zero value reaches nothing.
type Reach struct {
	// Subject, if set, limits the reach to that sandbox's own records.
	Subject string
	// TrustDomains reaches all records of these trust domains. Within reaches the records of SPIFFE IDs at or below these paths.
	// A record is within reach if either reaches it.
	TrustDomains, Within []string
	// All reaches everything. It is only for Brevet's own maintenance, never for a caller.
	All bool
}

// ReachOf returns the reach of SPIFFE IDs, paths and trust domains ("spiffe://" and a name). It ignores anything else. Equal
// reaches have the same form.
func ReachOf(prefixes []string) Reach {
	var r Reach
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) { // wider prefixes come first
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

// Covers reports whether the trust domains and paths contain all of id: a SPIFFE ID with everything below it, or a whole trust
// domain.
func (r Reach) Covers(id string) bool {
	parsed, err := spiffeid.FromString(id)
	if err != nil {
		return false
	}
	return slices.Contains(r.TrustDomains, parsed.TrustDomain().Name()) ||
		slices.ContainsFunc(r.Within, func(prefix string) bool { return below(id, prefix) })
}

// below reports whether an ID is the prefix or below it. A prefix ends at a segment boundary.
func below(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && (rest == "" || rest[0] == '/')
}
