package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
)

// Bootstrap is the time in which one person is an admin though no group makes them one. It is one for all replicas, and
// is over for good once it is over.
type Bootstrap interface {
	// Bootstrap returns when it ends, or has ended, and whether it still goes on. It never answers from a standby.
	Bootstrap(ctx context.Context) (end time.Time, on bool, err error)
	// EndBootstrap ends it. After nil no replica finds that it goes on.
	EndBootstrap(ctx context.Context) error
}

// asAdmin adds to where a caller is an admin what the bootstrap admin has. That another admin calls ends it.
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
		s.cfg.Log.WarnContext(r.Context(), "bootstrap admin calls",
			"request_id", c.id, "operation", c.operation, "person", nameOf(who), "until", end)
	}
	return []string{people.Everywhere}
}

func (s *Server) isBootstrap(who caller) bool {
	person, ok := who.(people.Person)
	return ok && s.cfg.BootstrapAdmin != "" && person.ID() == s.cfg.BootstrapAdmin
}

// bootstrap is until when the bootstrap admin is on, or since when off. When that cannot be told it is off since the zero
// time.
func (s *Server) bootstrap(r *http.Request) (end time.Time, on bool) {
	end, on, err := s.cfg.Bootstrap.Bootstrap(r.Context())
	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "bootstrap admin not told", "request_id", callOf(r).id, "error", err)
		return time.Time{}, false
	}
	return end, on
}

// endBootstrap ends it once. What fails is tried again at the next call of an admin, and ends by itself within the hour.
func (s *Server) endBootstrap(r *http.Request) {
	if s.cfg.Bootstrap == nil || s.bootstrapOver.Load() {
		return
	}
	if err := s.cfg.Bootstrap.EndBootstrap(r.Context()); err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "bootstrap admin not ended", "request_id", callOf(r).id, "error", err)
		return
	}
	s.bootstrapOver.Store(true)
}

// noRole is the refusal of a caller without a role. It tells the bootstrap admin why there is none any more.
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
