package broker

import (
	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/people"
)

// Actor is who orders something: a workload or a person.
type Actor struct {
	Workload Subject // zero for a person
	// Person is the id of a person, and Name what they are called: untrusted, and not unique. Both are empty for a
	// workload.
	Person, Name string
}

// WorkloadActor is a workload that orders something.
func WorkloadActor(who attest.Identity) Actor {
	return Actor{Workload: Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()}}
}

// PersonActor is a person who orders something.
func PersonActor(who people.Person) Actor { return Actor{Person: who.ID(), Name: who.Name()} }

// ID is the SPIFFE ID of a workload, or the id of a person: an issuer, a # and a subject. No text is both.
func (a Actor) ID() string {
	if a.Person != "" {
		return a.Person
	}
	return a.Workload.ID.String()
}
