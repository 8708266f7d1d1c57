package console

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// profile is the visitor's own identity and roles.
type profile struct {
	Name, ID string
	Groups   []string
	Expires  time.Time // of the login
	Roles    []role
}

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
	return pageYou.view("Profile", profile{
		Name: who.Name(), ID: who.ID(), Groups: who.Groups(), Expires: who.Expires(),
		Roles: []role{roleOf("Approver", who.Approver), roleOf("Auditor", who.Auditor), roleOf("Admin", who.Admin)},
	}), nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
