package egress_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// taskCalls returns what is recorded of the calls of the sandbox's task, as an auditor sees it.
func (w *world) taskCalls(t testing.TB) openapi.TaskCalls {
	t.Helper()
	calls, err := w.stack.Client(t, eyes).TaskCalls(t.Context(), agent, task)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// entries counts the entries of the ledger of a kind.
func (w *world) entries(t testing.TB, kind string) (n int) {
	t.Helper()
	if err := testkit.Connect(t, w.stack.DB.AuditorURL).QueryRow(t.Context(), `SELECT count(*) FROM entries WHERE kind = $1`, kind).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// summary describes rows by what their calls have in common.
func summary(rows []openapi.CallRow) map[string]string {
	all := map[string]string{}
	for _, row := range rows {
		key := strings.Join([]string{row.Method, row.Host, row.Path, row.Scope, row.Refused}, " ")
		all[key] = fmt.Sprint(row.Statuses)
		if row.BytesIn > 0 {
			all[key] += fmt.Sprintf(" in %d", row.BytesIn)
		}
	}
	return all
}

// Each call is recorded, with the rule that it matched. Each refusal that the sandbox sees is recorded with its code.
func TestCallsAndRefusalsAreRecorded(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.perSecond, w.now = 20, func() time.Time { return now } // so that exactly 40 calls of a host pass
	w.open(t)
	host, at := w.host.name(), w.host.name()[strings.Index(w.host.name(), ":"):]
	dir := w.database(t)

	// Neither is a call of the sandbox.
	if err := (egress.Endpoint{Address: w.addr, Password: secret.New(password)}).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	say(t, w.dial(t), "CONNECT "+host+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")

	for _, path := range []string{"/key/x", "/key/y?secret", "/repos/acme/api/issues", "/repos/evil/api/issues", "/approved", "/lost", "/other"} {
		w.get(t, path)
	}
	call(t, w.proxied(t), request(t, "POST", w.url("/key/body"), strings.NewReader(strings.Repeat("a", 1000))))
	call(t, w.proxied(t), request(t, "GET", "https://evil.test/x", nil))
	call(t, w.proxied(t), request(t, "GET", "https://inner.test/x", nil))
	call(t, w.proxied(t), request(t, "BREW", "https://evil.test/x", nil))
	for _, text := range []string{
		"GET /key/a HTTP/1.1\r\nHost: smuggled.test\r\n\r\n",
		"GET /key/a HTTP/1.1\r\nHost: " + host + "\r\nSudo: root\r\n\r\n",
		"GET /key/a HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"POST /key/a HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 10000000000\r\n\r\n",
		"PUT /s3/a HTTP/1.1\r\nHost: " + host + "\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Length: 0\r\n\r\n",
	} {
		say(t, w.tunnel(t, host), text)
	}
	for _, text := range []string{
		"GET http://plain.test/x HTTP/1.1\r\nHost: plain.test\r\n" + basic + "\r\n",
		"GET https://a:b@user.test/x HTTP/1.1\r\nHost: user.test\r\n" + basic + "\r\n",
		"CONNECT 169.254.169.254:443 HTTP/1.1\r\nHost: 169.254.169.254:443\r\n" + basic + "\r\n",
		"CONNECT noport.test HTTP/1.1\r\nHost: noport.test\r\n" + basic + "\r\n",
		"GET //key/echo HTTP/1.1\r\nHost: " + w.addr + "\r\nAuthorization" + strings.TrimPrefix(basic, "Proxy-Authorization") + "\r\n",
	} {
		say(t, w.dial(t), text)
	}
	if _, err := w.tunnelTo(t, host, "fronted.test"); err == nil {
		t.Error("got a tunnel for another name")
	}
	for range 41 {
		call(t, w.proxied(t), request(t, "GET", "https://rebound.test"+at+"/", nil))
	}
	for _, database := range []string{"target", "target", "gone", "insecure", "nonsense"} {
		if conn, err := connect(t, "host="+dir+" dbname="+database+" user=a"); err == nil && database == "target" {
			_ = conn.Close(t.Context())
		} else if database == "target" {
			t.Fatal(err)
		}
	}
	w.events(t)
	w.webSocket(t)
	w.gateway.Close(t.Context())

	calls := w.taskCalls(t)
	got := summary(calls.Calls)
	for key, text := range got {
		if strings.Contains(key, "POSTGRESQL") {
			got[key], _, _ = strings.Cut(text, " in ")
		}
	}
	secured := fmt.Sprintf("another.test:%s", portOf(w.front.Addr().String()))
	want := map[string]string{
		"GET " + host + " /key/** host.key.use ":                                "map[1xx:1 2xx:3] in 6", // with the event stream and the WebSocket
		"POST " + host + " /key/** host.key.use ":                               "map[2xx:1] in 1000",
		"GET " + host + " /repos/{repo}/issues host.repo.read ":                 "map[2xx:1]",
		"GET " + host + " /repos/{repo}/issues host.repo.read denied":           "map[none:1]",
		"GET " + host + " /approved host.approved.use egress_pending":           "map[none:1]",
		"GET " + host + " /lost host.lost.use egress_unfit":                     "map[none:1]",
		"GET " + host + "   egress_no_rule":                                     "map[none:1]",
		"GET evil.test   egress_no_rule":                                        "map[none:1]",
		"BREW evil.test   egress_no_rule":                                       "map[none:1]",
		"GET inner.test /** host.inner.use egress_address":                      "map[none:1]",
		"GET smuggled.test   egress_misdirected":                                "map[none:1]",
		"GET " + host + "   egress_header":                                      "map[none:1]",
		"GET " + host + "   egress_upgrade":                                     "map[none:1]",
		"POST " + host + "   egress_too_large":                                  "map[none:1]",
		"PUT " + host + " /s3/** host.s3.use egress_signed":                     "map[none:1]",
		"GET plain.test   egress_plaintext":                                     "map[none:1]",
		"GET user.test   egress_misdirected":                                    "map[none:1]",
		"CONNECT 169.254.169.254   egress_no_rule":                              "map[none:1]",
		"CONNECT noport.test   egress_misdirected":                              "map[none:1]",
		"GET invalid   egress_no_rule":                                          "map[none:1]",
		"CONNECT fronted.test   egress_misdirected":                             "map[none:1]",
		"POSTGRESQL " + w.server(t) + " target host.login.use ":                 "map[none:2]",
		"POSTGRESQL " + w.server(t) + " gone host.login.use egress_upstream":    "map[none:1]",
		"POSTGRESQL " + secured + " insecure host.insecure.use egress_upstream": "map[none:1]",
		"GET rebound.test" + at + " /** host.rebound.use egress_too_many":       "map[none:1]",
		"GET rebound.test" + at + " /** host.rebound.use egress_address":        "map[none:39]",
		"GET rebound.test" + at + " /** host.rebound.use egress_upstream":       "map[none:1]",
		"POSTGRESQL invalid   egress_no_rule":                                   "map[none:1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !calls.Complete || len(calls.Sessions) != 1 || !calls.Sessions[0].Closed {
		t.Errorf("got %v, %+v, want one closed session", calls.Complete, calls.Sessions)
	}
	w.stack.DB.Check(t)
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// A gateway without calls leaves no trace, and each gateway of a task is a session.
func TestEachGatewayIsASession(t *testing.T) {
	w := newWorld(t)
	w.gateway.Close(t.Context())
	if n := w.entries(t, "calls.recorded"); n != 0 {
		t.Errorf("got %d entries without a call", n)
	}
	for range 2 {
		w.open(t)
		w.get(t, "/token")
		w.gateway.Close(t.Context())
	}
	calls := w.taskCalls(t)
	if len(calls.Calls) != 1 || calls.Calls[0].Count != 2 || !calls.Complete || len(calls.Sessions) != 2 || w.entries(t, "calls.recorded") != 4 {
		t.Errorf("got %+v", calls)
	}
}

// A task that has ended, and a sandbox in quarantine, still have their last calls recorded.
func TestCallsAreRecordedAfterTheEnd(t *testing.T) {
	w := newWorld(t)
	w.get(t, "/token")
	w.endTask(t)
	if _, err := w.stack.Client(t, admin).Quarantine(t.Context(), agent, "odd"); err != nil {
		t.Fatal(err)
	}
	<-time.After(idle) // until the gateway learns of the end
	w.get(t, "/token")
	w.gateway.Close(t.Context())
	calls := w.taskCalls(t)
	if !calls.Complete || len(calls.Calls) != 2 || calls.Calls[1].Refused != "denied" {
		t.Errorf("got %+v, want a call and a refusal", calls)
	}
}

// A hundred thousand calls of a task have at most 50 entries in the ledger, and each is counted once.
func TestCallsAreCountedUnderLoad(t *testing.T) {
	const calls, workers = 100_000, 16
	w := newWorld(t)
	w.perSecond, w.log, w.host.quiet = 1_000_000, nil, true
	var served [4]atomic.Int64
	w.host.mux.HandleFunc("/key/load/", func(rw http.ResponseWriter, r *http.Request) {
		class := int(r.URL.Path[len(r.URL.Path)-1] - '0')
		served[class-2].Add(1)
		rw.WriteHeader(class * 100)
	})
	w.open(t)
	began := time.Now()
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			c := w.proxied(t) // one HTTP/2 connection
			for i := worker; i < calls; i += workers {
				req, err := http.NewRequestWithContext(t.Context(), []string{"GET", "POST"}[i%2], w.url(fmt.Sprintf("/key/load/%d", 2+i/2%4)), nil)
				if err == nil {
					var resp *http.Response
					if resp, err = c.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						err = resp.Body.Close()
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	w.gateway.Close(t.Context())
	t.Logf("%d calls took %s, %d entries", calls, time.Since(began), w.entries(t, "calls.recorded"))
	got := w.taskCalls(t)
	want := map[string]int64{}
	for i, class := range []string{"2xx", "3xx", "4xx", "5xx"} {
		want[class] = served[i].Load() / 2
		if served[i].Load() != calls/4 {
			t.Fatalf("the host served %d times %s", served[i].Load(), class)
		}
	}
	if len(got.Calls) != 2 || !got.Complete {
		t.Fatalf("got %+v, want two rows", got)
	}
	for _, row := range got.Calls {
		if row.Count != calls/2 || row.Path != "/key/**" || !cmp.Equal(row.Statuses, want) {
			t.Errorf("got %+v, want %v", row, want)
		}
	}
	if n := w.entries(t, "calls.recorded"); n > 50 {
		t.Errorf("got %d entries, want 50 at most", n)
	}
	w.stack.DB.Check(t)
}

// A sandbox that calls very many hosts gets 128 rows in a report, and each call is counted.
func TestManyHostsAreCountedInOneRow(t *testing.T) {
	w := newWorld(t)
	for i := range 500 {
		req := request(t, "GET", fmt.Sprintf("http://%s/host-%d.test/x", w.addr, i), nil)
		req.SetBasicAuth("brevet", password)
		if answer := call(t, http.DefaultClient, req); answer.status != 403 {
			t.Fatalf("got %d %s", answer.status, answer.text)
		}
	}
	w.get(t, "/token")
	w.gateway.Close(t.Context())
	var sum, other int64
	calls := w.taskCalls(t)
	for _, row := range calls.Calls {
		sum += row.Count
		if row.Other {
			other = row.Count
		}
	}
	if sum != 501 || other == 0 || !calls.Complete || !slices.ContainsFunc(calls.Calls, func(row openapi.CallRow) bool { return row.Scope == "host.token.use" }) {
		t.Errorf("got %d calls, %d of them in the row for others, %v", sum, other, calls.Complete)
	}
}

// Whatever happens to a report on its way, the ledger has each call once.
func TestReportsAreRecordedOnceDespiteFailures(t *testing.T) {
	w := newWorld(t)
	var tries int
	report := func(ctx context.Context, report openapi.CallReport) error {
		switch tries++; tries {
		case 1: // the server is overloaded
			return &client.Problem{Problem: openapi.Problem{Status: 503, Code: openapi.CodeOverloaded}}
		case 2: // the answer is lost
			if _, err := w.broker.ReportCalls(ctx, task, report); err != nil {
				return err
			}
			return context.DeadlineExceeded
		case 3:
			return &client.Problem{Problem: openapi.Problem{Status: 429, Code: openapi.CodeRateLimited}, RetryAfter: time.Second}
		}
		_, err := w.broker.ReportCalls(ctx, task, report)
		return err
	}
	r := egress.NewRecorder(report, slog.New(slog.NewTextHandler(w.log, nil)))
	for range 3 {
		r.Call(issues, 200, 1, 2)
	}
	r.Close(t.Context())
	calls := w.taskCalls(t)
	if len(calls.Calls) != 1 || calls.Calls[0].Count != 3 || !calls.Complete || tries < 4 || w.entries(t, "calls.recorded") != 1 {
		t.Errorf("got %+v after %d tries, and %d entries\n%s", calls, tries, w.entries(t, "calls.recorded"), w.log)
	}
}
