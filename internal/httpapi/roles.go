package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	. "github.com/brevet-dev/brevet/openapi"
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

// role is a role that workloads have by their SPIFFE IDs, and people by their groups.
type role struct {
	workloads map[spiffeid.ID][]string // the trust domains and SPIFFE IDs at or below which each has the role
	people    people.Role              // empty if people cannot have the role
}

type roles struct{ auditor, admin, orchestrator role }

func newRoles(cfg Config) roles {
	held := func(all []Role) map[spiffeid.ID][]string {
		by := map[spiffeid.ID][]string{}
		for _, role := range all {
			for _, td := range role.TrustDomains {
				by[role.ID] = append(by[role.ID], td.IDString())
			}
			for _, id := range role.Within {
				by[role.ID] = append(by[role.ID], id.String())
			}
		}
		return by
	}
	return roles{
		auditor:      role{held(cfg.Auditors), people.RoleAuditor},
		admin:        role{held(cfg.Admins), people.RoleAdmin},
		orchestrator: role{workloads: held(cfg.Orchestrators)},
	}
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

// Bootstrap is the period in which one person is an admin without membership in a mapped group. All replicas share it. Once it is
// over, it never begins again.
type Bootstrap interface {
	// Bootstrap returns when the period ends or ended, and whether it still lasts. It never reads from a standby.
	Bootstrap(ctx context.Context) (end time.Time, on bool, err error)
	// EndBootstrap ends the period. After it returns nil, every replica sees that the period is over.
	EndBootstrap(ctx context.Context) error
}

// asAdmin returns where a caller is an admin: in within, or everywhere for the bootstrap admin while the period lasts. A call by
// another admin ends the period.
func (s *Server) asAdmin(r *http.Request, who caller, within []string) []string {
	c := callOf(r)
	if len(within) > 0 {
		if s.cfg.Bootstrap == nil || s.bootstrapOver.Load() {
			return within
		}
		// If this fails, the next call by an admin tries again, and the period ends by itself within an hour.
		if err := s.cfg.Bootstrap.EndBootstrap(r.Context()); err != nil {
			s.cfg.Log.ErrorContext(r.Context(), "bootstrap admin not disabled", "request_id", c.id, "error", err)
			return within
		}
		s.bootstrapOver.Store(true)
		return within
	}
	if !s.isBootstrap(who) {
		return nil
	}
	end, on := s.bootstrap(r)
	if !on {
		return nil
	}
	if !c.bootstrap {
		c.bootstrap = true
		s.cfg.Log.WarnContext(r.Context(), "bootstrap admin used",
			"request_id", c.id, "operation", c.operation, "person", nameOf(who), "until", end)
	}
	return []string{people.Everywhere}
}

func (s *Server) isBootstrap(who caller) bool {
	person, ok := who.(people.Person)
	return ok && s.cfg.BootstrapAdmin != "" && person.ID() == s.cfg.BootstrapAdmin
}

// bootstrap returns when the period ends or ended, and whether it still lasts. If the store cannot tell, it returns the zero time
// and false.
func (s *Server) bootstrap(r *http.Request) (end time.Time, on bool) {
	end, on, err := s.cfg.Bootstrap.Bootstrap(r.Context())
	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "state of the bootstrap admin unknown", "request_id", callOf(r).id, "error", err)
		return time.Time{}, false
	}
	return end, on
}

// noRole returns the error for a caller without a role. It tells the bootstrap admin why the role no longer applies.
func (s *Server) noRole(r *http.Request, who caller) error {
	if s.isBootstrap(who) {
		if end, on := s.bootstrap(r); !on && !end.IsZero() {
			return &requestError{
				kind: errNotAllowed, detail: "bootstrap_over",
				why: "The bootstrap admin has been disabled since " + end.Format(time.RFC3339) +
					". Map a group of the provider to the role admin in people.roles, and log in as a member of it.",
			}
		}
	}
	return errNoRole
}

// WhoAmI tells a caller its authenticated identity, and where it has which role. Listing the admin role does not count as a call
// by an admin, so it does not end bootstrap.
func (s *Server) WhoAmI(w http.ResponseWriter, r *http.Request) {
	serve(s, w, r, "whoAmI", func(who caller) error {
		if err := s.rules.check(r, who, nil); err != nil {
			return err
		}
		out := Caller{Kind: CallerWorkload, ID: nameOf(who), Roles: []CallerRole{}}
		if person, ok := who.(people.Person); ok {
			out.Kind, out.Name, out.Groups = CallerPerson, person.Name(), person.Groups()
		}
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
			reach := broker.ReachOf(s.everywhere(within))
			for _, td := range reach.TrustDomains {
				role.Within = append(role.Within, "spiffe://"+td)
			}
			role.Within = slices.Sorted(slices.Values(append(role.Within, reach.Within...)))
			if len(role.Within) > 0 {
				out.Roles = append(out.Roles, role)
			}
		}
		if workload, ok := who.(attest.Identity); ok && len(s.audiences[workload.ID()]) > 0 {
			audiences := slices.Sorted(slices.Values(s.audiences[workload.ID()]))
			out.Roles = append(out.Roles, CallerRole{Role: RoleResourceServer, Within: []string{}, Audiences: audiences})
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	})
}
