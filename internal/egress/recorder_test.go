package egress_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

var errDown = errors.New("no answer from Brevet")

// receiver is what a recorder reports to. It checks what Brevet requires of reports.
type receiver struct {
	t testing.TB

	mu      sync.Mutex
	answer  func(try int, report openapi.CallReport) error // nil accepts all
	tries   []attempt
	reports []openapi.CallReport // accepted
}

type attempt struct {
	at     time.Time
	report openapi.CallReport
}

func (r *receiver) report(_ context.Context, report openapi.CallReport) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries = append(r.tries, attempt{time.Now(), report})
	if r.answer != nil {
		if err := r.answer(len(r.tries), report); err != nil {
			return err
		}
	}
	text, err := json.Marshal(report)
	if err != nil || len(text) > 60<<10 || len(report.Calls) > client.MaxCallRows || report.Since.After(report.Until) {
		r.t.Errorf("got a report of %d rows, %d bytes, from %s to %s, %v", len(report.Calls), len(text), report.Since, report.Until, err)
	}
	for i, row := range report.Calls {
		var sum int64
		for class, n := range row.Statuses {
			sum += n
			if n < 1 || !slices.Contains([]string{"1xx", "2xx", "3xx", "4xx", "5xx", "none"}, class) {
				r.t.Errorf("got %d times %s", n, class)
			}
		}
		if row.First.Before(report.Since) || row.Last.Before(row.First) || row.Last.After(report.Until) || sum != row.Count || sum < 1 {
			r.t.Errorf("got %+v in a report from %s to %s", row, report.Since, report.Until)
		}
		if row.BytesIn < 0 || row.BytesOut < 0 || max(row.BytesIn, row.BytesOut) >= 1<<53 {
			r.t.Errorf("got %d bytes in and %d out", row.BytesIn, row.BytesOut)
		}
		if row.Other != (i == len(report.Calls)-1 && row.Host == "") || row.Other != (row.Method == "") {
			r.t.Errorf("got %+v as row %d of %d", row, i, len(report.Calls))
		}
	}
	r.reports = append(r.reports, report)
	return nil
}

// sum returns how many calls all accepted reports count. It checks that the reports follow each other.
func (r *receiver) sum() (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, report := range r.reports {
		if i > 0 {
			last := r.reports[i-1]
			if report.Session != last.Session || report.Sequence != last.Sequence+1 || !report.Since.Equal(last.Until) || last.Final {
				r.t.Errorf("report %d of %s from %s follows report %d of %s until %s", report.Sequence, report.Session, report.Since, last.Sequence, last.Session, last.Until)
			}
		}
		n += countOf(report)
	}
	return n
}

func countOf(report openapi.CallReport) (n int64) {
	for _, row := range report.Calls {
		n += row.Count
	}
	return n
}

// recorded runs a test with a recorder in a bubble of time.
func recorded(t *testing.T, run func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		to, log := &receiver{t: t}, &testkit.Buffer{}
		r := egress.NewRecorder(to.report, slog.New(slog.NewTextHandler(log, nil)))
		defer r.Close(t.Context())
		run(t, to, r, log)
	})
}

var issues = openapi.CallRow{Host: "api.github.com", Method: "GET", Path: "/repos/{repo}/issues", Scope: "github.issues.read"}

// A row sums what calls have in common.
func TestReportSumsCalls(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
		r.Call(issues, 200, 0, 0) // the first call is reported at once
		synctest.Wait()
		began := time.Now()
		refused := openapi.CallRow{Host: "evil.test", Method: "POST", Refused: "egress_no_rule"}
		for i, status := range []int{200, 204, 404, 500, 101, 302, 0} {
			time.Sleep(time.Second / 2)
			r.Call(issues, status, int64(i), 10)
		}
		r.Call(refused, 0, 0, 100)
		r.Close(t.Context())
		want := issues
		want.Count, want.BytesIn, want.BytesOut = 7, 21, 70
		want.First, want.Last = began.Add(time.Second/2).UTC(), began.Add(7*time.Second/2).UTC()
		want.Statuses = map[string]int64{"1xx": 1, "2xx": 2, "3xx": 1, "4xx": 1, "5xx": 1, "none": 1}
		refused.Count, refused.BytesOut, refused.First, refused.Last, refused.Statuses = 1, 100, want.Last, want.Last, map[string]int64{"none": 1}
		if len(to.reports) != 2 || !to.reports[1].Final || to.reports[1].Sequence != 2 || !to.reports[1].Since.Equal(began) {
			t.Fatalf("got %+v", to.reports)
		}
		if diff := cmp.Diff([]openapi.CallRow{want, refused}, to.reports[1].Calls); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A recorder that counted nothing reports nothing, not even its end.
func TestSessionWithoutCallsIsNotReported(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
		time.Sleep(time.Hour)
		r.Close(t.Context())
		r.Close(t.Context())
		if len(to.tries) != 0 || log.String() != "" {
			t.Errorf("got %+v and the log %s", to.tries, log)
		}
	})
}

// However often a sandbox calls, an hour of steady calls has few reports, and the first call is reported at once.
func TestSteadyCallsHaveFewReports(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{10 * time.Millisecond, time.Second, 7 * time.Second, 15 * time.Second, 55 * time.Second, 61 * time.Second, 66 * time.Second, 2 * time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
				var made int64
				for began := time.Now(); time.Since(began) < time.Hour; made++ {
					r.Call(issues, 200, 0, 0)
					time.Sleep(pause)
				}
				r.Close(t.Context())
				if n := to.sum(); n != made || len(to.reports) > 65 {
					t.Errorf("got %d calls in %d reports, want %d in 65 at most", n, len(to.reports), made)
				}
				if first := to.reports[0]; first.Until.Sub(first.Since) > pause {
					t.Errorf("the first report covers %s", first.Until.Sub(first.Since))
				}
				if last := to.reports[len(to.reports)-1]; !last.Final {
					t.Errorf("the last report is not final")
				}
			})
		})
	}
}

// After a quiet minute, a call is reported as soon as the first one of the task.
func TestPauseIsShortAfterAQuietMinute(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
		for range 300 {
			r.Call(issues, 200, 0, 0)
			time.Sleep(time.Second)
		}
		time.Sleep(egress.LongestPause)
		synctest.Wait()
		n := len(to.reports)
		if busiest := to.reports[n-1]; busiest.Until.Sub(busiest.Since) < egress.LongestPause {
			t.Errorf("after five minutes, a report covers %s", busiest.Until.Sub(busiest.Since))
		}
		time.Sleep(egress.LongestPause)
		called := time.Now()
		r.Call(issues, 200, 0, 0)
		time.Sleep(egress.LongestPause)
		synctest.Wait()
		if len(to.reports) != n+1 || to.tries[n].at.Sub(called) != egress.FirstPause {
			t.Errorf("got %d more reports, want one after %s", len(to.reports)-n, egress.FirstPause)
		}
	})
}

// While Brevet cannot be reached, a report is repeated unchanged, and calls are counted for the next one. Nothing is lost or counted
// twice, also if Brevet recorded a report and its answer was lost.
func TestUnacknowledgedReportIsRepeatedUnchanged(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before it is recorded": false, "after it is recorded": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
				end := time.Now().Add(30 * time.Minute)
				var recordedOnce []openapi.CallReport
				to.answer = func(_ int, report openapi.CallReport) error {
					if !time.Now().Before(end) {
						return nil
					}
					if after && len(recordedOnce) == 0 {
						recordedOnce = append(recordedOnce, report)
					}
					return errDown
				}
				for range 2000 {
					r.Call(issues, 200, 1, 1)
					time.Sleep(time.Second)
				}
				r.Close(t.Context())
				tries := 0
				for _, try := range to.tries {
					if try.report.Sequence != 1 {
						break
					}
					tries++
					if diff := cmp.Diff(to.tries[0].report, try.report); diff != "" {
						t.Fatalf("a repeated report differs (-first +repeated):\n%s", diff)
					}
				}
				if n := to.sum(); n != 2000 || tries < 20 || tries > 80 {
					t.Errorf("got %d calls, and %d tries of the first report in half an hour", n, tries)
				}
				if after && !cmp.Equal(recordedOnce[0], to.reports[0]) {
					t.Errorf("got %+v, want the report that was recorded first", to.reports[0])
				}
				if !strings.Contains(log.String(), "not reported yet") || strings.Contains(log.String(), "ERROR") {
					t.Errorf("got the log\n%s", log)
				}
			})
		})
	}
}

// The recorder waits as long as Brevet says, even for the last report.
func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	for _, final := range []bool{false, true} {
		t.Run(fmt.Sprint(final), func(t *testing.T) {
			t.Parallel()
			recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
				after := 5 * time.Second
				to.answer = func(try int, _ openapi.CallReport) error {
					if try > 1 {
						return nil
					}
					return &client.Problem{Problem: openapi.Problem{Status: 429, Code: openapi.CodeRateLimited}, RetryAfter: after}
				}
				r.Call(issues, 200, 0, 0)
				if !final {
					time.Sleep(time.Minute)
				}
				r.Close(t.Context())
				if pause := to.tries[1].at.Sub(to.tries[0].at); pause < after || to.sum() != 1 {
					t.Errorf("got %d calls, and another try after %s, want it after %s", to.sum(), pause, after)
				}
			})
		})
	}
}

// If Brevet has another report with the same number, the recorder drops its own, says so, and goes on with a new session.
func TestConflictingReportBeginsANewSession(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
		to.answer = func(try int, _ openapi.CallReport) error {
			if try == 2 {
				return fmt.Errorf("reporting: %w", client.ErrAlreadyReported)
			}
			return nil
		}
		for i := range 3 {
			for range i + 1 {
				r.Call(issues, 200, 0, 0)
			}
			time.Sleep(10 * time.Minute)
		}
		r.Close(t.Context())
		first, next := to.reports[0], to.reports[1]
		if len(to.reports) != 3 || next.Session == first.Session || next.Sequence != 1 || countOf(first) != 1 || countOf(next) != 3 || !to.reports[2].Final {
			t.Errorf("got %+v", to.reports)
		}
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "calls=2") || !strings.Contains(log.String(), first.Session) {
			t.Errorf("got the log\n%s", log)
		}
	})
}

// A report that Brevet calls invalid for good does not keep later ones back: a new session counts its calls as others.
func TestInvalidReportBeginsANewSession(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
		var refused string
		to.answer = func(try int, report openapi.CallReport) error {
			if refused == "" {
				refused = report.Session
			}
			if try >= 9 && try <= 11 { // whatever else fails meanwhile
				return fmt.Errorf("reporting: %w", client.ErrUnavailable)
			}
			if report.Session == refused {
				return fmt.Errorf("reporting: %w", client.ErrInvalid)
			}
			return nil
		}
		r.Call(issues, 200, 1, 2)
		time.Sleep(time.Second)
		r.Call(issues, 404, 3, 4)
		time.Sleep(time.Hour)
		r.Close(t.Context())
		rows := to.reports[0].Calls
		if n := to.sum(); n != 2 || to.reports[0].Sequence != 1 || to.reports[0].Session == refused || !to.reports[len(to.reports)-1].Final {
			t.Fatalf("got %+v", to.reports)
		}
		if other := rows[len(rows)-1]; len(rows) != 2 || !other.Other || other.Count != 1 || other.Statuses["2xx"] != 1 || other.BytesIn != 1 || other.BytesOut != 2 {
			t.Errorf("got %+v", rows)
		}
		if !strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("got the log\n%s", log)
		}
	})
}

// Close does not wait long for Brevet, and says how many calls are lost.
func TestLostCallsAreLogged(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
		to.answer = func(int, openapi.CallReport) error { return errDown }
		r.Call(issues, 200, 0, 0)
		time.Sleep(10 * time.Second) // one report is made
		r.Call(issues, 200, 0, 0)
		r.Call(issues, 200, 0, 0)
		began := time.Now()
		r.Close(t.Context())
		if took := time.Since(began); took != egress.FinalWithin {
			t.Errorf("closing took %s, want %s", took, egress.FinalWithin)
		}
		for _, calls := range []string{"calls=1 ", "calls=2 "} {
			if !strings.Contains(log.String(), calls) {
				t.Errorf("got the log\n%s\nwant %s", log, calls)
			}
		}
		// It tried at once when it closed, and once more from time to time.
		late := 0
		for _, try := range to.tries {
			if !try.at.Before(began) {
				late++
			}
		}
		if late < 3 || late > 20 {
			t.Errorf("got %d tries while it closed", late)
		}
	})
}

// A call that ends while the recorder closes is in the last report. If a call does not end in time, no report is final, because the
// record lacks that call.
func TestCallsInProgressDelayTheLastReport(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			t.Parallel()
			recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, log *testkit.Buffer) {
				r.Begin()
				r.Call(issues, 200, 0, 0)
				go func() {
					time.Sleep(egress.AbortWithin / 2)
					if !ends {
						time.Sleep(egress.AbortWithin)
					}
					r.Ended(issues, 101, 7, 7)
				}()
				r.Close(t.Context())
				time.Sleep(time.Minute)
				synctest.Wait()
				want := int64(1)
				if ends {
					want = 2
				}
				if n := to.sum(); n != want || to.reports[len(to.reports)-1].Final != ends {
					t.Errorf("got %+v, want %d calls", to.reports, want)
				}
				if ends == strings.Contains(log.String(), "in_progress=1") {
					t.Errorf("got the log\n%s", log)
				}
			})
		})
	}
}

// The rows of a report are bounded, and no call is missing in its sums. Calls that passed keep their rows, whatever hosts the
// sandbox makes up, also if a rule has a wildcard for them.
func TestRowsAreBounded(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
		r.Call(issues, 200, 1, 2)
		synctest.Wait() // the first report is sent
		for i := range 500 {
			host := openapi.CallRow{Host: fmt.Sprintf("host-%d.test", i), Method: "GET", Refused: "egress_no_rule"}
			if i%2 == 0 {
				host.Scope, host.Refused = issues.Scope, "egress_unreachable"
			}
			r.Call(host, 0, 1, 2)
			r.Call(host, 0, 1, 2)
		}
		r.Call(issues, 200, 1, 2)
		r.Close(t.Context())
		rows := to.reports[len(to.reports)-1].Calls
		other := rows[len(rows)-1]
		if len(to.reports) != 2 || len(rows) != client.MaxCallRows || to.sum() != 1002 || !other.Other || other.Count != 2*(500-126) || other.BytesIn != other.Count || other.BytesOut != 2*other.Count {
			t.Errorf("got %d reports, %d rows, %d calls, and the last row %+v", len(to.reports), len(rows), to.sum(), other)
		}
		if rows[0].Host != issues.Host || rows[0].Scope != issues.Scope {
			t.Errorf("got %+v, want the call with a credential", rows[0])
		}
	})
}

// Texts that a sandbox chooses fit into a report, and say nothing that is not a host or a method.
func TestHostileTextsFitIntoAReport(t *testing.T) {
	t.Parallel()
	recorded(t, func(t *testing.T, to *receiver, r egress.Recorder, _ *testkit.Buffer) {
		for _, tc := range []struct{ host, method, wantHost, wantMethod string }{
			{"API.GitHub.com:443", "PROPFIND", "api.github.com", "PROPFIND"},
			{"[::1]:8443", "M-SEARCH", "[::1]:8443", "M-SEARCH"},
			{"", "", "invalid", "INVALID"},
			{"a b", "get", "invalid", "INVALID"},
			{"<script>\n", "GET\x1b[31m", "invalid", "INVALID"},
			{"b\u00fccher.test", "G\u00cbT", "invalid", "INVALID"},
			{"\xff\xfe", strings.Repeat("A", 33), "invalid", "INVALID"},
			{strings.Repeat("a", 254), strings.Repeat("A", 32), "invalid", strings.Repeat("A", 32)},
			{strings.Repeat("a", 253), "GET", strings.Repeat("a", 253), "GET"},
			{"AKIA" + "QYLPMN5HHHFPZAM2", "GET", "invalid", "GET"}, // a key of AWS
		} {
			n := len(to.reports)
			r.Call(openapi.CallRow{Host: tc.host, Method: tc.method}, 0, 0, 0)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if row := to.reports[n].Calls[0]; row.Host != tc.wantHost || row.Method != tc.wantMethod {
				t.Errorf("%q %q: got %q %q", tc.method, tc.host, row.Method, row.Host)
			}
		}
		// The receiver checks the size of the report.
		for i := range 1000 {
			long := openapi.CallRow{
				Host: fmt.Sprintf("%0253d", i), Method: fmt.Sprintf("%s-%c", strings.Repeat("A", 30), 'A'+i%26), Path: strings.Repeat("/{repo}", 300), Scope: strings.Repeat("s", 64),
				Refused: strings.Repeat("r", 64),
			}
			r.Call(long, 0, 1<<62, 1<<62)
		}
		r.Close(t.Context())
		if n := to.sum(); n != 1010 {
			t.Errorf("got %d calls, want 1010", n)
		}
	})
}

// A call that has a row costs no memory.
func TestRecordedCallAllocatesNothing(t *testing.T) {
	r := egress.NewRecorder((&receiver{t: t}).report, slog.New(slog.DiscardHandler))
	defer r.Close(t.Context())
	r.Call(issues, 200, 1, 1)
	if n := testing.AllocsPerRun(1000, func() { r.Call(issues, 200, 1, 1) }); n != 0 {
		t.Errorf("got %v allocations per call, want none", n)
	}
}

// BenchmarkRecordedCall counts calls of one row, and calls for which there is no row.
func BenchmarkRecordedCall(b *testing.B) {
	hosts := make([]openapi.CallRow, 1000)
	for i := range hosts {
		hosts[i] = openapi.CallRow{Host: fmt.Sprintf("host-%d.test", i), Method: "GET", Scope: "host.key.use", Path: "/key/**"}
	}
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			r := egress.NewRecorder((&receiver{t: b}).report, slog.New(slog.DiscardHandler))
			defer r.Close(b.Context())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.Call(hosts[i%n], 200, 1, 1)
			}
		})
	}
}
