package httpapi_test

import (
	"errors"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

// limited has a scope with a limit of each kind. Each can be reached without the other.
var limited = []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    limits:
      - {per: sandbox, count: 2, window: 1h}
      - {per: trust_domain, count: 3, window: 24h}
    credential: {kind: jwt, audience: https://git.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("all-read")
permit (principal, action in Action::"authority:read", resource);
`)}}

// later advances the time for the limits.
func later(t *testing.T, s *testkit.Stack, by time.Duration) {
	t.Helper()
	exec(t, s, `UPDATE rate_limits SET tat = tat - $1::interval`, by)
}

func exec(t *testing.T, s *testkit.Stack, sql string, args ...any) {
	t.Helper()
	if _, err := testkit.Connect(t, s.DB.AdminURL).Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func askAs(t *testing.T, s *testkit.Stack, who string) error {
	t.Helper()
	_, err := s.Client(t, who).Request(t.Context(), read)
	return err
}

// T9: a caller that exceeds the limit of a scope is told when to retry.
func TestLimitedRequests(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: limited})
	keyed := wire{headers: []string{"Idempotency-Key: k"}}
	for range 2 {
		if got := (wire{}).send(t, s); got.status != 201 {
			t.Fatalf("got %d %s", got.status, got.text)
		}
	}
	got := keyed.send(t, s)
	if got.status != 429 || got.code != "rate_limited" || got.header.Get("RateLimit-Policy") != `"sandbox";q=2;w=3600` ||
		!regexp.MustCompile(`"explanation":"git.issues.read is limited to 2 in 1h per sandbox. The next request is allowed in \d+ s."`).MatchString(got.text) {
		t.Errorf("got %d %s with %v", got.status, got.text, got.header)
	}
	after := got.header.Get("Retry-After")
	if !regexp.MustCompile(`^1[78]\d\d$`).MatchString(after) || got.header.Get("RateLimit") != `"sandbox";r=0;t=`+after {
		t.Errorf("got Retry-After %q and RateLimit %q", after, got.header.Get("RateLimit"))
	}
	var problem *client.Problem
	if err := askAs(t, s, agent); !errors.As(err, &problem) || !errors.Is(err, client.ErrRateLimited) || problem.Reason != "limited" {
		t.Fatalf("got %v, want a limit", err)
	}
	record, err := s.Client(t, agent).Issuance(t.Context(), problem.ID)
	if err != nil || record.Status != "denied" || record.DecisionCode != "limited" {
		t.Errorf("got the record %+v, %v", record, err)
	}
	if all := entriesOf(t, s); len(all.requests) != 4 || len(all.refusals) != 0 {
		t.Errorf("got %d requests and %d refusals, want 4 and none", len(all.requests), len(all.refusals))
	}

	// Other sandboxes have their own counts, and so have other trust domains.
	if err := askAs(t, s, twin); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
	if err := askAs(t, s, twin); !errors.Is(err, client.ErrRateLimited) {
		t.Errorf("got %v, want the limit of the trust domain", err)
	}
	for range 2 {
		if err := askAs(t, s, foreign); err != nil {
			t.Errorf("another trust domain: %v", err)
		}
	}
	if got := s.Signings(t); got != 5 {
		t.Errorf("Vault signed %d times, want 5", got)
	}

	later(t, s, 24*time.Hour)
	if got := keyed.send(t, s); got.status != 201 {
		t.Errorf("the same key after the window: got %d %s", got.status, got.text)
	}
	if got := keyed.send(t, s); got.status != 409 {
		t.Errorf("the same key once more: got %d %s", got.status, got.text)
	}
	s.DB.Check(t)
}

// I10: a request that cannot be counted gets no credential, and the caller is not told that a limit was reached.
func TestLimitsFailClosed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: limited})
	u, err := url.Parse(s.DB.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	login := u.User.Username()
	for _, tc := range []struct {
		name     string
		down, up []string
	}{
		{
			"counts are out of reach",
			[]string{`REVOKE ALL ON rate_limits FROM brevet_broker`},
			[]string{`GRANT SELECT, INSERT, UPDATE (tat) ON rate_limits TO brevet_broker`},
		},
		{
			"database is out of reach",
			[]string{
				`ALTER ROLE ` + pgx.Identifier{login}.Sanitize() + ` NOLOGIN`,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '` + login + `'`,
			},
			[]string{`ALTER ROLE ` + pgx.Identifier{login}.Sanitize() + ` LOGIN`},
		},
	} {
		for _, sql := range tc.down {
			exec(t, s, sql)
		}
		got := wire{}.send(t, s)
		if got.status != 503 || got.code != "ledger_unavailable" || got.header.Get("RateLimit") != "" {
			t.Errorf("%s: got %d %s", tc.name, got.status, got.text)
		}
		for _, sql := range tc.up {
			exec(t, s, sql)
		}
	}
	if n, entries := s.Signings(t), len(entriesOf(t, s).requests); n != 0 || entries != 0 {
		t.Errorf("got %d signatures and %d entries, want none", n, entries)
	}
	if err := askAs(t, s, agent); err != nil {
		t.Errorf("once all is well: %v", err)
	}
	s.DB.Check(t)
}
