package record

import (
	"fmt"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ReachesNothing reports whether nothing is within a reach.
func ReachesNothing(r broker.Reach) bool {
	return r.Subject == "" && len(r.TrustDomains) == 0 && len(r.Within) == 0 && !r.All
}

// Within returns the condition that a row's spiffe_id is within reach, and adds its arguments to args. trustDomain is the
// expression for the row's trust domain. Each path is a separate condition, since only then is each a range of an index: all
// IDs below a path lie between "path/" and "path0", because "0" is the byte after "/".
func Within(r broker.Reach, trustDomain string, args pgx.NamedArgs) string {
	var either []string
	if len(r.TrustDomains) > 0 {
		args["reach_domains"] = r.TrustDomains
		either = append(either, trustDomain+" = ANY (@reach_domains::text[])")
	}
	for i, prefix := range r.Within {
		if _, err := spiffeid.FromString(prefix); err != nil {
			continue // everything is below "spiffe:"
		}
		name := fmt.Sprintf("reach_within_%d", i)
		args[name] = prefix
		either = append(either, Below(name))
	}
	limited := len(r.TrustDomains)+len(r.Within) > 0
	var all []string
	if r.Subject != "" {
		args["reach_subject"] = r.Subject
		all = append(all, "spiffe_id = @reach_subject::text")
	}
	switch {
	case len(either) > 0:
		all = append(all, "("+strings.Join(either, " OR ")+")")
	case limited || r.Subject == "" && !r.All:
		return "false"
	}
	return strings.Join(append(all, "true"), " AND ")
}

// Below returns the condition that a row's spiffe_id is the named argument or below it. All IDs below a path lie between
// "path/" and "path0", because "0" is the byte after "/".
func Below(name string) string {
	return fmt.Sprintf("(spiffe_id = @%[1]s::text OR (spiffe_id >= @%[1]s::text || '/' AND spiffe_id < @%[1]s::text || '0'))", name)
}
