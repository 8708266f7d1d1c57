package egress

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
)

const (
	// The first report of a session is sent when its first call ends, so that auditors know of the session even if the gateway dies
	// right after that. firstPause is the time to the next one. While calls keep coming, the pause doubles up to longestPause, so that a
	// busy task has few entries in the ledger. It is firstPause again after a time of longestPause without a call.
	firstPause   = 5 * time.Second
	longestPause = time.Minute
	// maxRowText bounds the texts in the rows of a report, in bytes: Brevet accepts a report of 64 KiB, and the numbers and times of a
	// row take 320 bytes at most.
	maxRowText = 16 << 10
	// The greatest lengths in a row, in bytes.
	maxRowHost   = 253
	maxRowMethod = 32
	maxRowPath   = 1024
	// maxRowBytes is where a sum of bytes stays.
	maxRowBytes = 1<<53 - 1
	// maxTries is how many attempts a report has if Brevet calls it invalid. The cause may pass before: a clock that is ahead makes a
	// report end in the future.
	maxTries = 10
	// abortWithin is how long the last report waits for the calls in progress, which have been aborted. finalWithin bounds the whole
	// wait for that report: Brevet accepts a report every five seconds from a sandbox that sends many.
	abortWithin = 3 * time.Second
	finalWithin = 6 * time.Second
)

const (
	// methodPostgres is the method of a database session.
	methodPostgres = "POSTGRESQL"
	// invalidHost and invalidMethod stand for what is not valid. The host is a name that nobody can have (RFC 2606).
	invalidHost   = "invalid"
	invalidMethod = "INVALID"
)

// recorder counts the calls of one sandbox, and reports the counts to Brevet.
//
// A call is counted when it ends, so a WebSocket, an event stream or a database session counts in the report after its end. A report
// that Brevet has not acknowledged is repeated unchanged, while the recorder counts new calls for the next one. No call waits for a
// report.
//
// The reports of a recorder are a session. Its last report is final: the session then has every call. If the recorder cannot say
// that, because a call did not end in time or a report was lost, it sends no final report, and auditors see that the session is
// not closed.
type recorder struct {
	report func(context.Context, openapi.CallReport) error
	now    func() time.Time
	log    *slog.Logger

	life    context.Context //nolint:containedctx // attempts to report end with it
	end     context.CancelFunc
	closing chan struct{}

	mu       sync.Mutex
	rows     map[callKey]*tally
	text     int   // bytes of the texts in rows
	loose    int   // loose rows
	other    tally // all calls without a row
	open     int   // calls in progress
	idle     chan struct{}
	closed   bool          // the next report is the last
	over     bool          // the last report is made
	running  chan struct{} // closes when run returns; nil while nothing is to be reported
	session  string
	sequence int64
	since    time.Time // the end of the period of the last report
	latest   time.Time // of the last call
	pause    time.Duration
}

// callKey is what the calls of a row have in common.
type callKey struct{ host, method, path, scope, refused string }

// loose reports whether another row may displace the row: its calls match no rule, or did not pass.
func (k callKey) loose() bool { return k.scope == "" || k.refused != "" }

func (k callKey) size() int {
	return len(k.host) + len(k.method) + len(k.path) + len(k.scope) + len(k.refused)
}

// tally counts the calls of a row.
type tally struct {
	count       int64
	statuses    [len(statusClasses)]int64
	in, out     int64
	first, last time.Time
}

// statusClasses are the names of the classes of statuses, by the first digit. A call without a status is in the first one.
var statusClasses = [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

// endedCall is a call that is over.
type endedCall struct {
	callKey
	status  int   // of the response of the host; 0 for none
	in, out int64 // bytes of content from the sandbox and to it
}

func newRecorder(report func(context.Context, openapi.CallReport) error, now func() time.Time, log *slog.Logger) *recorder {
	r := &recorder{
		report: report, now: now, log: log, closing: make(chan struct{}), rows: map[callKey]*tally{}, session: uuid.NewString(),
		since: now().UTC(),
	}
	r.latest = r.since
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// begin says that a call has begun. The caller must call ended when it is over.
func (r *recorder) begin() {
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
}

// ended counts a call that began.
func (r *recorder) ended(call endedCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(call)
	if r.open--; r.open == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// refused counts a call that was refused before it began.
func (r *recorder) refused(host, method string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(endedCall{callKey: callKey{host: host, method: method, refused: codeOf(err)}})
}

func codeOf(err error) string {
	if err == nil {
		return ""
	}
	p, _ := problemOf(err)
	return string(p.Code)
}

func (r *recorder) count(call endedCall) {
	// The clock may go back, and calls may end at once: the times in a report only grow.
	if now := r.now().UTC(); now.After(r.latest) {
		r.latest = now
	}
	key := call.normalized()
	r.row(key).add(call, r.latest)
	switch {
	case r.over:
		r.log.Warn("egress call not recorded: it ended after the last report", "host", key.host, "refused", key.refused)
	case r.running == nil:
		if r.sequence > 0 && r.latest.Sub(r.since) >= longestPause {
			r.pause = firstPause
		}
		r.running = make(chan struct{})
		go r.run()
	}
}

// row returns the row of a key, or the one for all others if there is no room. Calls that passed displace loose rows: with made-up
// hosts, a sandbox must not be able to hide where it used credentials.
func (r *recorder) row(key callKey) *tally {
	if row := r.rows[key]; row != nil {
		return row
	}
	full := func() bool { return len(r.rows) >= client.MaxCallRows-1 || r.text+key.size() > maxRowText }
	if !key.loose() && r.loose > 0 && full() {
		for k, row := range r.rows {
			if k.loose() && full() {
				r.other.merge(row)
				delete(r.rows, k)
				r.text, r.loose = r.text-k.size(), r.loose-1
			}
		}
	}
	if full() {
		return &r.other
	}
	if key.loose() {
		r.loose++
	}
	r.text += key.size()
	r.rows[key] = &tally{}
	return r.rows[key]
}

// normalized returns the key in the form that a report may have. Only calls that match a rule have a path, and a host that no rule
// names may be a secret in a mistyped URL. That shows in the original letters only.
func (k callKey) normalized() callKey {
	valid := k.scope != "" || !secret.Shaped(k.host)
	k.host = origin(k.host)
	valid = valid && k.host != "" && len(k.host) <= maxRowHost
	for i := 0; valid && i < len(k.host); i++ {
		c := k.host[i]
		valid = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte(".-_:[]", c) >= 0
	}
	if !valid {
		k.host = invalidHost
	}
	valid = k.method != "" && len(k.method) <= maxRowMethod
	for i := 0; valid && i < len(k.method); i++ {
		c := k.method[i]
		valid = c >= 'A' && c <= 'Z' || c == '-' || c == '_'
	}
	if !valid {
		k.method = invalidMethod
	}
	k.path = k.path[:min(len(k.path), maxRowPath)]
	return k
}

func (t *tally) add(call endedCall, at time.Time) {
	if t.count == 0 {
		t.first = at
	}
	t.last = at
	t.count++
	class := call.status / 100
	if class >= len(statusClasses) {
		class = 0
	}
	t.statuses[class]++
	t.in, t.out = min(t.in+call.in, maxRowBytes), min(t.out+call.out, maxRowBytes)
}

// merge adds the calls of another row.
func (t *tally) merge(o *tally) {
	if t.count == 0 || o.first.Before(t.first) {
		t.first = o.first
	}
	if o.last.After(t.last) {
		t.last = o.last
	}
	t.count += o.count
	for class, n := range o.statuses {
		t.statuses[class] += n
	}
	t.in, t.out = min(t.in+o.in, maxRowBytes), min(t.out+o.out, maxRowBytes)
}

// run sends reports until there is nothing more to report.
func (r *recorder) run() {
	for {
		r.mu.Lock()
		pause, done := r.pause, r.running
		r.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-r.closing:
		}
		report, last := r.cut()
		if report == nil || !r.deliver(*report) || last {
			close(done)
			return
		}
	}
}

// cut returns a report of the calls since the one before, and whether it is the last. It returns nil if there is nothing to report.
func (r *recorder) cut() (report *openapi.CallReport, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = r.closed
	if len(r.rows) == 0 && r.other.count == 0 && (!r.closed || r.sequence == 0 || r.open > 0) {
		r.running = nil
		return nil, false
	}
	until := r.latest
	if now := r.now().UTC(); now.After(until) {
		until = now
	}
	r.sequence++
	report = &openapi.CallReport{
		Session: r.session, Sequence: r.sequence, Since: stamp(r.since), Until: stamp(until), Final: r.closed && r.open == 0,
		Calls: make([]openapi.CallRow, 0, len(r.rows)+1),
	}
	for key, t := range r.rows {
		row := t.row()
		row.Host, row.Method, row.Path, row.Scope, row.Refused = key.host, key.method, key.path, key.scope, key.refused
		report.Calls = append(report.Calls, row)
	}
	slices.SortFunc(report.Calls, func(a, b openapi.CallRow) int {
		return cmp.Or(
			cmp.Compare(a.Host, b.Host), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Refused, b.Refused),
		)
	})
	if r.other.count > 0 {
		row := r.other.row()
		row.Other = true
		report.Calls = append(report.Calls, row)
	}
	clear(r.rows)
	r.text, r.loose, r.other, r.since, r.latest = 0, 0, tally{}, until, until
	r.pause = min(max(2*r.pause, firstPause), longestPause)
	return report, r.closed
}

// stamp returns a time with the precision of the record. It never reorders two times.
func stamp(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

func (t *tally) row() openapi.CallRow {
	row := openapi.CallRow{
		Count: t.count, First: stamp(t.first), Last: stamp(t.last), Statuses: map[string]int64{},
		BytesIn: t.in, BytesOut: t.out,
	}
	for class, n := range t.statuses {
		if n > 0 {
			row.Statuses[statusClasses[class]] = n
		}
	}
	return row
}

// deliver sends a report until Brevet acknowledges it. It returns false if the recorder ends before that.
func (r *recorder) deliver(report openapi.CallReport) bool {
	log := r.log.With("session", report.Session, "sequence", report.Sequence, "calls", calls(report))
	pauses := backoff.NewExponentialBackOff() // with jitter, so that gateways do not retry all at once
	pauses.InitialInterval, pauses.MaxInterval = time.Second, longestPause
	closing := r.closing
	for tries := 1; ; tries++ {
		ctx, cancel := context.WithTimeout(r.life, reportWithin)
		err := r.report(ctx, report)
		cancel()
		switch {
		case err == nil && tries > 1:
			log.Info("egress calls reported at last", "tries", tries)
			return true
		case err == nil:
			return true
		case errors.Is(err, client.ErrAlreadyReported): // never, because a report is repeated unchanged
			log.Error("egress calls not recorded: Brevet has another report with their number", "error", err)
			r.restart(nil)
			return true
		case errors.Is(err, client.ErrInvalid) && tries >= maxTries:
			log.Error("egress calls not recorded yet: Brevet refuses their report, and a new session counts them as others", "error", err)
			r.restart(report.Calls)
			return true
		case r.life.Err() != nil:
			log.Error("egress calls not recorded", "error", err)
			return false
		case tries == 1:
			log.Warn("egress calls not reported yet", "error", err)
		}
		pause, hurry := pauses.NextBackOff(), closing
		if theirs, ok := errors.AsType[*client.Problem](err); ok && theirs.RetryAfter > 0 {
			pause, hurry = max(pause, theirs.RetryAfter), nil
		}
		select {
		case <-time.After(pause):
		case <-hurry: // the gateway stops: try once more without a pause
			closing = nil
			pauses.Reset()
		case <-r.life.Done():
		}
	}
}

// restart begins a new session, which auditors see beside the one that is not closed. The calls are in its next report, in the row for
// all others.
func (r *recorder) restart(calls []openapi.CallRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session, r.sequence, r.since = uuid.NewString(), 0, r.now().UTC()
	r.latest = r.since
	for _, row := range r.rows {
		row.first, row.last = r.since, r.since // the clock may have been wrong
	}
	for _, row := range calls {
		t := tally{count: row.Count, in: row.BytesIn, out: row.BytesOut, first: r.since, last: r.since}
		for class, name := range statusClasses {
			t.statuses[class] = row.Statuses[name]
		}
		r.other.merge(&t)
	}
	if r.other.count > 0 {
		r.other.first, r.other.last = r.since, r.since
	}
}

func calls(report openapi.CallReport) (n int64) {
	for _, row := range report.Calls {
		n += row.Count
	}
	return n
}

// close sends the last report, once the calls in progress have ended. It logs what it could not report within finalWithin.
func (r *recorder) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalWithin)
	defer cancel()
	defer r.end()
	r.awaitIdle(ctx)
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.closed = true
	running := r.running
	if running == nil {
		running = make(chan struct{})
		r.running = running
		go r.run()
	}
	r.mu.Unlock()
	close(r.closing)
	select {
	case <-running:
	case <-ctx.Done():
		r.end()
		<-running
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.other.count
	for _, row := range r.rows {
		lost += row.count
	}
	if lost > 0 || r.open > 0 {
		r.log.ErrorContext(ctx, "egress calls not recorded", "session", r.session, "calls", lost, "in_progress", r.open)
	}
}

// awaitIdle waits until no call is in progress, or for abortWithin.
func (r *recorder) awaitIdle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, abortWithin)
	defer cancel()
	idle := make(chan struct{})
	r.mu.Lock()
	if r.open == 0 {
		close(idle)
	} else {
		r.idle = idle
	}
	r.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
