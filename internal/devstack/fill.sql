-- Issuances @first to @beyond of @all, one each @pace: two trust domains, 2,000 sandboxes,
-- 200 scopes, tasks of 20, reasons of six words, every hundredth denied, every hundredth asked of people, and every tenth
-- on behalf of one of 2,000 people.
INSERT INTO issuances (
    id, entry_index, time, trust_domain, spiffe_id, svid_kind, thumbprint, task, scope, authority, resource, params, reason,
    ttl_asked, ttl, decision, decision_code, explanation, policies, clamps, catalogue, status, status_detail, status_time,
    expires_at, approval_group, approval_quorum, credential_kind, audience, key_id, claims_digest, request_digest, vault_path,
    vault_accessor, credential_name, secret_digest, leased, canonical, votes, on_behalf_of, on_behalf_groups, context)
SELECT
    ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, time, domain,
    format('spiffe://%s/team-%s/agent-%s', domain, sandbox % 40, sandbox), 'x509-svid', 'dGh1bWJwcmludA',
    format('task-%s-%s', n / 40000, sandbox), format('app%s.verb%s', scope % 20, scope),
    CASE WHEN scope % 20 = 0 THEN 'payment' WHEN scope % 10 = 1 THEN 'delete' WHEN scope % 5 = 2 THEN 'write' ELSE 'read' END,
    'github:repo/acme/repo-' || repo, jsonb_build_object('repo', 'acme/repo-' || repo, 'issue', n % 5000),
    format('w%s w%s w%s w%s w%s w%s', w[1], w[2], w[3], w[4], w[5], w[6]),
    0, 900, decision, CASE decision WHEN 'allow' THEN 'permitted' WHEN 'pending' THEN 'approval_required'
        ELSE (ARRAY['no_permit', 'forbidden', 'limited', 'unknown_scope'])[1 + n % 4] END,
    'Policy agents-may permits it.', ARRAY['agents-may'], '{}',
    'sha256:' || encode(sha256(convert_to('catalogue ' || n * 20 / @all::bigint, 'UTF8')), 'hex'), status,
    CASE WHEN status IN ('revoked', 'released', 'failed') THEN 'task_ended' END, time, CASE WHEN decision <> 'deny' THEN ends END,
    CASE WHEN decision = 'pending' THEN 'group-' || scope % 20 END, CASE WHEN decision = 'pending' THEN 1 END,
    CASE WHEN decision = 'allow' THEN kind END, CASE WHEN decision = 'allow' AND kind = 'jwt' THEN 'https://api.acme.test' END,
    CASE WHEN decision = 'allow' AND kind = 'jwt' THEN 'key-' || n * 10 / @all::bigint END,
    CASE WHEN decision = 'allow' AND kind = 'jwt' THEN sha256(int8send(n)) END, sha256(int8send(n)),
    CASE WHEN decision = 'allow' AND kind = 'database' THEN 'database/creds/app' END,
    CASE WHEN decision = 'allow' AND kind = 'database' THEN 'accessor-' || n END,
    CASE WHEN decision = 'allow' AND kind = 'database' THEN 'v-app-' || n END,
    CASE WHEN decision = 'allow' AND kind = 'database' THEN sha256(int8send(n)) END,
    decision = 'allow' AND kind = 'database', CASE WHEN decision = 'pending' THEN '{}' END,
    CASE WHEN decision = 'pending' AND status IN ('rejected', 'approved') THEN 1 ELSE 0 END,
    CASE WHEN decision = 'allow' AND n % 10 = 3 THEN 'https://idp.test#u' || repo END,
    CASE WHEN decision = 'allow' AND n % 10 = 3 THEN '{}'::text[] END,
    jsonb_build_object('task', format('task-%s-%s', n / 40000, sandbox))
FROM (
    SELECT *, CASE decision WHEN 'deny' THEN 'denied' WHEN 'pending' THEN
            (ARRAY['pending', 'approved', 'rejected', 'withdrawn'])[1 + n / 7 % 4]
        WHEN 'allow' THEN CASE
            WHEN kind = 'jwt' THEN CASE WHEN dice[4] < 0.003 THEN 'failed' WHEN dice[4] < 0.02 THEN 'revoked' ELSE 'issued' END
            WHEN ends > now() THEN 'issued' WHEN dice[4] < 0.15 THEN 'revoked' WHEN dice[4] < 0.3 THEN 'released'
            ELSE 'expired' END END AS status
    FROM (
        SELECT *, CASE WHEN dice[1] < 0.01 THEN 'deny' WHEN dice[1] < 0.02 THEN 'pending' ELSE 'allow' END AS decision,
            CASE WHEN dice[2] < 0.7 THEN 'jwt' ELSE 'database' END AS kind, CASE WHEN sandbox < 1400 THEN 'acme.test' ELSE 'other.test' END AS domain,
            floor(200 * dice[5] ^ 2)::int AS scope, floor(2000 * dice[6] ^ 2)::int AS repo,
            time + CASE WHEN dice[3] < 0.1 THEN interval '8 hours' ELSE interval '15 minutes' END AS ends,
            ARRAY(SELECT floor(3000 * d ^ 3)::int FROM unnest(dice[7:12]) AS d) AS w
        FROM (
            SELECT n, n * 7 % 2000 AS sandbox, now() - (@all::bigint - n) * @pace::interval AS time,
                ARRAY(SELECT (hashint8extended(n, s) & 1048575) / 1048576.0::float8 FROM generate_series(1, 12) AS s) AS dice
            FROM generate_series(@first::bigint, @beyond::bigint - 1) AS n
        ) AS drawn
    ) AS chosen
) AS made
