package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/google/uuid"
)

// CallReport is what an egress gateway passed and refused for a sandbox during a task, since its previous report. Nobody else can
// check it: the gateway speaks as the sandbox.
type CallReport struct {
	Task    string
	Sandbox Actor
	Time    time.Time // of the record
	// Session is the UUID of one run of the gateway, and Sequence the number of the report in it, from 1.
	Session  string
	Sequence int64
	// Since and Until delimit the period that the report covers.
	Since, Until time.Time
	Final        bool // it is the last one of its session
	Calls        []CallRow
}

// CallRow counts calls that have the same Host, Method, Path, Scope and Refused.
type CallRow struct {
	// Host and Method are untrusted text from the sandbox. Path is the pattern of the egress rule. Scope is empty if the calls
	// matched no rule, and Refused is empty if the gateway passed them.
	Host, Method, Path, Scope, Refused string
	// Other is set in the row that sums all calls without a row of their own. Its other names are empty.
	Other       bool
	Count       int64
	First, Last time.Time
	// Statuses counts the answers of the destination by their class, "1xx" to "5xx", and calls without an answer as "none".
	Statuses map[string]int64
	// BytesIn is what the sandbox sent, BytesOut what it received.
	BytesIn, BytesOut int64
}

// TaskCalls sums up the reports about a task.
type TaskCalls struct {
	Calls []CallRow // by First. At most MaxCallRows and the row Other, which comes last
	// Sessions lists at most MaxCallSessions, incomplete ones first, of the number SessionCount.
	Sessions     []CallSession
	SessionCount int64
	// Complete means that every session is closed and no report is missing.
	Complete bool
}

// MaxCallRows and MaxCallSessions bound TaskCalls, and MaxMissing bounds CallSession.Missing.
const MaxCallRows, MaxCallSessions, MaxMissing = 1000, 1000, 100

// CallSession is one run of an egress gateway, as far as it is reported.
type CallSession struct {
	Session      string
	Reports      int64
	Since, Until time.Time
	Closed       bool    // its last report is final
	Missing      []int64 // the first numbers without a report, before the last one
}

// callSpace is the namespace of the ids of reports (RFC 9562, UUID version 5).
var callSpace = uuid.MustParse("5a0c7d3e-9b1f-4c62-8d55-2e4b6f7a9013")

// ID returns the id of the entry that records the report. It is the same for each report of that number.
func (r CallReport) ID() string {
	name := r.Sandbox.ID() + "\x00" + r.Task + "\x00" + r.Session + "\x00" + strconv.FormatInt(r.Sequence, 10)
	return uuid.NewSHA1(callSpace, []byte(name)).String()
}

// ReportCalls records a report of the caller's egress gateway, and returns its id and the time of the record. A repeated report
// changes nothing. It returns ErrAlreadyReported if the session has a different report of that number, and ErrTooLarge if an entry
// cannot hold the report. It does not matter whether the task has ended, or the sandbox is quarantined: the record must not be lost.
func (b *Broker) ReportCalls(ctx context.Context, who attest.Identity, report CallReport) (id string, recorded time.Time, err error) {
	report.Sandbox, report.Time = WorkloadActor(who), b.cfg.Now().UTC()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	recorded, err = b.cfg.Usage.ReportCalls(ctx, report)
	return report.ID(), recorded, err
}

// TaskCalls sums up what a sandbox within reach called during a task. It returns ErrNotFound if nothing is recorded about that, and
// ErrTooBroad if counting takes too long.
func (b *Broker) TaskCalls(ctx context.Context, spiffeID, task string, reach Reach) (TaskCalls, error) {
	return b.cfg.Usage.TaskCalls(ctx, spiffeID, task, reach)
}
