package audit

import (
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/google/uuid"
)

// callReport is what an entry says about the calls of a sandbox.
type callReport struct {
	Session  string    `json:"session"`
	Sequence int64     `json:"sequence"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Final    bool      `json:"final"`
	Calls    []struct {
		Host     string           `json:"host"`
		Method   string           `json:"method"`
		Path     string           `json:"path"`
		Scope    string           `json:"scope"`
		Refused  string           `json:"refused"`
		Other    bool             `json:"other"`
		Count    int64            `json:"count"`
		First    time.Time        `json:"first"`
		Last     time.Time        `json:"last"`
		Statuses map[string]int64 `json:"statuses"`
	} `json:"calls"`
}

// calls is the row of call_reports for a report. It is small, because there may be millions.
type calls struct {
	index              int64
	sandbox, task      unique.Handle[string]
	session            uuid.UUID
	sequence           int64
	since, until, time int64 // microseconds
	final              bool
}

// callSpace is the namespace of the ids of reports (RFC 9562, UUID version 5).
var callSpace = uuid.MustParse("5a0c7d3e-9b1f-4c62-8d55-2e4b6f7a9013")

// The limits of a report.
const (
	maxCallRows = 128
	maxSequence = 10_000_000
)

// reportCalls records the report of an egress gateway. It does not check that the report came in time.
func (s *state) reportCalls(b *body, index int64) {
	key, _ := id(b.ID)
	at, err := time.Parse(time.RFC3339Nano, b.Time)
	if err != nil || b.Report == nil || !b.Report.possible() || trustDomainOf(b.actor()) == "" {
		s.impossible(index, "it reports impossible calls")
		return
	}
	r := b.Report
	session, ok := id(r.Session)
	name := b.actor() + "\x00" + b.Task + "\x00" + r.Session + "\x00" + strconv.FormatInt(r.Sequence, 10)
	_, again := s.calls[key]
	switch {
	case !ok || uuid.NewSHA1(callSpace, []byte(name)) != key:
		s.impossible(index, "its id does not follow from its sandbox, task, session and sequence")
	case again:
		s.impossible(index, "it reports calls of session "+show(r.Session)+" again")
	default:
		s.calls[key] = calls{
			index: index, sandbox: unique.Make(b.actor()), task: unique.Make(b.Task), session: session, sequence: r.Sequence,
			since: r.Since.UnixMicro(), until: r.Until.UnixMicro(), time: at.UnixMicro(), final: r.Final,
		}
	}
}

// possible reports whether a gateway can have made the report.
func (r *callReport) possible() bool {
	if r.Sequence < 1 || r.Sequence > maxSequence || r.Until.Before(r.Since) || len(r.Calls) > maxCallRows {
		return false
	}
	others := 0
	for _, c := range r.Calls {
		var answered int64
		for _, n := range c.Statuses {
			answered += n
		}
		switch {
		case c.Count < 1 || c.Count > maxCalls || answered != c.Count:
			return false
		case c.First.Before(r.Since) || c.Last.Before(c.First) || r.Until.Before(c.Last):
			return false
		case c.Other && c.Host+c.Method+c.Path+c.Scope+c.Refused != "", !c.Other && (c.Host == "" || c.Method == ""):
			return false
		case c.Other:
			others++
		}
	}
	return others <= 1
}

// row returns the row of call_reports for the report.
func (c calls) row(report uuid.UUID) []string {
	sandbox := c.sandbox.Value()
	return []string{
		report.String(), trustDomainOf(sandbox), sandbox, c.task.Value(), c.session.String(), strconv.FormatInt(c.sequence, 10),
		instant(time.UnixMicro(c.since)), instant(time.UnixMicro(c.until)), strconv.FormatBool(c.final), instant(time.UnixMicro(c.time)),
		strconv.FormatInt(c.index, 10),
	}
}

// trustDomainOf returns the trust domain of a SPIFFE ID, or "".
func trustDomainOf(spiffeID string) string {
	rest, _ := strings.CutPrefix(spiffeID, "spiffe://")
	domain, _, ok := strings.Cut(rest, "/")
	if !ok {
		return ""
	}
	return domain
}
