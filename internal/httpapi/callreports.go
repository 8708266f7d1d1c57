package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	. "github.com/brevet-dev/brevet/openapi"
)

const (
	// callReportsAtOnce is how many reports of calls a sandbox can send to one replica at once. Then it can send one each
	// callReportsEvery seconds. Final reports have the same limit again. So a sandbox that invents calls fills the ledger no faster
	// than that.
	callReportsAtOnce, callReportsEvery = 60, 5
	// The sandboxes of a trust domain share a limit, because a trust domain can have any number of SPIFFE IDs.
	domainCallReportsPerSecond, domainCallReportsAtOnce = 10, 600
	// callSkew is how far the clock of an egress gateway may be ahead.
	callSkew = time.Minute
	// maxHost, maxMethod and maxPath are the maximum lengths of a row's names in bytes. openapi.yaml can only count characters.
	maxHost, maxMethod, maxPath = 253, 32, 1024
	// hiddenText replaces a host, method or path that looks like a secret. The sandbox chose it, so refusing the report would let the
	// sandbox suppress the record.
	hiddenText = "(looks like a secret)"
)

// ReportCalls records what a sandbox called during one of its tasks.
func (s *Server) ReportCalls(w http.ResponseWriter, r *http.Request, task Task) {
	serve(s, w, r, "reportCalls", func(who attest.Identity) error {
		ask, err := readOrder[CallReport](s, w, r, who)
		if err != nil {
			return err
		}
		if !s.mayReportCalls(who, ask.Final) {
			w.Header().Set("Retry-After", strconv.Itoa(callReportsEvery))
			return &requestError{kind: errPace, detail: "pace"}
		}
		report, err := s.callReportOf(task, ask)
		if err != nil {
			return err
		}
		id, recorded, err := s.cfg.Broker.ReportCalls(r.Context(), who, report)
		if errors.Is(err, broker.ErrTooLarge) {
			return &requestError{kind: errTooLarge, detail: "record_size"}
		}
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, CallReceipt{ID: id, RecordedAt: recorded})
		return nil
	})
}

// mayReportCalls reports whether the sandbox and its trust domain are within their limits.
func (s *Server) mayReportCalls(who attest.Identity, final bool) bool {
	now, sandbox := s.cfg.Now(), who.ID().String()
	if final {
		sandbox += " final" // without this report, the session stays open for good
	}
	// The sandbox comes first, so that what one sandbox sends in vain does not count for its trust domain.
	return s.callReports.Allow(sandbox, now) && s.domainCallReports.Allow(who.ID().TrustDomain().Name(), now)
}

// callReportOf checks what openapi.yaml cannot. An error names the row, and repeats nothing of it.
func (s *Server) callReportOf(task string, ask CallReport) (broker.CallReport, error) {
	wrong := func(field, why string) error {
		return &requestError{kind: errInvalid, field: field, detail: "call_report", why: why}
	}
	report := broker.CallReport{
		Task: task, Session: ask.Session, Sequence: ask.Sequence, Since: ask.Since.UTC(), Until: ask.Until.UTC(), Final: ask.Final,
	}
	switch {
	case !ourID(ask.Session):
		return report, wrong("session", "session must be a UUID in lower case")
	case ask.Since.Year() < 2000:
		return report, wrong("since", "since must not be before the year 2000")
	case ask.Until.Before(ask.Since):
		return report, wrong("until", "until must not be before since")
	case ask.Until.After(s.cfg.Now().Add(callSkew)):
		return report, wrong("until", "until is in the future: set the clock of the gateway")
	}
	others := 0
	for i, row := range ask.Calls {
		bad := func(why string) error { return wrong("calls", fmt.Sprintf("calls[%d]: %s", i, why)) }
		var answered int64
		for _, n := range row.Statuses {
			answered += n
		}
		switch {
		case row.Other && row.Host+row.Method+row.Path+row.Scope+row.Refused != "":
			return report, bad("the row with other has no host, method, path, scope or refused")
		case !row.Other && (row.Host == "" || row.Method == ""):
			return report, bad("host and method are required")
		case len(row.Host) > maxHost:
			return report, bad("host has more than 253 bytes")
		case len(row.Method) > maxMethod:
			return report, bad("method has more than 32 bytes")
		case len(row.Path) > maxPath:
			return report, bad("path has more than 1024 bytes")
		case answered != row.Count:
			return report, bad("the sum of statuses must be count")
		case row.First.Before(ask.Since), row.Last.Before(row.First), ask.Until.Before(row.Last):
			return report, bad("the times must be in order: since, first, last, until")
		}
		if row.Other {
			if others++; others > 1 {
				return report, bad("only one row may have other")
			}
		}
		report.Calls = append(report.Calls, broker.CallRow{
			Host: withoutSecret(row.Host), Method: withoutSecret(row.Method), Path: withoutSecret(row.Path), Scope: row.Scope, Refused: row.Refused,
			Other: row.Other, Count: row.Count, First: row.First, Last: row.Last, Statuses: row.Statuses,
			BytesIn: row.BytesIn, BytesOut: row.BytesOut,
		})
	}
	return report, nil
}

func withoutSecret(name string) string {
	if secret.Shaped(name) {
		return hiddenText
	}
	return name
}

// GetTaskCalls sums up the calls of a task, for an auditor.
func (s *Server) GetTaskCalls(w http.ResponseWriter, r *http.Request, task Task, params GetTaskCallsParams) {
	s.withRole(w, r, "getTaskCalls", []role{s.roles.auditor}, func(by reader) (any, error) {
		if badIdentity(params.SpiffeID, "", "") != "" {
			return nil, badQuery("spiffe_id")
		}
		leave, err := await(r, s.counting, by.who)
		if err != nil {
			return nil, err
		}
		defer leave()
		found, err := s.cfg.Broker.TaskCalls(r.Context(), params.SpiffeID, task, by.within)
		if err != nil {
			return nil, notFound(err, "calls")
		}
		return taskCallsOf(found), nil
	})
}

func taskCallsOf(found broker.TaskCalls) TaskCalls {
	out := TaskCalls{
		Complete: found.Complete, Calls: make([]CallRow, 0, len(found.Calls)), Sessions: make([]CallSession, 0, len(found.Sessions)),
		SessionsOmitted: found.SessionCount - int64(len(found.Sessions)),
	}
	for _, c := range found.Calls {
		out.Calls = append(out.Calls, CallRow{
			Host: c.Host, Method: c.Method, Path: c.Path, Scope: c.Scope, Refused: c.Refused, Other: c.Other, Count: c.Count,
			First: c.First, Last: c.Last, Statuses: c.Statuses, BytesIn: c.BytesIn, BytesOut: c.BytesOut,
		})
	}
	for _, one := range found.Sessions {
		out.Sessions = append(out.Sessions, CallSession{
			Session: one.Session, Reports: one.Reports, Since: one.Since, ReportedUntil: one.Until, Closed: one.Closed, Missing: one.Missing,
		})
	}
	return out
}
