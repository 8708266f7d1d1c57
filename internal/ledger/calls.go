package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

const kindCalls = "calls.recorded"

// callsBody is the body of the entries that record what a sandbox called during a task.
type callsBody struct {
	record.Header

	Actor  subjectBody    `json:"actor"`
	Task   string         `json:"task"`
	Report callReportBody `json:"report"`
}

// callReportBody is a report. If the gateway repeats the report, it is the same.
type callReportBody struct {
	Session  string        `json:"session"`
	Sequence int64         `json:"sequence"`
	Since    time.Time     `json:"since"`
	Until    time.Time     `json:"until"`
	Final    bool          `json:"final"`
	Calls    []callRowBody `json:"calls"`
}

type callRowBody struct {
	Host     string           `json:"host,omitzero"`
	Method   string           `json:"method,omitzero"`
	Path     string           `json:"path,omitzero"`
	Scope    string           `json:"scope,omitzero"`
	Refused  string           `json:"refused,omitzero"`
	Other    bool             `json:"other,omitzero"`
	Count    int64            `json:"count"`
	First    time.Time        `json:"first"`
	Last     time.Time        `json:"last"`
	Statuses map[string]int64 `json:"statuses"`
	BytesIn  int64            `json:"bytes_in,omitzero"`
	BytesOut int64            `json:"bytes_out,omitzero"`
}

// ReportCalls implements [broker.Usage]. It reads before it appends, so a repeated report costs no commit.
func (l *Ledger) ReportCalls(ctx context.Context, report broker.CallReport) (time.Time, error) {
	e, err := newEntry(kindCalls, report.ID(), report.Time)
	if err != nil {
		return time.Time{}, err
	}
	e.command, e.overtakes, e.alone = true, true, report.ID()
	body := callsBody{Header: e.header(), Actor: subjectOf(report.Sandbox.Workload), Task: report.Task, Report: callReportBody{
		Session: report.Session, Sequence: report.Sequence, Since: record.Stored(report.Since), Until: record.Stored(report.Until),
		Final: report.Final, Calls: make([]callRowBody, 0, len(report.Calls)),
	}}
	for _, c := range report.Calls {
		body.Report.Calls = append(body.Report.Calls, callRowBody{
			c.Host, c.Method, c.Path, c.Scope, c.Refused, c.Other, c.Count, record.Stored(c.First), record.Stored(c.Last), c.Statuses,
			c.BytesIn, c.BytesOut,
		})
	}
	said, _, err := record.Encode(body.Report)
	if err == nil {
		e, err = e.with(body)
	}
	if errors.Is(err, record.ErrTooLarge) {
		return time.Time{}, broker.ErrTooLarge
	}
	if err != nil {
		return time.Time{}, err
	}
	for range 2 {
		var at time.Time
		var same bool
		err := l.read.QueryRow(ctx, `
			SELECT r.time, convert_from(e.body, 'UTF8')::jsonb -> 'report' = @report::text::jsonb
			FROM call_reports AS r JOIN entries AS e ON e.index = r.entry_index
			WHERE r.id = @id`, pgx.NamedArgs{"id": e.id, "report": string(said)}).Scan(&at, &same)
		switch {
		case err == nil && same:
			return at.UTC(), nil
		case err == nil:
			return time.Time{}, broker.ErrAlreadyReported
		case !errors.Is(err, pgx.ErrNoRows):
			return time.Time{}, postgres.Unavailable("reading a report of calls", err)
		}
		if _, err = l.append(ctx, e); !errors.Is(err, broker.ErrConcurrentChange) {
			return e.time, err
		}
	}
	return time.Time{}, postgres.Unavailable("reading a report of calls", pgx.ErrNoRows) // it is being pruned
}
