package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// callRow returns a row of passed calls at one time.
func callRow(host string, at time.Time, count int64) openapi.CallRow {
	return openapi.CallRow{
		Host: host, Method: "GET", Path: "/repos/{repo}/issues", Scope: read.Scope, Count: count, First: at, Last: at,
		Statuses: map[string]int64{"2xx": count}, BytesIn: 10, BytesOut: 100,
	}
}

// callReport returns the final report of a session, about the last minute.
func callReport(session string, sequence int64, rows ...openapi.CallRow) openapi.CallReport {
	until := time.Now().UTC().Truncate(time.Microsecond)
	return openapi.CallReport{
		Session: session, Sequence: sequence, Since: until.Add(-time.Minute), Until: until, Final: true, Calls: append([]openapi.CallRow{}, rows...),
	}
}

// A gateway's report can be repeated, also at another replica, and an auditor reads what the sandbox called.
func TestReportedCallsAreReadBack(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c, other, reads := s.Client(t, agent), s.Replica(t).Client(t, agent), s.Client(t, auditor)
	token(t, c, read)
	if _, err := reads.TaskCalls(t.Context(), agent, read.Task); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("before a report: got %v, want ErrNotFound", err)
	}
	report := callReport(uuid.NewString(), 1)
	at := report.Since.Add(time.Second)
	refused := openapi.CallRow{
		Host: "evil.test\u202e", Method: "CONNECT", Refused: "no_rule", Count: 3, First: at, Last: at.Add(time.Second), Statuses: map[string]int64{"none": 3},
	}
	rest := openapi.CallRow{Other: true, Count: 9, First: at, Last: at, Statuses: map[string]int64{"4xx": 4, "5xx": 5}}
	database := openapi.CallRow{
		Host: "db.test", Method: "POSTGRESQL", Path: "app_*", Scope: read.Scope, Count: 1, First: report.Until, Last: report.Until,
		Statuses: map[string]int64{"none": 1},
	}
	report.Calls = []openapi.CallRow{callRow("api.test", at, 40), refused, database, rest}
	first, err := c.ReportCalls(t.Context(), read.Task, report)
	if err != nil || first.ID == "" || first.RecordedAt.IsZero() {
		t.Fatalf("got %+v, %v", first, err)
	}
	for name, who := range map[string]*client.Client{"again": c, "at another replica": other} {
		if got, err := who.ReportCalls(t.Context(), read.Task, report); err != nil || cmp.Diff(first, got) != "" {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, first)
		}
		changed := report
		changed.Calls = report.Calls[1:]
		if p, err := new(client.Problem), func() error { _, err := who.ReportCalls(t.Context(), read.Task, changed); return err }(); !errors.Is(err, client.ErrAlreadyReported) || !errors.As(err, &p) || p.Status != 409 {
			t.Errorf("%s, with another body: got %v, want 409", name, err)
		}
	}
	got, err := reads.TaskCalls(t.Context(), agent, read.Task)
	want := openapi.TaskCalls{
		Complete: true, Calls: report.Calls,
		Sessions: []openapi.CallSession{{Session: report.Session, Reports: 1, Since: report.Since, ReportedUntil: report.Until, Closed: true, Missing: []int64{}}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	late := callReport(uuid.NewString(), 3)
	late.Final = false
	if _, err := c.ReportCalls(t.Context(), read.Task, late); err != nil {
		t.Fatal(err)
	}
	got, err = reads.TaskCalls(t.Context(), agent, read.Task)
	if err != nil || got.Complete || len(got.Sessions) != 2 || got.Sessions[0].Session != late.Session || got.Sessions[0].Closed || !slices.Equal(got.Sessions[0].Missing, []int64{1, 2}) {
		t.Errorf("got %+v, %v, want an open session first, with two gaps", got.Sessions, err)
	}
	var events []openapi.TimelineEvent
	for e, err := range reads.TaskTimeline(t.Context(), read.Task, agent) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if e := events[len(events)-2]; e.Kind != "calls.recorded" || e.By != agent || *e.Calls != 53 || *e.Refused != 3 {
		t.Errorf("got %+v, want the report in the timeline", e)
	}
	s.DB.Check(t)
}

// Reports reach only the task of the sandbox that sends them. Only auditors of its trust domain read them.
func TestWhoReportsAndReadsCalls(t *testing.T) {
	t.Parallel()
	const stranger = "spiffe://other.test/audit"
	o := officers
	o.Auditors, o.Within = []string{auditor, stranger}, map[string][]string{stranger: {"spiffe://other.test"}}
	s := testkit.NewStack(t, o)
	session := uuid.NewString()
	at := callReport(session, 1).Since
	for n, who := range []string{agent, twin} { // with the same names
		if _, err := s.Client(t, who).ReportCalls(t.Context(), "t", callReport(session, 1, callRow("api.test", at.Add(time.Second), int64(n+1)))); err != nil {
			t.Fatal(err)
		}
	}
	for n, who := range []string{agent, twin} {
		if got, err := s.Client(t, auditor).TaskCalls(t.Context(), who, "t"); err != nil || len(got.Calls) != 1 || got.Calls[0].Count != int64(n+1) {
			t.Errorf("%s: got %+v, %v, want the calls of this sandbox", who, got, err)
		}
		if _, err := s.Client(t, stranger).TaskCalls(t.Context(), who, "t"); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("an auditor of another trust domain: got %v, want ErrNotFound", err)
		}
	}
	for _, who := range []string{agent, twin, admin, runtime} {
		if _, err := s.Client(t, who).TaskCalls(t.Context(), agent, "t"); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s reads: got %v, want ErrNotAllowed", who, err)
		}
	}
	// An auditor that is a workload speaks only for itself.
	if _, err := s.Client(t, auditor).ReportCalls(t.Context(), "t", callReport(session, 2)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Client(t, auditor).TaskCalls(t.Context(), agent, "t"); err != nil || !got.Complete || got.Sessions[0].Reports != 1 {
		t.Errorf("got %+v, %v, want one report of %s", got, err, agent)
	}
}

// The record must not be lost when a task ends or its sandbox is quarantined.
func TestCallsAreReportedAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	token(t, c, read)
	if _, err := c.EndTask(t.Context(), read.Task, client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
	session := uuid.NewString()
	if _, err := c.ReportCalls(t.Context(), read.Task, callReport(session, 1)); err != nil {
		t.Errorf("after the end of the task: %v", err)
	}
	if _, err := s.Client(t, admin).Quarantine(t.Context(), agent, "odd"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReportCalls(t.Context(), read.Task, callReport(session, 2)); err != nil {
		t.Errorf("in quarantine: %v", err)
	}
	s.DB.Check(t)
}

// Fifty reports with a hundred thousand calls are fifty entries, and no call is lost in the sum.
func TestManyReportedCallsAreSummedExactly(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c, session := s.Client(t, agent), uuid.NewString()
	for n := range int64(50) {
		report := callReport(session, n+1)
		for host := range 20 {
			report.Calls = append(report.Calls, callRow(fmt.Sprintf("h%d.test", host), report.Since, 100))
		}
		report.Final = n == 49
		if _, err := c.ReportCalls(t.Context(), "t", report); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Client(t, auditor).TaskCalls(t.Context(), agent, "t")
	if err != nil || !got.Complete || len(got.Calls) != 20 || got.Sessions[0].Reports != 50 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, row := range got.Calls {
		if row.Count != 5000 || row.Statuses["2xx"] != 5000 || row.BytesIn != 500 || row.BytesOut != 5000 {
			t.Errorf("got %+v, want 5000 calls", row)
		}
	}
	if entries := s.DB.Entries(t); len(entries) != 50 {
		t.Errorf("got %d entries, want 50", len(entries))
	}
}

// stoppedStack returns a stack whose clock stops when stop is called, so that no limit recovers. After that, the stack accepts no new
// SVIDs, because they are not valid yet.
func stoppedStack(t *testing.T, o testkit.Options) (s *testkit.Stack, stop func()) {
	t.Helper()
	var stopped atomic.Int64
	o.Now = func() time.Time {
		if at := stopped.Load(); at != 0 {
			return time.Unix(0, at)
		}
		return time.Now()
	}
	return testkit.NewStack(t, o), func() { stopped.Store(time.Now().UnixNano()) }
}

// reportUntilLimited repeats a report until it is refused, at most 100 times, and returns how many were accepted.
func reportUntilLimited(t *testing.T, c *client.Client, report openapi.CallReport) (accepted int) {
	t.Helper()
	for ; accepted < 100; accepted++ {
		if _, err := c.ReportCalls(t.Context(), "t", report); err != nil {
			if p := new(client.Problem); !errors.As(err, &p) || p.Status != 429 || p.Code != openapi.CodeRateLimited || p.RetryAfter != 5*time.Second {
				t.Fatalf("got %v for report %d, want rate_limited with Retry-After 5", err, accepted+1)
			}
			break
		}
	}
	return accepted
}

// A sandbox can send 60 reports at once. Then it is told to wait, and others are not. It can still send final reports, 60 at once.
func TestCallReportsAreRateLimited(t *testing.T) {
	t.Parallel()
	s, stop := stoppedStack(t, officers)
	c, other, audits, session := s.Client(t, agent), s.Client(t, twin), s.Client(t, auditor), uuid.NewString()
	report, last := callReport(session, 1), callReport(session, 2)
	report.Final = false
	stop()
	if n := reportUntilLimited(t, c, report); n != 60 {
		t.Errorf("got %d reports accepted, want 60", n)
	}
	if _, err := other.ReportCalls(t.Context(), "t", report); err != nil {
		t.Errorf("another sandbox meanwhile: %v", err)
	}
	if n := reportUntilLimited(t, c, last); n != 60 {
		t.Errorf("got %d final reports accepted, want 60", n)
	}
	if got, err := audits.TaskCalls(t.Context(), agent, "t"); err != nil || !got.Complete {
		t.Errorf("got %+v, %v, want the session closed", got.Sessions, err)
	}
}

// The sandboxes of a trust domain can together send 600 reports at once. Reports over the limit of their sandbox do not count, and
// another trust domain has its own limit (T11).
func TestCallReportsOfATrustDomainAreRateLimited(t *testing.T) {
	t.Parallel()
	s, stop := stoppedStack(t, officers)
	report := callReport(uuid.NewString(), 1)
	report.Final = false
	another, foreign := s.Client(t, agent), s.Client(t, "spiffe://other.test/agents/a")
	var sandboxes []*client.Client
	for n := range 10 {
		sandboxes = append(sandboxes, s.Client(t, fmt.Sprintf("spiffe://acme.test/agents/n%d", n)))
	}
	stop()
	accepted := 0
	for _, c := range sandboxes { // each sends one more than it may
		accepted += reportUntilLimited(t, c, report)
	}
	if accepted != 600 {
		t.Errorf("got %d reports of ten sandboxes accepted, want 600", accepted)
	}
	final := report
	final.Final = true
	for name, one := range map[string]openapi.CallReport{"a report": report, "a final report": final} {
		if n := reportUntilLimited(t, another, one); n != 0 {
			t.Errorf("%s of another sandbox: got %d accepted, want none", name, n)
		}
	}
	if _, err := foreign.ReportCalls(t.Context(), "t", report); err != nil {
		t.Errorf("a sandbox of another trust domain: %v", err)
	}
}

// An invalid report is refused, and the problem names what is invalid.
func TestInvalidCallReportsAreRefused(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	until := time.Now().UTC().Truncate(time.Second)
	at := func(d time.Duration) string { return until.Add(d).Format(time.RFC3339) }
	row := func() map[string]any {
		return map[string]any{"host": "a.test", "method": "GET", "count": 2, "first": at(-time.Second), "last": at(0), "statuses": map[string]any{"2xx": 1, "none": 1}}
	}
	full := map[string]any{"session": uuid.NewString(), "sequence": 1, "since": at(-time.Minute), "until": at(0), "final": true, "calls": []any{row()}}
	with := func(of map[string]any, changes ...any) map[string]any {
		out := map[string]any{}
		maps.Copy(out, of)
		for i := 0; i < len(changes); i += 2 {
			if out[changes[i].(string)] = changes[i+1]; changes[i+1] == nil {
				delete(out, changes[i].(string))
			}
		}
		return out
	}
	rows := func(changes ...any) map[string]any { return with(full, "calls", []any{with(row(), changes...)}) }
	others := with(row(), "host", nil, "method", nil, "other", true)
	many := make([]any, 129)
	for i := range many {
		many[i] = row()
	}
	cases := map[string]struct {
		body   map[string]any
		status int
		field  string
	}{
		"no session":              {with(full, "session", nil), 422, ""},
		"a session in capitals":   {with(full, "session", strings.ToUpper(uuid.NewString())), 422, "session"},
		"number zero":             {with(full, "sequence", 0), 422, "sequence"},
		"too large a number":      {with(full, "sequence", 10_000_001), 422, "sequence"},
		"a fraction":              {with(full, "sequence", 1.5), 422, "sequence"},
		"no rows":                 {with(full, "calls", nil), 422, ""},
		"too many rows":           {with(full, "calls", many), 422, "calls"},
		"another member":          {with(full, "spiffe_id", twin), 400, ""},
		"another member of a row": {rows("user", "x"), 422, "calls"},
		"a period backwards":      {with(full, "since", at(time.Second)), 422, "until"},
		"a period long ago":       {with(full, "since", "1999-12-31T00:00:00Z"), 422, "since"},
		"a period to come":        {with(full, "until", at(2*time.Hour)), 422, "until"},
		"no time":                 {with(full, "until", "yesterday"), 422, "until"},
		"no host":                 {rows("host", nil), 422, "calls"},
		"an empty host":           {rows("host", ""), 422, "calls"},
		"a long host":             {rows("host", strings.Repeat("x", 254)), 422, "calls"},
		"a host of many bytes":    {rows("host", strings.Repeat("é", 127)), 422, "calls"},
		"a host with NUL":         {rows("host", "a\x00"), 400, ""},
		"no method":               {rows("method", nil), 422, "calls"},
		"a method of many bytes":  {rows("method", strings.Repeat("é", 17)), 422, "calls"},
		"a path of many bytes":    {rows("path", strings.Repeat("é", 513)), 422, "calls"},
		"no scope name":           {rows("scope", "git"), 422, "calls"},
		"no code":                 {rows("refused", "No rule"), 422, "calls"},
		"a long code":             {rows("refused", strings.Repeat("x", 65)), 422, "calls"},
		"no count":                {rows("count", 0), 422, "calls"},
		"too large a count":       {rows("count", 1_000_000_001), 422, "calls"},
		"answers that do not fit": {rows("count", 3), 422, "calls"},
		"another class":           {rows("statuses", map[string]any{"2xx": 1, "6xx": 1}), 422, "calls"},
		"fewer than none":         {rows("statuses", map[string]any{"2xx": 3, "none": -1}), 422, "calls"},
		"bytes below zero":        {rows("bytes_in", -1), 422, "calls"},
		"too many bytes":          {rows("bytes_out", 9007199254740992), 422, "calls"},
		"before the period":       {rows("first", at(-time.Hour)), 422, "calls"},
		"after the period":        {rows("last", at(time.Hour)), 422, "calls"},
		"last before first":       {rows("last", at(-2*time.Second)), 422, "calls"},
		"others with a host":      {with(full, "calls", []any{with(others, "host", "a.test")}), 422, "calls"},
		"others twice":            {with(full, "calls", []any{others, others}), 422, "calls"},
		"too large":               {rows("path", strings.Repeat("x", 64<<10)), 413, ""},
	}
	var left []string
	for name := range cases {
		left = append(left, name)
	}
	slices.Sort(left)
	for i, name := range left { // 20 for each sandbox, which may send 60
		tc := cases[name]
		body, err := json.Marshal(tc.body)
		if err != nil {
			t.Fatal(err)
		}
		auth := "Bearer " + s.JWT(t, fmt.Sprintf("spiffe://acme.test/agents/n%d", i/20))
		got := wire{target: "/v1/tasks/t/calls", body: string(body), auth: auth}.send(t, s)
		if got.status != tc.status || tc.field != "" && !strings.Contains(got.text, `"field":"`+tc.field+`"`) {
			t.Errorf("%s: got %d %s, want %d about %q", name, got.status, got.text, tc.status, tc.field)
		}
	}
	secret := full
	secret["calls"] = []any{with(row(), "host", "ghp_"+strings.Repeat("a1B2", 9))}
	body, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	if got := (wire{target: "/v1/tasks/t/calls", body: string(body)}).send(t, s); got.status != 200 {
		t.Fatalf("a host that looks like a secret: got %d %s, want it recorded", got.status, got.text)
	}
	if calls, err := s.Client(t, auditor).TaskCalls(t.Context(), agent, "t"); err != nil || calls.Calls[0].Host != "(looks like a secret)" {
		t.Errorf("got %+v, %v, want the host replaced", calls, err)
	}
}

// A report with as many rows as there may be, and every member in each, is accepted.
func TestFullCallReportIsAccepted(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	report := callReport(uuid.NewString(), 1)
	for n := range client.MaxCallRows {
		row := callRow(fmt.Sprintf("h%d.test", n), report.Since, 6)
		row.Refused, row.Statuses = "no_rule", map[string]int64{"1xx": 1, "2xx": 1, "3xx": 1, "4xx": 1, "5xx": 1, "none": 1}
		report.Calls = append(report.Calls, row)
	}
	if _, err := s.Client(t, agent).ReportCalls(t.Context(), "t", report); err != nil {
		t.Error(err)
	}
}
