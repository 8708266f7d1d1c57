package server

import (
	"net/http"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/people"
)

// WhoAmI tells a caller what its proof proves, and where it holds which role.
func (s *Server) WhoAmI(w http.ResponseWriter, r *http.Request) {
	const operation = "whoAmI"
	who, err := s.prove(r, operation)
	if err != nil {
		s.fail(w, r, nobody, err)
		return
	}
	if err := s.rules.check(r, who, operation, nil); err != nil {
		s.fail(w, r, who, err)
		return
	}
	out := Caller{Kind: CallerWorkload, ID: nameOf(who), Roles: s.rolesOf(who)}
	if person, ok := who.(people.Person); ok {
		out.Kind, out.Name, out.Groups = CallerPerson, person.Name(), person.Groups()
	}
	writeJSON(w, http.StatusOK, out)
}

func (s *Server) rolesOf(who caller) []CallerRole {
	all := []CallerRole{}
	for _, held := range []struct {
		role RoleName
		in   broker.Reach
	}{
		{RoleAdmin, s.where(who, s.offices.admin)},
		{RoleApprover, s.where(who, office{people: people.RoleApprover})},
		{RoleAuditor, s.where(who, s.offices.auditor)},
		{RoleOrchestrator, s.where(who, s.offices.orchestrator)},
	} {
		if within := prefixesOf(held.in); len(within) > 0 {
			all = append(all, CallerRole{Role: held.role, Within: within})
		}
	}
	return all
}

// prefixesOf is what [broker.ReachOf] made the reach of.
func prefixesOf(r broker.Reach) []string {
	var all []string
	for _, td := range r.TrustDomains {
		all = append(all, "spiffe://"+td)
	}
	return slices.Sorted(slices.Values(append(all, r.Within...)))
}
