package httpapi

import (
	"net/http"
	"slices"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Role is a workload with more rights than a sandbox in some trust domains, below some paths, or both.
type Role struct {
	ID           spiffeid.ID
	TrustDomains []spiffeid.TrustDomain
	// Within are SPIFFE IDs. The workload has the role for these and for all SPIFFE IDs below them.
	Within []spiffeid.ID
}

// ResourceServer is a workload that may introspect the tokens for its audiences, in whatever trust domain the subject of the
// token is.
type ResourceServer struct {
	ID        spiffeid.ID
	Audiences []string
}

// holders maps the workloads with a role to the trust domains and SPIFFE IDs at or below which they have it.
type holders map[spiffeid.ID][]string

// role is a role that workloads have by their SPIFFE IDs, and people by their groups.
type role struct {
	workloads holders
	people    people.Role // empty if people cannot have the role
}

type roles struct{ auditor, admin, orchestrator role }

func newRoles(cfg Config) roles {
	return roles{
		auditor:      role{holdersOf(cfg.Auditors), people.RoleAuditor},
		admin:        role{holdersOf(cfg.Admins), people.RoleAdmin},
		orchestrator: role{workloads: holdersOf(cfg.Orchestrators)},
	}
}

func holdersOf(all []Role) holders {
	h := holders{}
	for _, role := range all {
		for _, td := range role.TrustDomains {
			h[role.ID] = append(h[role.ID], td.IDString())
		}
		for _, id := range role.Within {
			h[role.ID] = append(h[role.ID], id.String())
		}
	}
	return h
}

// within returns where the caller has a role by the configuration.
func (s *Server) within(who caller, o role) []string {
	switch who := who.(type) {
	case attest.Identity:
		return o.workloads[who.ID()]
	case people.Person:
		return s.cfg.Broker.Within(who, o.people)
	}
	return nil
}

// where returns the reach of the caller by any of the roles, in a call that requires one of them. The reach is empty if the
// caller has none.
func (s *Server) where(r *http.Request, who caller, of ...role) broker.Reach {
	var prefixes []string
	for _, o := range of {
		within := s.within(who, o)
		if o.people == people.RoleAdmin {
			within = s.asAdmin(r, who, within)
		}
		prefixes = append(prefixes, s.everywhere(within)...)
	}
	return broker.ReachOf(prefixes)
}

// everywhere replaces [people.Everywhere] with the accepted trust domains.
func (s *Server) everywhere(within []string) []string {
	if !slices.Contains(within, people.Everywhere) {
		return within
	}
	var all []string
	for _, td := range s.cfg.Attestor.TrustDomains() {
		all = append(all, td.IDString())
	}
	return all
}

// reach returns the reach of the caller by any of the roles, and errNotAllowed if the caller has none.
func (s *Server) reach(r *http.Request, who caller, of ...role) (broker.Reach, error) {
	within := s.where(r, who, of...)
	if len(within.TrustDomains)+len(within.Within) == 0 {
		return broker.Reach{}, s.noRole(r, who)
	}
	return within, nil
}

// overAll returns nil if the caller has one of the roles in every trust domain.
func (s *Server) overAll(r *http.Request, who caller, of ...role) error {
	within := s.where(r, who, of...)
	for _, td := range s.cfg.Attestor.TrustDomains() {
		if !slices.Contains(within.TrustDomains, td.Name()) {
			return s.noRole(r, who)
		}
	}
	return nil
}

var errNoRole = &requestError{kind: errNotAllowed, detail: "role"}

// readable returns what the caller may read. Auditors may read everything within their reach, other workloads only their own
// records, and other people nothing.
func (s *Server) readable(r *http.Request, who caller) (broker.Reach, error) {
	within := s.where(r, who, s.roles.auditor)
	if len(within.TrustDomains)+len(within.Within) > 0 {
		return within, nil
	}
	workload, ok := who.(attest.Identity)
	if !ok {
		return broker.Reach{}, errNoRole
	}
	return broker.Reach{Subject: workload.ID().String()}, nil
}

func actorOf(who caller) broker.Actor {
	switch who := who.(type) {
	case attest.Identity:
		return broker.WorkloadActor(who)
	case people.Person:
		return broker.PersonActor(who)
	}
	return broker.Actor{}
}
