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
	switch {
	case len(within) > 0:
		s.endBootstrap(r)
		return within
	case !s.isBootstrap(who):
		return nil
	}
	end, on := s.bootstrap(r)
	if !on {
		return nil
	}
	if c := callOf(r); !c.bootstrap {
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

// endBootstrap ends the period once. If that fails, the next call by an admin tries again, and the period ends by itself within
// an hour.
func (s *Server) endBootstrap(r *http.Request) {
	if s.cfg.Bootstrap == nil || s.bootstrapOver.Load() {
		return
	}
	if err := s.cfg.Bootstrap.EndBootstrap(r.Context()); err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "bootstrap admin not disabled", "request_id", callOf(r).id, "error", err)
		return
	}
	s.bootstrapOver.Store(true)
}

// noRole returns the error for a caller without a role. It tells the bootstrap admin why the role no longer applies.
func (s *Server) noRole(r *http.Request, who caller) error {
	if !s.isBootstrap(who) {
		return errNoRole
	}
	end, on := s.bootstrap(r)
	if on || end.IsZero() {
		return errNoRole
	}
	return &requestError{
		kind: errNotAllowed, detail: "bootstrap_over",
		why: "The bootstrap admin has been disabled since " + end.Format(time.RFC3339) + ". Map a group of the provider to the role admin in people.roles, and log in as a member of it.",
	}
}

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
