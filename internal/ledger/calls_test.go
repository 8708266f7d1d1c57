package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// called returns a report of calls, of which each row counts two.
func called(session string, sequence int64, hosts ...string) broker.CallReport {
	at := moment().Truncate(time.Microsecond)
	report := broker.CallReport{
		Task: "t1", Sandbox: broker.Actor{Workload: allowed(nil).Subject}, Time: at.Add(time.Minute),
		Session: session, Sequence: sequence, Since: at.Add(time.Duration(sequence) * time.Second), Until: at.Add(time.Duration(sequence+1) * time.Second),
	}
	for _, host := range hosts {
		report.Calls = append(report.Calls, broker.CallRow{
			Host: host, Method: "GET", Count: 2, First: report.Since, Last: report.Until, Statuses: map[string]int64{"2xx": 1, "none": 1}, BytesIn: 5,
		})
	}
	return report
}

func reportCalls(t *testing.T, l *ledger.Ledger, reports ...broker.CallReport) {
	t.Helper()
	for _, report := range reports {
		if _, err := l.ReportCalls(t.Context(), report); err != nil {
			t.Fatalf("report %d: %v", report.Sequence, err)
		}
	}
}

// If two replicas get a report many times at once, it is recorded once, and all callers get the time of that record. A different
// report of the same number is refused.
func TestCallReportIsRecordedOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	report := called(uuid.NewString(), 1, "a.test")
	times := make([]time.Time, 20)
	var group sync.WaitGroup
	for n := range times {
		group.Go(func() {
			again := report
			again.Time = report.Time.Add(time.Duration(n) * time.Second)
			again.Sandbox.Workload.Thumbprint = fmt.Sprint(n) // the SVID rotates
			var err error
			if times[n], err = replicas[n%2].ReportCalls(t.Context(), again); err != nil {
				t.Errorf("ReportCalls: %v", err)
			}
		})
	}
	group.Wait()
	if entries := db.Entries(t); len(entries) != 1 || entries[0].Kind != "calls.recorded" || entries[0].ID != report.ID() || len(slices.Compact(times)) != 1 {
		t.Errorf("got %v of %d entries, want one", times, len(entries))
	}
	for name, change := range map[string]func(*broker.CallReport){
		"another host":   func(r *broker.CallReport) { r.Calls = called(r.Session, 1, "b.test").Calls },
		"another period": func(r *broker.CallReport) { r.Until = r.Until.Add(time.Second) },
		"the last one":   func(r *broker.CallReport) { r.Final = true },
		"no calls":       func(r *broker.CallReport) { r.Calls = nil },
	} {
		other := report
		change(&other)
		if _, err := replicas[0].ReportCalls(t.Context(), other); !errors.Is(err, broker.ErrAlreadyReported) {
			t.Errorf("%s: got %v, want ErrAlreadyReported", name, err)
		}
	}
	db.Check(t)
}

// A report that does not fit an entry is refused.
func TestCallReportThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	report := called(uuid.NewString(), 1)
	for n := range 128 {
		host := called(report.Session, 1, fmt.Sprintf("%d.test", n)).Calls[0]
		host.Path = "/" + strings.Repeat("x", 1000)
		report.Calls = append(report.Calls, host)
	}
	if _, err := db.Ledger(t).ReportCalls(t.Context(), report); !errors.Is(err, broker.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

// The sums leave out nothing: what has no row is in the row other, and what is not reported is named.
func TestTaskCallsSumsAllReports(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	whole, gaps, open := uuid.NewString(), uuid.NewString(), uuid.NewString()
	first := called(whole, 1, "a.test", "b.test")
	other := called(whole, 2, "a.test").Calls[0]
	other.Host, other.Method, other.Other = "", "", true
	second := called(whole, 2, "a.test")
	second.Calls, second.Final = append(second.Calls, other), true
	reportCalls(t, l, first, second)
	got, err := l.TaskCalls(t.Context(), sandbox, "t1", everything)
	if err != nil || !got.Complete || len(got.Sessions) != 1 || len(got.Calls) != 3 {
		t.Fatalf("got %+v, %v, want three rows of one complete session", got, err)
	}
	want := first.Calls[0]
	want.Count, want.BytesIn, want.Last, want.Statuses = 4, 10, second.Calls[0].Last, map[string]int64{"2xx": 2, "none": 2}
	if diff := gocmp.Diff([]broker.CallRow{want, first.Calls[1], other}, got.Calls); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s := got.Sessions[0]; s.Reports != 2 || !s.Closed || len(s.Missing) > 0 || !s.Since.Equal(first.Since) || !s.Until.Equal(second.Until) {
		t.Errorf("got %+v, want two reports", s)
	}
	last := called(gaps, 205)
	last.Final = true
	reportCalls(t, l, called(gaps, 2), called(gaps, 4), last, called(open, 1))
	for from := 0; from < 1200; from += 100 {
		hosts := make([]string, 100)
		for n := range hosts {
			hosts[n] = fmt.Sprintf("%d.test", from+n)
		}
		reportCalls(t, l, called(open, int64(2+from/100), hosts...))
	}
	got, err = l.TaskCalls(t.Context(), sandbox, "t1", everything)
	if err != nil || got.Complete || got.SessionCount != 3 || len(got.Sessions) != 3 || got.Sessions[2].Session != whole {
		t.Fatalf("got %+v, %v, want three sessions, the complete one last", got.Sessions, err)
	}
	missing := func(s broker.CallSession) bool {
		return s.Session == gaps && s.Closed && len(s.Missing) == broker.MaxMissing && slices.Equal(s.Missing[:4], []int64{1, 3, 5, 6})
	}
	if !slices.ContainsFunc(got.Sessions, missing) || !slices.ContainsFunc(got.Sessions, func(s broker.CallSession) bool { return s.Session == open && !s.Closed }) {
		t.Errorf("got %+v, want one with gaps and one that is not closed", got.Sessions)
	}
	var sum int64
	for _, c := range got.Calls {
		sum += c.Count
	}
	if end := got.Calls[len(got.Calls)-1]; len(got.Calls) != broker.MaxCallRows+1 || !end.Other || end.Count != 2*(202+1) || sum != 2*(1200+4) {
		t.Errorf("got %d rows, %d calls and %+v, want a thousand rows and the others", len(got.Calls), sum, end)
	}
	for name, reach := range map[string]broker.Reach{
		"nothing": {}, "another trust domain": {TrustDomains: []string{"other.test"}}, "another path": {Within: []string{sandbox + "/b"}},
	} {
		if _, err := l.TaskCalls(t.Context(), sandbox, "t1", reach); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("within %s: got %v, want ErrNotFound", name, err)
		}
	}
	events, err := l.Timeline(t.Context(), broker.TimelineQuery{SPIFFEID: sandbox, Task: "t1", Limit: 2}, everything)
	if err != nil || len(events) != 2 || events[0].Kind != "calls.recorded" || *events[0].Calls != 4 || *events[0].Refused != 0 {
		t.Errorf("got %+v, %v, want the first two reports", events, err)
	}
	db.Check(t)
}

// The tables accept only rows that repeat their entries, whoever writes them.
func TestDatabaseRefusesInvalidCallReports(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	report := called(uuid.NewString(), 1, "a.test")
	reportCalls(t, l, report)
	const session = "5a0c7d3e-9b1f-4c62-8d55-2e4b6f7a9013"
	again := `{"session": "` + report.Session + `"}`
	conn := testkit.Connect(t, db.BrokerURL)
	for name, tc := range map[string]struct{ doc, said, row, want string }{
		"what is so":           {`{}`, `{}`, `{}`, ""},
		"no calls":             {`{}`, `{"calls": []}`, `{}`, ""},
		"another task":         {`{}`, `{}`, `{"task": "t2"}`, violation},
		"another sandbox":      {`{}`, `{}`, `{"spiffe_id": "spiffe://acme.test/x"}`, violation},
		"another trust domain": {`{}`, `{}`, `{"trust_domain": "other.test"}`, violation},
		"another session":      {`{}`, `{}`, again, notUnique},
		"another number":       {`{}`, `{}`, `{"sequence": 3}`, violation},
		"another start":        {`{}`, `{}`, `{"since": "2026-01-01T00:00:00Z"}`, violation},
		"another end":          {`{}`, `{}`, `{"until": "2096-01-01T00:00:00Z"}`, violation},
		"another time":         {`{}`, `{}`, `{"time": "2026-01-01T00:00:00Z"}`, violation},
		"another entry":        {`{}`, `{}`, `{"entry_index": 0}`, notUnique},
		"no entry":             {`{}`, `{}`, `{"entry_index": 77}`, violation},
		"not the last":         {`{}`, `{}`, `{"final": true}`, violation},
		"the same again":       {`{}`, again, again, notUnique},
		"another id":           {`{}`, `{}`, `{"id": "` + uuid.NewString() + `"}`, violation},
		"number zero":          {`{}`, `{"sequence": 0}`, `{"sequence": 0}`, violation},
		"too large a number":   {`{}`, `{"sequence": 10000001}`, `{"sequence": 10000001}`, violation},
		"a period backwards":   {`{}`, `{"until": "2026-01-01T00:00:00Z"}`, `{"until": "2026-01-01T00:00:00Z"}`, violation},
		"by nobody":            {`{"actor": null}`, `{}`, `{}`, violation},
		"without rows":         {`{}`, `{"calls": null}`, `{}`, violation},
		"a row of nothing":     {`{}`, `{"calls": [{"count": 0}]}`, `{}`, violation},
		"a row without count":  {`{}`, `{"calls": [{}]}`, `{}`, violation},
		"a row of too much":    {`{}`, `{"calls": [{"count": 1000000001}]}`, `{}`, violation},
		"too many rows":        {`{}`, `{"calls": [` + strings.Repeat(`{"count": 1},`, 128) + `{"count": 1}]}`, `{}`, violation},
		"another kind":         {`{"kind": "call.refused"}`, `{}`, `{}`, violation},
	} {
		got := refusedBy(t, conn, `
			WITH head AS (
				UPDATE ledger_head SET size = size + 1 RETURNING size - 1 AS index
			), doc AS (
				SELECT gen_random_uuid() AS id, jsonb_build_object('session', $4::text, 'sequence', 1, 'since', $5::timestamptz,
						'until', $5::timestamptz, 'final', false, 'calls', '[{"count": 2}]'::jsonb) || $2::jsonb AS report
			), said AS (
				SELECT doc.id, jsonb_build_object('id', id, 'kind', 'calls.recorded', 'task', 't1', 'report', report,
					'actor', jsonb_build_object('spiffe_id', $6::text, 'trust_domain', 'acme.test')) || $1::jsonb AS said, report FROM doc
			), appended AS (
				INSERT INTO entries (index, id, time, kind, body, leaf_hash)
				SELECT head.index, id, $5, said ->> 'kind', convert_to(said::text, 'UTF8'), sha256('\x00'::bytea || convert_to(said::text, 'UTF8')) FROM head, said
			)
			INSERT INTO call_reports SELECT (jsonb_populate_record(NULL::call_reports, jsonb_build_object('id', id, 'trust_domain', 'acme.test',
				'spiffe_id', $6::text, 'task', 't1', 'session', $4::text, 'sequence', 1, 'since', $5::timestamptz, 'until', $5::timestamptz,
				'final', false, 'time', $5::timestamptz, 'entry_index', head.index) || $3::jsonb)).*
			FROM said, head`, tc.doc, tc.said, tc.row, session, report.Since, sandbox)
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	db.Check(t)
}

// The owner of the database can append what the broker never would. An auditor sees that no gateway can have made such a report,
// or that a row is missing.
func TestForgedCallReportIsDetected(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	reportCalls(t, l, called(uuid.NewString(), 1, "a.test"))
	report := called("5a0c7d3e-9b1f-4c62-8d55-2e4b6f7a9013", 1)
	const valid = `{"actor":{"spiffe_id":"SANDBOX"},"id":"ID","kind":"calls.recorded","report":{"calls":[{"count":2,"first":"2095-01-01T00:00:00Z",` +
		`"host":"a.test","last":"2095-01-02T00:00:00Z","method":"GET","statuses":{"2xx":2}}],"final":false,"sequence":1,"session":"SESSION",` +
		`"since":"2095-01-01T00:00:00Z","until":"2095-01-02T00:00:00Z"},"task":"t1","time":"2096-01-01T00:00:00Z","version":1}`
	filled := strings.NewReplacer("SANDBOX", sandbox, "ID", report.ID(), "SESSION", report.Session).Replace(valid)
	for name, change := range map[string][2]string{
		"another id":                {report.ID(), uuid.NewString()},
		"another sandbox":           {sandbox, sandbox + "/x"},
		"another task":              {`"t1"`, `"t2"`},
		"another number":            {`"sequence":1`, `"sequence":2`},
		"number zero":               {`"sequence":1`, `"sequence":0`},
		"no sandbox":                {sandbox, "x"},
		"no report":                 {`"report"`, `"nothing"`},
		"no calls in a row":         {`"count":2`, `"count":0`},
		"answers that do not fit":   {`"2xx":2`, `"2xx":1`},
		"before it began":           {`"first":"2095-01-01`, `"first":"2094-01-01`},
		"after it ended":            {`"last":"2095-01-02`, `"last":"2095-01-03`},
		"a period backwards":        {`"until":"2095-01-02`, `"until":"2094-01-02`},
		"no host":                   {`"host":"a.test",`, ``},
		"all others, with a host":   {`"method":"GET"`, `"method":"GET","other":true`},
		"too many rows":             {`"calls":[`, `"calls":[` + strings.Repeat(`{"count":1,"first":"2095-01-01T00:00:00Z","host":"b","last":"2095-01-01T00:00:00Z","method":"GET","statuses":{"2xx":1}},`, 128)},
		"a session that is no UUID": {report.Session, "x"},
	} {
		got := verifyWith(t, db, strings.Replace(filled, change[0], change[1], 1))
		if len(got.Findings) != 1 || got.Findings[0].Code != audit.Impossible || got.Findings[0].Index != 1 {
			t.Errorf("%s: got %+v, want it impossible", name, got.Findings)
		}
	}
	if got := verifyWith(t, db, filled); len(got.Findings) != 1 || got.Findings[0].Where != "call_reports" {
		t.Errorf("what can be: got %+v, want its row missing", got.Findings)
	}
}
