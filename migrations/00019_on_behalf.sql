-- +goose Up

-- The person on whose behalf a sandbox asks, by id, and the groups that the provider said then: policies may go by them. People
-- are shown the person.
ALTER TABLE issuances
    ADD COLUMN on_behalf_of     text COLLATE "C",
    ADD COLUMN on_behalf_groups text[],
    ADD CONSTRAINT issuances_on_behalf_of CHECK (
        num_nulls(on_behalf_of, on_behalf_groups) IN (0, 2) AND coalesce(on_behalf_of LIKE '_%#_%', true)
        AND CASE WHEN coalesce(canonical, '') = '' THEN true
            ELSE canonical::jsonb ->> 'on_behalf_of' IS NOT DISTINCT FROM on_behalf_of END);
CREATE INDEX issuances_by_user ON issuances (on_behalf_of, trust_domain, entry_index DESC) INCLUDE (spiffe_id)
    WHERE on_behalf_of IS NOT NULL;

-- Nobody decides on what is asked on their behalf.
-- +goose StatementBegin
CREATE FUNCTION not_ones_own() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM issuances AS i WHERE i.id = NEW.request AND i.on_behalf_of = NEW.voter) THEN
        RAISE EXCEPTION 'request % is asked on behalf of its voter', NEW.request USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER votes_not_ones_own AFTER INSERT ON votes FOR EACH ROW EXECUTE FUNCTION not_ones_own();

-- As it was, and what is remembered was said to an ask on behalf of the same person, or of nobody too.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION people_said_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status IN ('approved', 'redeemed') AND NEW.status <> OLD.status AND NOT enough(NEW.id)
        OR NEW.votes <> (SELECT count(*) FROM votes AS v WHERE v.request = NEW.id)
        OR NEW.remembered IS NOT NULL AND OLD.remembered IS NULL AND (
            EXISTS (SELECT FROM votes AS v WHERE v.request IN (NEW.id, NEW.remembered) AND v.verdict = 'deny')
            OR EXISTS (SELECT FROM votes AS v WHERE v.request = NEW.id AND NOT EXISTS (
                SELECT FROM votes AS w
                WHERE w.request = NEW.remembered AND w.voter = v.voter AND w.verdict = 'approve' AND w.covers = 'task'))
            OR NOT EXISTS (
                SELECT FROM issuances AS r
                WHERE r.id = NEW.remembered AND r.status IN ('approved', 'redeemed') AND r.remembered IS NULL
                    AND (r.spiffe_id, r.task, r.scope, r.params, r.resource, r.catalogue, r.approval_group, r.approval_quorum)
                        = (NEW.spiffe_id, NEW.task, NEW.scope, NEW.params, NEW.resource, NEW.catalogue, NEW.approval_group,
                            NEW.approval_quorum)
                    AND NEW.ttl <= r.ttl AND NEW.time < r.time + interval '8 hours'
                    AND r.jkt IS NOT DISTINCT FROM NEW.jkt AND r.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of
                    AND r.canonical::jsonb ->> 'thumbprint' IS NOT DISTINCT FROM NEW.canonical::jsonb ->> 'thumbprint'))
    THEN
        RAISE EXCEPTION 'nobody who may has made request % %', NEW.id, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- As it was, and on behalf of the same person.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.task, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.task, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND i.jkt IS NOT DISTINCT FROM NEW.jkt AND i.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of
            AND i.on_behalf_groups IS NOT DISTINCT FROM NEW.on_behalf_groups
            AND NEW.ttl <= i.ttl AND NEW.decision_code = approved_by(i.id)) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- As it was, and on behalf of the same person.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION only_narrower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
            SELECT FROM issuances AS p
            WHERE p.id = NEW.parent AND p.credential_kind = 'jwt' AND NOT p.one_shot AND p.jkt IS NULL
                AND (p.task, p.scope, p.resource, p.params, p.audience)
                    = (NEW.task, NEW.scope, NEW.resource, NEW.params, NEW.audience)
                AND p.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of
                AND p.on_behalf_groups IS NOT DISTINCT FROM NEW.on_behalf_groups
                AND NEW.expires_at <= p.expires_at AND NEW.spiffe_id <> p.spiffe_id)
        OR 3 < (
            WITH RECURSIVE above AS (
                SELECT p.parent, 1 AS height FROM issuances AS p WHERE p.id = NEW.parent
                UNION ALL
                SELECT p.parent, a.height + 1 FROM above AS a JOIN issuances AS p ON p.id = a.parent WHERE a.height < 4
            ) SELECT max(height) FROM above)
    THEN
        RAISE EXCEPTION 'issuance % is more than what it comes from', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE OR REPLACE VIEW audit_issuances AS
SELECT id, entry_index, time, trust_domain, spiffe_id AS sandbox, task, scope, authority, resource, params, reason,
    ttl_asked AS ttl_asked_seconds, ttl AS ttl_seconds, decision, decision_code, explanation, policies, catalogue,
    CASE WHEN lapsed THEN 'expired' ELSE status END AS status, status_detail,
    CASE WHEN lapsed THEN expires_at ELSE status_time END AS status_time, expires_at, approval_group, approval_quorum, votes,
    approves, redeemed_by, credential_kind, audience, key_id, encode(coalesce(claims_digest, secret_digest), 'hex') AS sha256,
    credential_name, actor AS ended_by, on_behalf_of
FROM issuances AS i, LATERAL (
    SELECT i.status IN ('issued', 'pending', 'approved') AND NOT i.leased
        AND i.expires_at <= now() - CASE i.status WHEN 'approved' THEN interval '1 minute' ELSE '0' END AS lapsed
) AS l;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['not_ones_own', 'people_said_so', 'approval_is_used', 'only_narrower'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- Those on whose behalf something was asked stand in the entries.
DROP VIEW audit_issuances;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION only_narrower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
            SELECT FROM issuances AS p
            WHERE p.id = NEW.parent AND p.credential_kind = 'jwt' AND NOT p.one_shot AND p.jkt IS NULL
                AND (p.task, p.scope, p.resource, p.params, p.audience)
                    = (NEW.task, NEW.scope, NEW.resource, NEW.params, NEW.audience)
                AND NEW.expires_at <= p.expires_at AND NEW.spiffe_id <> p.spiffe_id)
        OR 3 < (
            WITH RECURSIVE above AS (
                SELECT p.parent, 1 AS height FROM issuances AS p WHERE p.id = NEW.parent
                UNION ALL
                SELECT p.parent, a.height + 1 FROM above AS a JOIN issuances AS p ON p.id = a.parent WHERE a.height < 4
            ) SELECT max(height) FROM above)
    THEN
        RAISE EXCEPTION 'issuance % is more than what it comes from', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.task, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.task, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND i.jkt IS NOT DISTINCT FROM NEW.jkt
            AND NEW.ttl <= i.ttl AND NEW.decision_code = approved_by(i.id)) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION people_said_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status IN ('approved', 'redeemed') AND NEW.status <> OLD.status AND NOT enough(NEW.id)
        OR NEW.votes <> (SELECT count(*) FROM votes AS v WHERE v.request = NEW.id)
        OR NEW.remembered IS NOT NULL AND OLD.remembered IS NULL AND (
            EXISTS (SELECT FROM votes AS v WHERE v.request IN (NEW.id, NEW.remembered) AND v.verdict = 'deny')
            OR EXISTS (SELECT FROM votes AS v WHERE v.request = NEW.id AND NOT EXISTS (
                SELECT FROM votes AS w
                WHERE w.request = NEW.remembered AND w.voter = v.voter AND w.verdict = 'approve' AND w.covers = 'task'))
            OR NOT EXISTS (
                SELECT FROM issuances AS r
                WHERE r.id = NEW.remembered AND r.status IN ('approved', 'redeemed') AND r.remembered IS NULL
                    AND (r.spiffe_id, r.task, r.scope, r.params, r.resource, r.catalogue, r.approval_group, r.approval_quorum)
                        = (NEW.spiffe_id, NEW.task, NEW.scope, NEW.params, NEW.resource, NEW.catalogue, NEW.approval_group,
                            NEW.approval_quorum)
                    AND NEW.ttl <= r.ttl AND NEW.time < r.time + interval '8 hours'
                    AND r.jkt IS NOT DISTINCT FROM NEW.jkt
                    AND r.canonical::jsonb ->> 'thumbprint' IS NOT DISTINCT FROM NEW.canonical::jsonb ->> 'thumbprint'))
    THEN
        RAISE EXCEPTION 'nobody who may has made request % %', NEW.id, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['people_said_so', 'approval_is_used', 'only_narrower'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd
DROP TRIGGER votes_not_ones_own ON votes;
DROP FUNCTION not_ones_own;
DROP INDEX issuances_by_user;
ALTER TABLE issuances
    DROP CONSTRAINT issuances_on_behalf_of,
    DROP COLUMN on_behalf_groups,
    DROP COLUMN on_behalf_of;
CREATE VIEW audit_issuances AS
SELECT id, entry_index, time, trust_domain, spiffe_id AS sandbox, task, scope, authority, resource, params, reason,
    ttl_asked AS ttl_asked_seconds, ttl AS ttl_seconds, decision, decision_code, explanation, policies, catalogue,
    CASE WHEN lapsed THEN 'expired' ELSE status END AS status, status_detail,
    CASE WHEN lapsed THEN expires_at ELSE status_time END AS status_time, expires_at, approval_group, approval_quorum, votes,
    approves, redeemed_by, credential_kind, audience, key_id, encode(coalesce(claims_digest, secret_digest), 'hex') AS sha256,
    credential_name, actor AS ended_by
FROM issuances AS i, LATERAL (
    SELECT i.status IN ('issued', 'pending', 'approved') AND NOT i.leased
        AND i.expires_at <= now() - CASE i.status WHEN 'approved' THEN interval '1 minute' ELSE '0' END AS lapsed
) AS l;
GRANT SELECT ON audit_issuances TO brevet_auditor;
