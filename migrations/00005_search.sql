-- +goose Up
-- +goose StatementBegin

-- What search, reports of use and reporting tools need. Nothing here is part of a decision.

-- issuance_terms is what the index of terms stores of an issuance: the words of its reason, the segments of its sandbox's path, and facts,
-- which are values that most issuances do not have, each after a newline. Each term starts with the trust domain, so a search reads another
-- domain's rows only if two 32-bit hashes collide. A search builds its terms with the same function. A word is in quotes, as in the text of
-- a tsvector, where nothing but a space can follow it. The body calls only immutable functions, so PostgreSQL inlines it.
CREATE FUNCTION issuance_terms(trust_domain text, reason text, spiffe_id text, facts text)
RETURNS text[] LANGUAGE sql IMMUTABLE
RETURN string_to_array(nullif(right(
    coalesce(E'\n' || trust_domain || ':word=' || replace(
        nullif(strip(to_tsvector('pg_catalog.simple', reason))::text, ''), ' ', E'\n' || trust_domain || ':word='), '')
    || coalesce(E'\n' || trust_domain || ':path=' || replace(
        nullif(right(spiffe_id, -10 - length(trust_domain)), ''), '/', E'\n' || trust_domain || ':path='), '')
    || coalesce(replace(facts, E'\n', E'\n' || trust_domain || ':'), ''), -1), ''), E'\n');

-- The first column is the trust domain together with the block of 4096, 32768 and 262144 entries. A search goes block by block, newest
-- first, and stops when its page is full. New rows wait in a pending list until tidy_terms merges them.
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    issuance_terms(trust_domain, reason, spiffe_id, E'\nscope=' || scope || E'\nresource=' || hashtextextended(resource, 0)
        || coalesce(E'\nuser=' || hashtextextended(on_behalf_of, 0), '') || coalesce(E'\ngroup=' || approval_group, '')
        || coalesce(E'\nstatus=' || nullif(status, 'issued'), '') || coalesce(E'\ndecision=' || nullif(decision, 'allow'), '')
        || coalesce(E'\ncode=' || nullif(decision_code, 'permitted'), '')
        || coalesce(E'\nauthority=' || nullif(authority, 'read'), '')) COLLATE "C",
    jsonb_set('{}', ARRAY[trust_domain], params) jsonb_path_ops);

-- tidy_terms merges the pending list, so that no append and no search has to. Only an index's owner may do that, hence SECURITY DEFINER.
CREATE FUNCTION tidy_terms() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM gin_clean_pending_list('issuances_by_term');
END $$;

-- One index for each filter, in the order of the listing. Values that most issuances have are left out. INCLUDE (spiffe_id) lets a search
-- below a path skip other sandboxes without reading the table. The indexes that every issuance is in have no duplicates, and grow at the
-- end of each value: then pages fill up.
CREATE INDEX issuances_by_trust_domain ON issuances (trust_domain, entry_index) WITH (deduplicate_items = off);
CREATE INDEX issuances_by_spiffe_id ON issuances (spiffe_id, entry_index) WITH (deduplicate_items = off);
CREATE INDEX issuances_by_task ON issuances (task, trust_domain, entry_index) WITH (deduplicate_items = off);
CREATE INDEX issuances_by_status ON issuances (status, trust_domain, entry_index DESC) WHERE status <> 'issued';
CREATE INDEX issuances_by_authority ON issuances (authority, trust_domain, entry_index DESC) WHERE authority <> 'read';
CREATE INDEX issuances_by_decision ON issuances (decision, trust_domain, entry_index DESC) INCLUDE (spiffe_id)
    WHERE decision <> 'allow';
CREATE INDEX issuances_by_code ON issuances (decision_code, trust_domain, entry_index DESC) INCLUDE (spiffe_id)
    WHERE decision_code <> 'permitted';
CREATE INDEX issuances_by_group ON issuances (approval_group, trust_domain, entry_index DESC) INCLUDE (spiffe_id)
    WHERE approval_group IS NOT NULL;
CREATE INDEX issuances_by_user ON issuances (on_behalf_of, trust_domain, entry_index DESC) INCLUDE (spiffe_id)
    WHERE on_behalf_of IS NOT NULL;
-- Where the issuances that one catalogue decided, or one key signed, begin and end. No other index is in the order of -entry_index, so the
-- planner considers no other.
CREATE INDEX issuances_by_key ON issuances (hashtextextended(key_id, 0), trust_domain, (-entry_index));
CREATE INDEX issuances_by_catalogue ON issuances (hashtextextended(catalogue, 0), trust_domain, (-entry_index));
-- The earliest and latest time of each block of 8192 entries: time does not always grow with the index.
CREATE INDEX issuances_by_time ON issuances ((entry_index >> 13), time);
-- What the finder of a credential has: its digest, or the name by which the target system knows it.
CREATE INDEX issuances_by_digest ON issuances USING hash (coalesce(claims_digest, secret_digest))
    WHERE coalesce(claims_digest, secret_digest) IS NOT NULL;
CREATE INDEX issuances_by_name ON issuances USING hash (credential_name) WHERE credential_name IS NOT NULL;
CREATE INDEX votes_by_voter ON votes (voter, request);

-- How often a credential was used, as its holder reported once. It is a separate table because a row of issuances is in twenty indexes.
-- began is the issuance's entry_index: a count reads both tables in that order.
CREATE TABLE uses (
    issuance     uuid PRIMARY KEY REFERENCES issuances (id),
    began        bigint NOT NULL UNIQUE,
    calls        bigint NOT NULL CHECK (calls BETWEEN 0 AND 1000000000),
    last_used_at timestamptz,
    time         timestamptz NOT NULL,
    entry_index  bigint NOT NULL,
    CONSTRAINT uses_last CHECK ((last_used_at IS NULL) = (calls = 0))
);
CREATE TRIGGER uses_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON uses FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();

-- reportable reports whether a credential was issued to that sandbox and expired at most an hour ago. now() is the same for a whole
-- transaction, so the trigger below agrees with an earlier may_report.
CREATE FUNCTION reportable(asked uuid, holder text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked AND i.spiffe_id = holder AND now() < i.expires_at + interval '1 hour'
            AND CASE WHEN i.credential_kind IN ('jwt', 'none') THEN i.status <> 'failed'
                ELSE EXISTS (SELECT FROM entries AS e WHERE e.id = asked AND e.index >= i.entry_index AND e.kind = 'issuance.issued') END);
END $$;

-- may_report reports in addition that nothing was reported yet. The caller holds the ledger's lock. The function is volatile, so it sees
-- what was committed before that. It does not wait for rows that are being pruned.
CREATE FUNCTION may_report(asked uuid, holder text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM issuances AS i WHERE i.id = asked FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND reportable(asked, holder) AND NOT EXISTS (SELECT FROM uses AS u WHERE u.issuance = asked);
END $$;

-- A row repeats the holder's report, which is the entry that it names.
CREATE FUNCTION holder_says_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i JOIN entries AS e ON e.id = i.id,
            LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb AS doc) AS said
        WHERE i.id = NEW.issuance AND i.entry_index = NEW.began AND reportable(i.id, said.doc #>> '{actor,spiffe_id}')
            AND (e.index, e.kind, e.time) = (NEW.entry_index, 'issuance.reported', NEW.time)
            AND (said.doc ->> 'calls')::bigint = NEW.calls
            AND (said.doc ->> 'last_used_at')::timestamptz IS NOT DISTINCT FROM NEW.last_used_at
            AND coalesce(NEW.last_used_at, i.time) BETWEEN i.time AND greatest(i.time, NEW.time)) THEN
        RAISE EXCEPTION 'the holder of issuance % does not say so', NEW.issuance USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER uses_holder_says_so AFTER INSERT ON uses FOR EACH ROW EXECUTE FUNCTION holder_says_so();

-- The reports of egress gateways about what a sandbox called during a task. Their rows are in the entries that these rows name. id follows
-- from the sandbox, task, session and sequence.
CREATE TABLE call_reports (
    id           uuid PRIMARY KEY,
    trust_domain text COLLATE "C" NOT NULL,
    spiffe_id    text COLLATE "C" NOT NULL,
    task         text COLLATE "C" NOT NULL,
    session      uuid NOT NULL,
    sequence     bigint NOT NULL CHECK (sequence BETWEEN 1 AND 10000000),
    since        timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    final        boolean NOT NULL,
    time         timestamptz NOT NULL,
    entry_index  bigint NOT NULL UNIQUE,
    CONSTRAINT call_reports_of_session UNIQUE (spiffe_id, task, session, sequence),
    CONSTRAINT call_reports_period CHECK (since <= until)
);
CREATE TRIGGER call_reports_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON call_reports FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();

-- may_report_calls reports that nothing was reported yet with that id. The caller holds the ledger's lock. The function is volatile, so it
-- sees what was committed before that.
CREATE FUNCTION may_report_calls(asked uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM call_reports AS r WHERE r.id = asked);
END $$;

-- A row repeats the gateway's report, which is the entry that it names. The report has at most 128 rows, and each row counts something.
CREATE FUNCTION gateway_says_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb AS doc) AS b, LATERAL (SELECT doc -> 'report' AS report) AS r
        WHERE (e.index, e.id, e.kind, e.time) = (NEW.entry_index, NEW.id, 'calls.recorded', NEW.time)
            AND (doc #>> '{actor,trust_domain}', doc #>> '{actor,spiffe_id}', doc ->> 'task') = (NEW.trust_domain, NEW.spiffe_id, NEW.task)
            AND ((report ->> 'session')::uuid, (report ->> 'sequence')::bigint, (report ->> 'final')::boolean)
                = (NEW.session, NEW.sequence, NEW.final)
            AND ((report ->> 'since')::timestamptz, (report ->> 'until')::timestamptz) = (NEW.since, NEW.until)
            AND CASE jsonb_typeof(report -> 'calls') WHEN 'array' THEN jsonb_array_length(report -> 'calls') <= 128 AND NOT EXISTS (
                SELECT FROM jsonb_array_elements(report -> 'calls') AS c WHERE ((c ->> 'count')::bigint BETWEEN 1 AND 1000000000) IS NOT TRUE)
                END) THEN
        RAISE EXCEPTION 'no gateway reports calls as row % does', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER call_reports_gateway_says_so AFTER INSERT ON call_reports FOR EACH ROW EXECUTE FUNCTION gateway_says_so();

-- Views for reporting tools. Columns are added, never removed.
CREATE VIEW audit_issuances AS
SELECT id, entry_index, time, trust_domain, spiffe_id AS sandbox, task, scope, authority, resource, params, reason,
    ttl_asked AS ttl_asked_seconds, ttl AS ttl_seconds, decision, decision_code, explanation, policies, catalogue,
    CASE WHEN i.status IN ('pending', 'approved') AND voided_by(i.status, i.entry_index, i.expires_at) IS NOT NULL THEN 'void'
        WHEN lapsed THEN 'expired' ELSE status END AS status, status_detail,
    CASE WHEN i.status IN ('pending', 'approved') AND voided_by(i.status, i.entry_index, i.expires_at) IS NOT NULL THEN (
            SELECT c.time FROM catalogue_changes AS c
            WHERE c.kind = 'applied' AND c.version = voided_by(i.status, i.entry_index, i.expires_at))
        WHEN lapsed THEN expires_at ELSE status_time END AS status_time, expires_at, approval_group, approval_quorum, votes,
    approves, redeemed_by, credential_kind, audience, key_id, encode(coalesce(claims_digest, secret_digest), 'hex') AS sha256,
    credential_name, actor AS ended_by, on_behalf_of
FROM issuances AS i, LATERAL (
    SELECT i.status IN ('issued', 'pending', 'approved') AND NOT i.leased
        AND i.expires_at <= now() - CASE i.status WHEN 'approved' THEN interval '1 minute' ELSE '0' END AS lapsed
) AS l;

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

CREATE VIEW audit_usage AS
SELECT (i.time AT TIME ZONE 'UTC')::date AS day, i.trust_domain, i.scope,
    count(*) FILTER (WHERE i.approves IS NULL) AS asked,
    count(*) FILTER (WHERE i.status IN ('issued', 'revoking', 'revoked', 'released', 'expired', 'used')) AS granted,
    count(*) FILTER (WHERE i.status IN ('denied', 'rejected')) AS denied,
    count(u.issuance) AS reported, count(*) FILTER (WHERE u.calls > 0) AS reported_used,
    coalesce(sum(u.calls), 0)::bigint AS reported_calls, max(u.last_used_at) AS reported_last_used_at
FROM issuances AS i LEFT JOIN uses AS u ON u.began = i.entry_index
WHERE i.authority <> ''
GROUP BY 1, 2, 3;

CREATE VIEW audit_calls AS
SELECT r.trust_domain, r.spiffe_id AS sandbox, r.task, r.session, r.sequence, r.final, c.host, c.method, c.path, c.scope, c.refused,
    coalesce(c.other, false) AS other, c.count, c.first AS first_time, c.last AS last_time, c.statuses, coalesce(c.bytes_in, 0) AS bytes_in,
    coalesce(c.bytes_out, 0) AS bytes_out, r.time, r.entry_index
FROM call_reports AS r JOIN entries AS e ON e.index = r.entry_index,
    jsonb_to_recordset(convert_from(e.body, 'UTF8')::jsonb #> '{report,calls}') AS c (host text, method text, path text, scope text,
        refused text, other boolean, count bigint, first timestamptz, last timestamptz, statuses jsonb, bytes_in bigint, bytes_out bigint);

-- +goose StatementEnd

-- +goose Down
-- Entries are permanent: this fails once there is a report of use or of calls.
ALTER TABLE entries ADD CONSTRAINT entries_of_uses CHECK (kind NOT IN ('issuance.reported', 'calls.recorded'));
ALTER TABLE entries DROP CONSTRAINT entries_of_uses;
DROP VIEW audit_calls, audit_usage, audit_tasks, audit_votes, audit_issuances;
DROP TABLE call_reports, uses;
DROP FUNCTION gateway_says_so, may_report_calls, holder_says_so, may_report, reportable, tidy_terms;
DROP INDEX votes_by_voter, issuances_by_name, issuances_by_digest, issuances_by_time, issuances_by_catalogue, issuances_by_key,
    issuances_by_user, issuances_by_group, issuances_by_code, issuances_by_decision, issuances_by_authority, issuances_by_status,
    issuances_by_task, issuances_by_spiffe_id, issuances_by_trust_domain, issuances_by_term;
DROP FUNCTION issuance_terms;
