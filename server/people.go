package server

import (
	"errors"
	"net/http"

	"github.com/brevet-dev/brevet/people"
)

// caller is an attest.Identity or a people.Person: nothing else proves who calls.
type caller interface{ IsZero() bool }

// identify proves which person calls. It comes first in every operation that is for people alone.
func (s *Server) identify(r *http.Request, operation string) (people.Person, caller, error) {
	s.begin(r, operation)
	bearer, err := bearerOf(r)
	if err != nil {
		return people.Person{}, nobody, err
	}
	if bearer == "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0 || s.cfg.People == nil {
		who, err := s.notForWorkloads(r, operation)
		return people.Person{}, who, err
	}
	person, err := s.cfg.People.Identify(r.Context(), bearer)
	switch {
	case err == nil:
		return person, person, nil
	case errors.Is(err, people.ErrProviderUnavailable):
		return people.Person{}, nobody, &finding{kind: errProvider, detail: people.Reason(err)}
	}
	if who, workload := s.notForWorkloads(r, operation); errors.Is(workload, errNotAllowed) {
		return people.Person{}, who, workload
	}
	return people.Person{}, nobody, &finding{kind: errUnauthenticated, detail: people.Reason(err)}
}

// notForWorkloads tells a caller with an SVID that it is not for it (H94), and anybody else to prove who they are.
func (s *Server) notForWorkloads(r *http.Request, operation string) (caller, error) {
	who, err := s.attest(r, operation)
	if err != nil {
		return nobody, err
	}
	return who, &finding{kind: errNotAllowed, detail: "workload"}
}

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
