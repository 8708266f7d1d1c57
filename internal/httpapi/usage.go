package httpapi

import (
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

// defaultUsage is the period over which uses are counted unless the caller selects another.
const defaultUsage = 30 * 24 * time.Hour

// ReportUses records what a sandbox reports about the use of one of its own credentials.
func (s *Server) ReportUses(w http.ResponseWriter, r *http.Request, id ID) {
	const operation = "reportUses"
	serve(s, w, r, operation, func(who attest.Identity) error {
		switch {
		case !ourID(id):
			return &requestError{kind: broker.ErrNotFound, detail: "id"}
		case !s.reports.Allow(who.ID().String(), s.cfg.Now()):
			return &requestError{kind: errPace, detail: "pace"}
		}
		ask, err := readOrder[UseRequest](s, w, r, who, operation)
		if err != nil {
			return err
		}
		use, err := s.cfg.Broker.ReportUse(r.Context(), who, broker.Use{Issuance: id, Calls: ask.Calls, LastUsed: ask.LastUsedAt.UTC()})
		if err != nil {
			return notFound(err, "id")
		}
		writeJSON(w, http.StatusOK, UseReport{Calls: use.Calls, LastUsedAt: use.LastUsed, ReportedAt: use.Time})
		return nil
	})
}

// GetUsage compares what was granted with what was used, for an auditor.
func (s *Server) GetUsage(w http.ResponseWriter, r *http.Request, params GetUsageParams) {
	s.forAuditors(w, r, "getUsage", func(by auditing) (any, error) {
		bad := func(field string) (any, error) {
			return nil, &requestError{kind: errParameter, field: field, detail: "parameter_query"}
		}
		q := broker.UsageQuery{TrustDomain: params.TrustDomain, Since: params.Since.UTC(), Until: params.Until.UTC()}
		if params.Since.IsZero() {
			q.Since = s.cfg.Now().Add(-defaultUsage).UTC()
		}
		switch {
		case badIdentity("", "", q.TrustDomain) != "":
			return bad("trust_domain")
		case !q.Until.IsZero() && q.Until.Before(q.Since):
			return bad("until")
		}
		all, err := s.cfg.Broker.Usage(r.Context(), q, by.within)
		out := Usage{Since: q.Since, Until: q.Until, Scopes: make([]ScopeUsage, 0, len(all))}
		for _, u := range all {
			out.Scopes = append(out.Scopes, ScopeUsage{
				Scope: u.Scope, Asked: u.Asked, Granted: u.Granted, Denied: u.Denied,
				Reported: ReportedUsage{Credentials: u.Reported, Used: u.Used, Calls: u.Calls, LastUsedAt: u.LastUsed},
			})
		}
		return out, err
	})
}
