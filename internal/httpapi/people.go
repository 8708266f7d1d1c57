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

// asCaller authenticates whoever calls, runs handle, and answers with the problem of its error. The handlers of all operations under /v1
// run in asCaller, asWorkload or asPerson.
func (s *Server) asCaller(w http.ResponseWriter, r *http.Request, operation string, handle func(caller) error) {
	who, err := s.authenticate(r, operation)
	if err == nil {
		err = handle(who)
	}
	if err != nil {
		s.fail(w, r, who, err)
	}
}

// asWorkload is asCaller for operations that only sandboxes may call (H101).
func (s *Server) asWorkload(w http.ResponseWriter, r *http.Request, operation string, handle func(attest.Identity) error) {
	s.asCaller(w, r, operation, func(who caller) error {
		workload, err := workloadOf(who)
		if err != nil {
			return err
		}
		return handle(workload)
	})
}

// asPerson is asCaller for operations that only people may call (H94).
func (s *Server) asPerson(w http.ResponseWriter, r *http.Request, operation string, handle func(people.Person) error) {
	s.asCaller(w, r, operation, func(who caller) error {
		person, ok := who.(people.Person)
		if !ok {
			return &requestError{kind: errNotAllowed, detail: "workload"}
		}
		return handle(person)
	})
}

func workloadOf(who caller) (attest.Identity, error) {
	workload, ok := who.(attest.Identity)
	if !ok {
		return attest.Identity{}, &requestError{kind: errNotAllowed, detail: "person"}
	}
	return workload, nil
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

// nameOf is the SPIFFE ID of a workload, or the id of a person.
func nameOf(who caller) string { return actorOf(who).ID() }
