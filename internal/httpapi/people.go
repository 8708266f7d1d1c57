package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/scopes"
)

// caller is an attest.Identity or a people.Person: nothing else proves who calls.
type caller interface{ IsZero() bool }

// authenticate tells who calls: a workload with an SVID, or a person with an ID token and nothing else. It comes first in every
// operation under /v1. Each kind of proof is verified in full by its own package, and what both would take proves the
// workload, which can never vote.
func (s *Server) authenticate(r *http.Request, operation string) (caller, error) {
	s.begin(r, operation)
	bearer, err := bearerOf(r)
	if err != nil {
		return nobody, err
	}
	workload, noSVID := s.cfg.Attestor.Identify(r.TLS, bearer)
	switch {
	case noSVID == nil:
		return workload, nil
	case errors.Is(noSVID, attest.ErrBundleUnavailable):
		return nobody, &requestError{kind: errBundle, detail: refusal.Reason(noSVID)}
	case bearer == "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 || s.cfg.People == nil:
		return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noSVID)}
	}
	person, noToken := s.cfg.People.Identify(r.Context(), bearer)
	switch {
	case noToken == nil && !s.pace.Allows(person.ID(), s.cfg.Now()):
		return nobody, &requestError{kind: errPace, detail: "pace"}
	case noToken == nil:
		return person, nil
	case errors.Is(noToken, people.ErrProviderUnavailable):
		return nobody, &requestError{kind: errProvider, detail: refusal.Reason(noToken)}
	case errors.Is(noSVID, attest.ErrID): // as an ID token's subject is none
		return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noToken)}
	}
	// Why it failed is in the record only.
	return nobody, &requestError{kind: errUnauthenticated, detail: refusal.Reason(noSVID)}
}

// authenticateWorkload proves which workload calls, in operations that are for sandboxes alone (H101). The caller is who it is that is
// refused.
func (s *Server) authenticateWorkload(r *http.Request, operation string) (attest.Identity, caller, error) {
	who, err := s.authenticate(r, operation)
	if err != nil {
		return attest.Identity{}, nobody, err
	}
	workload, err := workloadOf(who)
	return workload, who, err
}

func workloadOf(who caller) (attest.Identity, error) {
	workload, ok := who.(attest.Identity)
	if !ok {
		return attest.Identity{}, &requestError{kind: errNotAllowed, detail: "person"}
	}
	return workload, nil
}

// identify proves which person calls, in operations that are for people alone (H94). The caller is who it is that is
// refused.
func (s *Server) identify(r *http.Request, operation string) (people.Person, caller, error) {
	who, err := s.authenticate(r, operation)
	if err != nil {
		return people.Person{}, nobody, err
	}
	person, ok := who.(people.Person)
	if !ok {
		return people.Person{}, who, &requestError{kind: errNotAllowed, detail: "workload"}
	}
	return person, who, nil
}

// delegator is the person whose ID token a sandbox presents as a member, to ask on their behalf; nil when there is none. It
// proves nothing of who calls.
func (s *Server) delegator(ctx context.Context, member, idToken string) (*scopes.User, error) {
	bad := &requestError{kind: errInvalid, field: member, detail: refusal.Reason(people.ErrNoDelegation)}
	switch {
	case idToken == "":
		return nil, nil //nolint:nilnil // on nobody's behalf
	case s.cfg.People == nil:
		bad.why = noDelegation
		return nil, bad
	}
	person, err := s.cfg.People.Delegator(ctx, idToken)
	bad.detail = refusal.Reason(err)
	switch {
	case errors.Is(err, people.ErrProviderUnavailable):
		return nil, &requestError{kind: errProvider, detail: bad.detail}
	case errors.Is(err, people.ErrNoDelegation):
		bad.why = noDelegation
		return nil, bad
	case err != nil: // why is in the record only
		bad.why = "is not a valid ID token of a person for delegation"
		return nil, bad
	}
	return &scopes.User{ID: person.ID(), Groups: person.Groups(), Until: person.Expires()}, nil
}

const noDelegation = "is not supported: the operator has configured no delegation audience"

// forPeople has a person identified, and answers with what do returns.
func (s *Server) forPeople(w http.ResponseWriter, r *http.Request, operation string, do func(people.Person) (any, error)) {
	person, who, err := s.identify(r, operation)
	if err != nil {
		s.fail(w, r, who, err)
		return
	}
	answer, err := do(person)
	if err != nil {
		s.fail(w, r, person, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// nameOf is the SPIFFE ID of a workload, or the id of a person.
func nameOf(who caller) string { return actorOf(who).ID() }
