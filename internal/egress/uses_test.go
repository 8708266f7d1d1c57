package egress_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// usage returns the usage of a scope as an auditor sees it, without the time of the last use.
func (w *world) usage(t *testing.T, scope string) openapi.ScopeUsage {
	t.Helper()
	usage, err := w.stack.Client(t, eyes).Usage(t.Context(), client.UsageFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range usage.Scopes {
		if u.Scope == scope {
			if (u.Reported.Used > 0) == u.Reported.LastUsedAt.IsZero() || time.Since(u.Reported.LastUsedAt) < 0 {
				t.Errorf("got %d used, at last at %s", u.Reported.Used, u.Reported.LastUsedAt)
			}
			u.Reported.LastUsedAt = time.Time{}
			return u
		}
	}
	t.Fatalf("nothing was asked of %s", scope)
	return openapi.ScopeUsage{}
}

// Of three credentials, one was used, twice. The gateway that held it reports so when it stops, and auditors can read it.
func TestGatewayReportsCredentialUse(t *testing.T) {
	w := newWorld(t)
	const scope = "host.token.use"
	never, err := w.broker.Request(t.Context(), client.Ask{Scope: scope, Task: task})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.broker.Request(t.Context(), client.Ask{Scope: scope, Task: task}); err != nil { // its use is never reported
		t.Fatal(err)
	}
	if _, err := w.broker.ReportUses(t.Context(), never.Token.ID, openapi.UseRequest{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if answer := w.get(t, "/token"); answer.status != 200 {
			t.Fatalf("got %d %s", answer.status, answer.text)
		}
	}
	want := openapi.ScopeUsage{Scope: scope, Asked: 3, Granted: 3, Reported: openapi.ReportedUsage{Credentials: 1}}
	if diff := cmp.Diff(want, w.usage(t, scope)); diff != "" {
		t.Errorf("while it is held (-want +got):\n%s", diff)
	}
	w.gateway.Close(t.Context())
	want.Reported = openapi.ReportedUsage{Credentials: 2, Used: 1, Calls: 2}
	if diff := cmp.Diff(want, w.usage(t, scope)); diff != "" {
		t.Errorf("when it is not any more (-want +got):\n%s", diff)
	}
	var asked, used, calls int
	err = testkit.Connect(t, w.stack.DB.AuditorURL).QueryRow(t.Context(), `
		SELECT asked, reported_used, reported_calls FROM audit_usage WHERE scope = $1`, scope).Scan(&asked, &used, &calls)
	if err != nil || asked != 3 || used != 1 || calls != 2 {
		t.Errorf("the view has %d asked, %d used, %d calls, %v", asked, used, calls, err)
	}
	w.stack.DB.Check(t)
}

// The uses of a task that ended and of a database session are both reported.
func TestUseIsReportedAfterTheTaskEnds(t *testing.T) {
	w := newWorld(t)
	dir := w.database(t)
	for range 2 {
		if _, err := connect(t, "host="+dir+" dbname=target user=host.login.use"); err != nil {
			t.Fatal(err)
		}
	}
	w.events(t) // stays open, as the sessions do: the gateway only confirms credentials in use
	<-time.After(idle)
	w.endTask(t)
	w.wantLog(t, `msg="egress credential ended"`, "scope=host.login.use", "calls=2")
	w.wantLog(t, `msg="egress credential ended"`, "scope=host.key.use", "calls=1")
	w.gateway.Close(t.Context()) // waits for the reports
	for scope, calls := range map[string]int64{"host.login.use": 2, "host.key.use": 1} {
		want := openapi.ScopeUsage{Scope: scope, Asked: 1, Granted: 1, Reported: openapi.ReportedUsage{Credentials: 1, Used: 1, Calls: calls}}
		if diff := cmp.Diff(want, w.usage(t, scope)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// A report that can't be sent is logged, and does not delay the close.
func TestFailedUseReportIsLogged(t *testing.T) {
	w := newWorld(t)
	w.get(t, "/token")
	w.stack.CloseServer()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.gateway.Close(ctx)
	if ctx.Err() != nil {
		t.Errorf("closing took all the %s that there were", patience)
	}
	if text := w.log.String(); !strings.Contains(text, `level=WARN msg="egress uses not reported"`) || !strings.Contains(text, "calls=1") {
		t.Errorf("got the log\n%s\nwant that the use is not reported", text)
	}
}

// If another client with the sandbox's SVID has reported first, that report stays, and the log has a warning.
func TestEarlierUseReportIsKept(t *testing.T) {
	w := newWorld(t)
	if answer := w.get(t, "/token"); answer.status != 200 {
		t.Fatalf("got %d %s", answer.status, answer.text)
	}
	_, id, _ := strings.Cut(w.log.String(), "issuance=")
	id, _, _ = strings.Cut(id, "\n")
	id, _, _ = strings.Cut(id, " ")
	if _, err := w.broker.ReportUses(t.Context(), id, openapi.UseRequest{}); err != nil {
		t.Fatal(err)
	}
	w.gateway.Close(t.Context())
	w.wantLog(t, "level=WARN", "issuance="+id, "sandbox="+agent, "calls=1", "recorded=0")
}

// The gateway asks about all credentials that a sandbox uses in one call at each interval.
func TestCredentialsAreConfirmedTogether(t *testing.T) {
	w := newWorld(t)
	dir := w.database(t)
	if _, err := connect(t, "host="+dir+" dbname=target user=host.login.use"); err != nil {
		t.Fatal(err)
	}
	w.events(t)
	asked := func(operation string) (calls int) {
		metrics := httptest.NewRecorder()
		w.stack.Server.Metrics().ServeHTTP(metrics, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		for line := range strings.Lines(metrics.Body.String()) {
			if strings.HasPrefix(line, `brevet_http_requests_total{route="`+operation+`"`) {
				_, count, _ := strings.Cut(line, "} ")
				n, err := strconv.Atoi(strings.TrimSpace(count))
				if err != nil {
					t.Fatal(err)
				}
				calls += n
			}
		}
		return calls
	}
	// The session and the stream use two credentials now.
	began, before := time.Now(), asked("listInForce")
	calls := 0
	for deadline := began.Add(patience); calls < 20; calls = asked("listInForce") - before {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for 20 calls", patience)
		}
		<-time.After(idle)
	}
	if most := int(time.Since(began)/(250*time.Millisecond)) + 4; calls > most {
		t.Errorf("got %d calls for two credentials in %s, want at most %d", calls, time.Since(began), most)
	}
	if n := asked("getRequest"); n != 0 {
		t.Errorf("got %d calls about single credentials, want none", n)
	}
}
