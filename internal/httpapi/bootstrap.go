package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
)

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
