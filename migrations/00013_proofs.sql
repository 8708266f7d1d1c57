-- +goose Up

-- Which DPoP proofs were used, by a digest of their key and jti, for as long as they would be accepted and a minute more:
-- clocks differ.
CREATE TABLE dpop_seen (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    until  timestamptz NOT NULL
);
CREATE INDEX dpop_seen_until ON dpop_seen (until);
CREATE TRIGGER dpop_seen_is_kept BEFORE DELETE ON dpop_seen FOR EACH ROW
    WHEN (OLD.until > now() - interval '1 minute') EXECUTE FUNCTION forbid_change();
GRANT SELECT, INSERT, DELETE ON dpop_seen TO brevet_broker;

-- The key that a sandbox proved when it asked, by its RFC 7638 thumbprint: people are shown it, and the token is bound to it.
ALTER TABLE issuances
    ADD COLUMN jkt text,
    ADD CONSTRAINT issuances_jkt CHECK (CASE WHEN jkt IS NULL THEN true
        ELSE jkt ~ '^[A-Za-z0-9_-]{43}$' AND (canonical IS NULL OR coalesce(canonical::jsonb ->> 'jkt' = jkt, false)) END);

-- As it was, and what is remembered was said to an ask with the same key.
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

-- As it was, and for the same key.
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
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['people_said_so', 'approval_is_used'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
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
                    AND r.canonical::jsonb ->> 'thumbprint' IS NOT DISTINCT FROM NEW.canonical::jsonb ->> 'thumbprint'))
    THEN
        RAISE EXCEPTION 'nobody who may has made request % %', NEW.id, NEW.status USING ERRCODE = 'check_violation';
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
            AND NEW.ttl <= i.ttl AND NEW.decision_code = approved_by(i.id)) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['people_said_so', 'approval_is_used'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd
ALTER TABLE issuances
    DROP CONSTRAINT issuances_jkt,
    DROP COLUMN jkt;
DROP TABLE dpop_seen;
