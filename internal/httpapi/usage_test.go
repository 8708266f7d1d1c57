package httpapi_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

// The holder of a credential reports its use once. For other callers the credential does not exist.
func TestReportingUses(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	mine := token(t, c, read)
	for _, who := range []string{twin, foreign, admin, auditor, runtime} {
		if _, err := s.Client(t, who).ReportUses(t.Context(), mine.ID, openapi.UseRequest{Calls: 9}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s tells of a foreign credential: got %v, want ErrNotFound", who, err)
		}
	}
	for _, body := range []string{
		`{"calls":-1}`, `{"calls":1000000001}`, `{"calls":1e30}`, `{"calls":1.5}`, `{"calls":"2"}`, `{}`, `{"calls":1,"spiffe_id":"` + twin + `"}`,
		`{"calls":1,"last_used_at":"yesterday"}`,
	} {
		told := ""
		for _, id := range []string{mine.ID, someID} {
			got := wire{target: "/v1/issuances/" + id + "/uses", body: body}.send(t, s)
			if got.status != 422 && got.status != 400 {
				t.Errorf("%s: got %d %s, want it refused", body, got.status, got.text)
			}
			if text := anonymous(got.text); told != "" && text != told {
				t.Errorf("%s: got\n%s\nand for what there is not\n%s", body, told, text)
			}
			told = anonymous(got.text)
		}
	}
	first, err := c.ReportUses(t.Context(), mine.ID, openapi.UseRequest{Calls: 2, LastUsedAt: time.Now().Add(time.Hour)})
	if err != nil || first.Calls != 2 || first.LastUsedAt.IsZero() || first.LastUsedAt.After(first.ReportedAt) {
		t.Fatalf("got %+v, %v, want 2 calls, until now", first, err)
	}
	for _, calls := range []int64{2, 0, 50} {
		got, err := c.ReportUses(t.Context(), mine.ID, openapi.UseRequest{Calls: calls})
		if diff := cmp.Diff(first, got); err != nil || diff != "" {
			t.Errorf("%d calls, after that: %v (-want +got):\n%s", calls, err, diff)
		}
	}
	if _, err := s.Client(t, twin).ReportUses(t.Context(), mine.ID, openapi.UseRequest{Calls: 2}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("somebody else, after that: got %v, want ErrNotFound", err)
	}
	old := token(t, c, read)
	early, err := c.ReportUses(t.Context(), old.ID, openapi.UseRequest{Calls: 1, LastUsedAt: time.Now().Add(-time.Hour)})
	one, errToo := c.Issuance(t.Context(), old.ID)
	if err != nil || errToo != nil || !early.LastUsedAt.Equal(one.Time) {
		t.Errorf("used before it was issued: got %+v, %v, %v, want it cut to %s", early, err, errToo, one.Time)
	}
	gone := token(t, c, read)
	if _, err := c.Release(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	late, err := c.ReportUses(t.Context(), gone.ID, openapi.UseRequest{Calls: 1, LastUsedAt: time.Now().Add(time.Hour)})
	one, errToo = c.Issuance(t.Context(), gone.ID)
	if err != nil || errToo != nil || !late.LastUsedAt.Equal(one.StatusAt) || late.LastUsedAt.After(late.ReportedAt) {
		t.Errorf("used after it was released: got %+v, %v, %v, want it cut to %s", late, err, errToo, one.StatusAt)
	}
	s.DB.Check(t)
}

// A caller that reports too often is told to wait, before the report is read.
func TestUseReportsAreRateLimited(t *testing.T) {
	t.Parallel()
	o := officers
	var stopped atomic.Int64 // when the clock stopped; on a slow machine the calls are too rare
	o.Now = func() time.Time {
		if at := stopped.Load(); at != 0 {
			return time.Unix(0, at)
		}
		return time.Now()
	}
	s := testkit.NewStack(t, o)
	c, another := s.Client(t, agent), s.Client(t, twin) // their SVIDs must be issued before the clock stops
	stopped.Store(time.Now().UnixNano())
	var err error
	for n := 0; err == nil || errors.Is(err, client.ErrNotFound); n++ {
		if n > 1000 {
			t.Fatal("got 1001 reports through")
		}
		_, err = c.ReportUses(t.Context(), someID, openapi.UseRequest{})
	}
	if p := new(client.Problem); !errors.As(err, &p) || p.Code != openapi.CodeRateLimited || p.RetryAfter == 0 {
		t.Errorf("got %v, want rate_limited with Retry-After", err)
	}
	if _, err := another.ReportUses(t.Context(), someID, openapi.UseRequest{}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("another sandbox meanwhile: got %v, want ErrNotFound", err)
	}
}

// Only auditors can compare what was granted in their reach with what was used.
func TestUsage(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	twice, never := token(t, c, read), token(t, c, read)
	token(t, c, read)
	idle := token(t, c, client.Ask{Scope: "git.issues.list", Task: "triage-1"})
	token(t, c, client.Ask{Scope: "db.rows.read", Params: map[string]any{"rows": 1, "fresh": true}, Task: "triage-1"})
	for id, calls := range map[string]int64{twice.ID: 2, never.ID: 0, idle.ID: 0} {
		if _, err := c.ReportUses(t.Context(), id, openapi.UseRequest{Calls: calls}); err != nil {
			t.Fatal(err)
		}
	}
	usage, err := s.Client(t, auditor).Usage(t.Context(), client.UsageFilter{})
	if err != nil || len(usage.Scopes) != 3 || time.Since(usage.Since) < 29*24*time.Hour {
		t.Fatalf("got %+v, %v, want three scopes in a month", usage, err)
	}
	if usage.Scopes[1].Reported.LastUsedAt.IsZero() {
		t.Error("got no last use")
	}
	usage.Scopes[1].Reported.LastUsedAt = time.Time{}
	want := []openapi.ScopeUsage{ // never used, one of two used, and not reported
		{Scope: "git.issues.list", Asked: 1, Granted: 1, Reported: openapi.ReportedUsage{Credentials: 1}},
		{Scope: read.Scope, Asked: 3, Granted: 3, Reported: openapi.ReportedUsage{Credentials: 2, Used: 1, Calls: 2}},
		{Scope: "db.rows.read", Asked: 1, Granted: 1},
	}
	if diff := cmp.Diff(want, usage.Scopes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	later, err := s.Client(t, auditor).Usage(t.Context(), client.UsageFilter{Since: time.Now().Add(time.Hour), TrustDomain: "acme.test"})
	if err != nil || len(later.Scopes) != 0 {
		t.Errorf("got %+v, %v, want nothing yet", later, err)
	}
	for _, who := range []string{agent, admin, runtime} {
		if _, err := s.Client(t, who).Usage(t.Context(), client.UsageFilter{}); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s: got %v, want ErrNotAllowed", who, err)
		}
	}
	for _, query := range []string{"trust_domain=acme.test/x", "since=x", "since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "scope=x"} {
		got := wire{method: "GET", target: "/v1/audit/usage?" + query, auth: "Bearer " + s.JWT(t, auditor)}.send(t, s)
		if got.status != 400 || got.code != "invalid_parameter" {
			t.Errorf("%s: got %d %s, want 400", query, got.status, got.text)
		}
	}
	var told []string
	for event, err := range s.Client(t, auditor).IssuanceTimeline(t.Context(), twice.ID) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, event.Kind)
		if event.Kind == "issuance.reported" && (event.Calls == nil || *event.Calls != 2 || event.By != agent) {
			t.Errorf("got %+v, want 2 calls by its holder", event)
		}
	}
	if strings.Join(told, " ") != "issuance.intent issuance.reported" {
		t.Errorf("got %v, want what was issued and reported", told)
	}
}

// A sandbox learns which of its own credentials are in force, and nothing about others.
func TestInForceListsOwnCredentials(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, officers)
	c := s.Client(t, agent)
	live, gone := token(t, c, read), token(t, c, read)
	if _, err := c.Release(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	ids := []string{gone.ID, live.ID, someID, "x"}
	if got, err := c.InForce(t.Context(), ids); err != nil || len(got) != 1 || got[0] != live.ID {
		t.Errorf("got %v, %v, want %s", got, err, live.ID)
	}
	for _, who := range []string{twin, foreign, admin, auditor, runtime} {
		if got, err := s.Client(t, who).InForce(t.Context(), ids); err != nil || len(got) != 0 {
			t.Errorf("%s: got %v, %v, want nothing about the credentials of others", who, got, err)
		}
	}
	for _, body := range []string{`{}`, `{"ids":[]}`, `{"ids":"x"}`, `{"ids":[1]}`, `{"ids":["x"],"spiffe_id":"` + agent + `"}`, `{"ids":[` + strings.Repeat(`"x",`, client.MaxInForce) + `"x"]}`} {
		if got := (wire{target: "/v1/in-force", body: body}).send(t, s); got.status != 422 && got.status != 400 {
			t.Errorf("%.40s: got %d %s, want it refused", body, got.status, got.text)
		}
	}
}
