-- +goose Up

-- What issuances are searched by besides what has an index of its own: where each is, the words of the reason, the
-- parameters, and the sandbox's path, the scope and the resource. Where is the trust domain together with the block of
-- 4096, of 32768 and of 262144 entries. A search goes block by block, the newest first, so it never meets what another
-- trust domain has, and stops when its page is full. Names outside of pg_catalog have no place in it, since the
-- expressions of an index run under any search_path. What is appended waits in a list until tidy_terms sorts it in.
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    to_tsvector('pg_catalog.simple', reason),
    params jsonb_path_ops,
    (string_to_array(substr(spiffe_id, 11 + length(trust_domain)), '/') || ARRAY['scope=' || scope, 'resource=' || hashtextextended(resource, 0)]));

-- tidy_terms is for who does not own the index. It sorts in what waits, so that no append and no search has to.
-- +goose StatementBegin
CREATE FUNCTION tidy_terms() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM gin_clean_pending_list('issuances_by_term');
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION tidy_terms FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tidy_terms TO brevet_broker;
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.tidy_terms SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- What a finder holds, and what the far side knows it by: neither is in any order.
CREATE INDEX issuances_by_digest ON issuances USING hash (coalesce(claims_digest, secret_digest))
    WHERE coalesce(claims_digest, secret_digest) IS NOT NULL;
CREATE INDEX issuances_by_name ON issuances USING hash (credential_name) WHERE credential_name IS NOT NULL;
CREATE INDEX votes_by_voter ON votes (voter, request);

-- The other filters, in the order of the listing and apart by trust domain. What most records are is not worth an index.
DROP INDEX issuances_by_scope;
DROP INDEX issuances_by_task;
DROP INDEX issuances_by_status;
DROP INDEX issuances_by_decision;
DROP INDEX issuances_by_time;
DROP INDEX issuances_broken;
CREATE INDEX issuances_by_task ON issuances (task, trust_domain, entry_index DESC);
CREATE INDEX issuances_by_status ON issuances (status, trust_domain, entry_index DESC) WHERE status <> 'issued';
CREATE INDEX issuances_by_decision ON issuances (decision, trust_domain, entry_index DESC) WHERE decision <> 'allow';
CREATE INDEX issuances_by_code ON issuances (decision_code, trust_domain, entry_index DESC) WHERE decision_code <> 'permitted';
CREATE INDEX issuances_by_authority ON issuances (authority, trust_domain, entry_index DESC) WHERE authority <> 'read';
CREATE INDEX issuances_by_group ON issuances (approval_group, trust_domain, entry_index DESC) WHERE approval_group IS NOT NULL;
-- Where what one catalogue decided, or one key signed, begins and ends. Nothing else is in the order of -entry_index, so
-- that nothing else is tried.
CREATE INDEX issuances_by_key ON issuances (hashtextextended(key_id, 0), trust_domain, (-entry_index));
CREATE INDEX issuances_by_catalogue ON issuances (hashtextextended(catalogue, 0), trust_domain, (-entry_index));
-- The earliest and the latest time of each block of 8192 entries: time does not always run as the index does.
CREATE INDEX issuances_by_time ON issuances ((entry_index >> 13), time);

-- The orders to revoke, which are few.
CREATE INDEX entries_to_revoke ON entries (index) WHERE kind = 'credentials.revoke';

-- For tools that draw tables. Columns may come, and never go.
CREATE VIEW audit_issuances AS
SELECT id, entry_index, time, trust_domain, spiffe_id AS sandbox, task, scope, authority, resource, params, reason,
    ttl_asked AS ttl_asked_seconds, ttl AS ttl_seconds, decision, decision_code, explanation, policies, catalogue,
    CASE WHEN lapsed THEN 'expired' ELSE status END AS status, status_detail,
    CASE WHEN lapsed THEN expires_at ELSE status_time END AS status_time, expires_at, approval_group, approval_quorum, votes,
    approves, redeemed_by, credential_kind, audience, key_id, encode(coalesce(claims_digest, secret_digest), 'hex') AS sha256,
    credential_name, actor AS ended_by
FROM (
    SELECT *, status IN ('issued', 'pending', 'approved') AND NOT leased
        AND expires_at <= now() - CASE status WHEN 'approved' THEN interval '1 minute' ELSE '0' END AS lapsed
    FROM issuances
) AS i;

CREATE VIEW audit_votes AS
SELECT v.request, i.trust_domain, i.spiffe_id AS sandbox, i.task, i.scope, i.resource, v.voter, p.name AS voter_name,
    p.handle AS voter_handle, v.verdict, v.covers, v.time, v.note, v.entry_index
FROM votes AS v JOIN issuances AS i ON i.id = v.request JOIN people AS p ON p.id = v.voter;

CREATE VIEW audit_tasks AS
SELECT i.spiffe_id AS sandbox, i.task, min(i.trust_domain) AS trust_domain, count(*) AS requests,
    count(*) FILTER (WHERE i.decision = 'allow') AS issued, count(*) FILTER (WHERE i.decision = 'deny') AS denied,
    count(*) FILTER (WHERE i.decision = 'pending') AS asked_people, min(i.time) AS first_time, max(i.time) AS last_time,
    min(e.ends_at) AS ends_at, coalesce(bool_or(e.ended), false) AS ended
FROM issuances AS i LEFT JOIN task_ends AS e ON (e.spiffe_id, e.task) = (i.spiffe_id, i.task)
GROUP BY i.spiffe_id, i.task;

GRANT SELECT ON audit_issuances, audit_votes, audit_tasks TO brevet_auditor;

-- +goose Down
DROP VIEW audit_tasks;
DROP VIEW audit_votes;
DROP VIEW audit_issuances;
DROP INDEX entries_to_revoke;
DROP INDEX issuances_by_time;
DROP INDEX issuances_by_catalogue;
DROP INDEX issuances_by_key;
DROP INDEX issuances_by_group;
DROP INDEX issuances_by_authority;
DROP INDEX issuances_by_code;
DROP INDEX issuances_by_decision;
DROP INDEX issuances_by_status;
DROP INDEX issuances_by_task;
CREATE INDEX issuances_by_scope ON issuances (scope, entry_index DESC);
CREATE INDEX issuances_by_task ON issuances (task, entry_index DESC);
CREATE INDEX issuances_by_status ON issuances (status, entry_index DESC) WHERE status <> 'issued';
CREATE INDEX issuances_by_decision ON issuances (decision, entry_index DESC) WHERE decision <> 'allow';
CREATE INDEX issuances_by_time ON issuances (time);
CREATE INDEX issuances_broken ON issuances (entry_index DESC) WHERE decision_code = 'break_glass';
DROP INDEX votes_by_voter;
DROP INDEX issuances_by_name;
DROP INDEX issuances_by_digest;
DROP FUNCTION tidy_terms;
DROP INDEX issuances_by_term;
