package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
)

const (
	benchDecisions = 1_000_000
	benchScopes    = 50
	benchPolicies  = 200
	benchTeams     = benchPolicies - 1
)

// BenchmarkReplay times the whole command on a million decisions of 1,990 sandboxes. Every policy applies to every scope,
// so that every decision evaluates all of them. Requests are either all different or repeated. The command has to decide
// repeated ones only once.
func BenchmarkReplay(b *testing.B) {
	for _, tc := range []struct {
		name  string
		repos int
	}{{"asks=distinct", benchDecisions}, {"asks=repeated", 2}} {
		b.Run(tc.name, func(b *testing.B) {
			db := testkit.NewDB(b)
			recordInBulk(b, db, tc.repos)
			urlFile := filepath.Join(b.TempDir(), "url")
			writeFile(b, urlFile, db.AuditorURL)
			draft := b.TempDir()
			writeFile(b, filepath.Join(draft, "scopes.yaml"), benchScopesYAML())
			writeFile(b, filepath.Join(draft, "policies.cedar"), benchCedar())
			for b.Loop() {
				var out strings.Builder
				if code := run(b.Context(), []string{"catalog", "replay", draft, "--database-url-file", urlFile}, &out, os.Stderr); code != 0 {
					b.Fatalf("got exit code %d: %s", code, &out)
				}
				// One of the teams loses what it was permitted. A tenth of its requests was denied before.
				if want := fmt.Sprintf("%d of %d decisions", benchLost(), benchDecisions); !strings.HasPrefix(out.String(), want) {
					b.Fatalf("got %.300s, want %s", &out, want)
				}
			}
			b.ReportMetric(float64(b.N)*benchDecisions/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func writeFile(b *testing.B, path, text string) {
	b.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// benchScopesYAML returns the scopes. Each request for the ten scopes with the authority write waits for a person.
func benchScopesYAML() string {
	var s strings.Builder
	s.WriteString("scopes:\n")
	for i := range benchScopes {
		authority := "read"
		if i >= benchScopes-10 {
			authority = "write"
		}
		fmt.Fprintf(&s, `  - name: service-%d.items.use
    title: Use items
    authority: %s
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: service-%[1]d:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://service-%[1]d.test}
`, i, authority)
	}
	return s.String()
}

// benchCedar returns the draft. It permits nothing of what team 7 requested.
func benchCedar() string {
	var s strings.Builder
	s.WriteString("@id(\"people\") forbid (principal, action in Action::\"authority:write\", resource) unless { context.approved };\n")
	for team := range benchTeams {
		repos := fmt.Sprintf("team-%d", team)
		if team == 7 {
			repos = "elsewhere"
		}
		fmt.Fprintf(&s, "@id(\"team-%d\") permit (principal in Path::\"spiffe://acme.test/team-%[1]d\", action, resource)\nwhen { context.params.repo like \"%s/*\" };\n", team, repos)
	}
	return s.String()
}

// benchLost counts the requests of team 7 that were not denied.
func benchLost() int {
	lost := 0
	for n := 7; n < benchDecisions; n += benchTeams {
		if n%10 != 0 {
			lost++
		}
	}
	return lost
}

// recordInBulk records decisions of the last six days. Each is an entry and a row, as the ledger writes them, with every
// constraint and trigger in force but the one that follows entries: these entries say only what a replay reads. Request n is by a sandbox of team n mod 199. One in ten is for another team's
// repository, and denied.
func recordInBulk(b *testing.B, db *testkit.DB, repos int) {
	b.Helper()
	const batch = 50_000
	conn := testkit.Connect(b, db.AdminURL)
	for _, sql := range []string{`SELECT add_partition(1 << 22)`, `ALTER TABLE entries DISABLE TRIGGER entries_follow`} {
		if _, err := conn.Exec(b.Context(), sql); err != nil {
			b.Fatalf("preparing the ledger: %v", err)
		}
	}
	for first := 0; first < benchDecisions; first += batch {
		_, err := conn.Exec(b.Context(), recordInBulkSQL, pgx.NamedArgs{
			"first": first, "beyond": min(first+batch, benchDecisions), "all": benchDecisions, "repos": repos,
			"teams": benchTeams, "scopes": benchScopes,
		})
		if err != nil {
			b.Fatalf("recording decisions: %v", err)
		}
	}
	if _, err := conn.Exec(b.Context(), `ANALYZE`); err != nil { // as autovacuum would do later
		b.Fatal(err)
	}
}

const recordInBulkSQL = `
WITH head AS (
	UPDATE ledger_head SET size = size + @beyond::bigint - @first::bigint RETURNING 1
), ask AS (
	SELECT n, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
		date_trunc('second', now()) - interval '6 days' + n * (interval '5 days' / @all::bigint) AS time,
		format('spiffe://acme.test/team-%s/a-%s', n % @teams::bigint, n / @teams % 10) AS spiffe_id,
		format('service-%s.items.use', n * 31 % @scopes::bigint) AS scope, n * 31 % @scopes >= @scopes - 10 AS waits,
		format('%s-%s/r-%s', CASE n % 10 WHEN 0 THEN 'other' ELSE 'team' END, n % @teams, n % @repos::bigint) AS repo
	FROM generate_series(@first::bigint, @beyond - 1) AS n
), verdict AS MATERIALIZED (
	SELECT *, CASE WHEN n % 10 = 0 THEN 'deny' WHEN waits THEN 'pending' ELSE 'allow' END AS decision,
		CASE WHEN n % 10 = 0 THEN 'no_permit' WHEN waits THEN 'approval_required' ELSE 'permitted' END AS code,
		CASE WHEN n % 10 = 0 THEN 'request.denied' WHEN waits THEN 'request.pending' ELSE 'issuance.intent' END AS kind
	FROM ask, head
), entry AS (
	INSERT INTO entries (index, id, time, kind, body, leaf_hash)
	SELECT n, id, time, kind, body, sha256('\x00'::bytea || body)
	FROM verdict, LATERAL (SELECT convert_to(jsonb_build_object('version', 1, 'kind', kind, 'id', id, 'time', time,
		'subject', jsonb_build_object('spiffe_id', spiffe_id, 'trust_domain', 'acme.test', 'svid', 'x509-svid'),
		'request', jsonb_build_object('scope', scope, 'params', jsonb_build_object('repo', repo), 'task', 'task-1'),
		'decision', jsonb_build_object('outcome', decision, 'code', code, 'ttl', 300))::text, 'UTF8') AS body) AS b
	ORDER BY n
)
INSERT INTO issuances (
	id, entry_index, time, trust_domain, spiffe_id, svid_kind, thumbprint, task, scope, authority, resource, params, reason,
	ttl_asked, ttl, decision, decision_code, explanation, policies, clamps, catalogue, status, status_time, expires_at,
	approval_group, approval_quorum, credential_kind, audience, key_id, claims_digest, request_digest, context)
SELECT id, n, time, 'acme.test', spiffe_id, 'x509-svid', 'dGh1bWI', 'task-' || n / 20, scope,
	CASE WHEN waits THEN 'write' ELSE 'read' END, split_part(scope, '.', 1) || ':repo/' || repo,
	jsonb_build_object('repo', repo), 'to see how it is', 0, 300, decision, code, 'Because of a policy.',
	ARRAY['team-' || n % @teams], '{}', 'sha256:c0ffee',
	CASE decision WHEN 'deny' THEN 'denied' WHEN 'pending' THEN 'pending' ELSE 'issued' END, time,
	CASE decision WHEN 'deny' THEN NULL WHEN 'pending' THEN time + interval '10 minutes' ELSE time + interval '5 minutes' END,
	CASE decision WHEN 'pending' THEN 'oncall' END, CASE decision WHEN 'pending' THEN 1 END,
	CASE decision WHEN 'allow' THEN 'jwt' END, CASE decision WHEN 'allow' THEN 'https://service.test' END,
	CASE decision WHEN 'allow' THEN 'key-1' END, CASE decision WHEN 'allow' THEN sha256(uuid_send(id)) END,
	sha256(uuid_send(id)), jsonb_build_object('task', 'task-' || n / 20)
FROM verdict ORDER BY n`
