package httpapi

import (
	"net/http"
	"slices"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	. "github.com/brevet-dev/brevet/openapi"
)

// WhoAmI tells a caller its authenticated identity, and where it has which role.
func (s *Server) WhoAmI(w http.ResponseWriter, r *http.Request) {
	const operation = "whoAmI"
	serve(s, w, r, operation, func(who caller) error {
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		out := Caller{Kind: CallerWorkload, ID: nameOf(who), Roles: s.rolesOf(r, who)}
		if person, ok := who.(people.Person); ok {
			out.Kind, out.Name, out.Groups = CallerPerson, person.Name(), person.Groups()
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}

// rolesOf lists the roles of a caller. Listing the admin role does not count as a call by an admin, so it does not end bootstrap.
func (s *Server) rolesOf(r *http.Request, who caller) []CallerRole {
	all := []CallerRole{}
	for _, held := range []struct {
		role RoleName
		of   role
	}{
		{RoleAdmin, s.roles.admin},
		{RoleApprover, role{people: people.RoleApprover}},
		{RoleAuditor, s.roles.auditor},
		{RoleOrchestrator, s.roles.orchestrator},
	} {
		role := CallerRole{Role: held.role}
		within := s.within(who, held.of)
		if held.role == RoleAdmin && len(within) == 0 && s.isBootstrap(who) {
			if end, on := s.bootstrap(r); on {
				within, role.BootstrapUntil = []string{people.Everywhere}, end
			}
		}
		if role.Within = prefixesOf(broker.ReachOf(s.everywhere(within))); len(role.Within) > 0 {
			all = append(all, role)
		}
	}
	if audiences := s.audiencesOf(who); len(audiences) > 0 {
		all = append(all, CallerRole{Role: RoleResourceServer, Within: []string{}, Audiences: audiences})
	}
	return all
}

// audiencesOf returns the audiences whose tokens the caller may introspect, sorted.
func (s *Server) audiencesOf(who caller) []string {
	workload, ok := who.(attest.Identity)
	if !ok {
		return nil
	}
	return slices.Sorted(slices.Values(s.audiences[workload.ID()]))
}

// prefixesOf returns the prefixes from which [broker.ReachOf] makes r.
func prefixesOf(r broker.Reach) []string {
	var all []string
	for _, td := range r.TrustDomains {
		all = append(all, "spiffe://"+td)
	}
	return slices.Sorted(slices.Values(append(all, r.Within...)))
}
