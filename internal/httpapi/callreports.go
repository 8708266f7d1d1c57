package httpapi

import (
	"net/http"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

// ReportCalls records what a sandbox called during one of its tasks.
func (s *Server) ReportCalls(w http.ResponseWriter, r *http.Request, _ Task) {
	serve(s, w, r, "reportCalls", func(who attest.Identity) error {
		if _, err := readOrder[CallReport](s, w, r, who); err != nil {
			return err
		}
		return broker.ErrLedgerUnavailable
	})
}

// GetTaskCalls sums up the calls of a task, for an auditor.
func (s *Server) GetTaskCalls(w http.ResponseWriter, r *http.Request, _ Task, _ GetTaskCallsParams) {
	s.withRole(w, r, "getTaskCalls", []role{s.roles.auditor}, func(reader) (any, error) {
		return nil, unknown("calls")
	})
}
