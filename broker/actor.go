package broker

import (
	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/people"
)

// Actor is a workload or a person that gives an order.
type Actor struct {
	Workload Subject // zero for a person
	// Person is the ID of a person. Name is the person's display name, which is untrusted and not unique. Both are empty for a
	// workload.
	Person, Name string
}

// WorkloadActor returns the actor for a workload.
func WorkloadActor(who attest.Identity) Actor {
	return Actor{Workload: Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()}}
}

// PersonActor returns the actor for a person.
func PersonActor(who people.Person) Actor { return Actor{Person: who.ID(), Name: who.Name()} }

// ID returns the SPIFFE ID of a workload, or the ID of a person: issuer, # and subject. No string can be both.
func (a Actor) ID() string {
	if a.Person != "" {
		return a.Person
	}
	return a.Workload.ID.String()
}
