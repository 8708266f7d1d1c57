package console

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"github.com/brevet-dev/brevet/broker"
)

// role is the name of a role, and where the person holds it.
type role struct {
	Name  string
	Where []string
}

func roleOf(name string, reach broker.Reach) role {
	o := role{Name: name}
	for _, domain := range reach.TrustDomains {
		o.Where = append(o.Where, "spiffe://"+domain)
	}
	o.Where = append(o.Where, reach.Within...)
	return o
}

// you shows the visitor's own profile.
func (c *Console) you(_ *http.Request, who *visitor) (view, error) {
	return view{page: "you", title: "Profile", data: struct{ Approver, Auditor, Admin role }{
		roleOf("Approver", who.Approver), roleOf("Auditor", who.Auditor), roleOf("Admin", who.Admin),
	}}, nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
