-- +goose Up

-- Whoever appends locks issuances before any other table that this changes: from here on nobody has one of them and waits for another.
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;

-- What the holder of a credential says of how often it was used is an entry of the issuance. It moves nothing.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used', 'issuance.reported',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected', 'ledger.pruned'));

-- A table of its own, since a row of issuances is in twenty indexes. began is the entry that the issuance began with: whoever
-- counts reads both tables in that order.
CREATE TABLE uses (
    issuance     uuid PRIMARY KEY REFERENCES issuances (id),
    began        bigint NOT NULL UNIQUE,
    calls        bigint NOT NULL CHECK (calls BETWEEN 0 AND 1000000000),
    last_used_at timestamptz,
    time         timestamptz NOT NULL,
    entry_index  bigint NOT NULL,
    CONSTRAINT uses_last CHECK ((last_used_at IS NULL) = (calls = 0))
);

-- reportable tells whether something was issued to that sandbox, and has not ended by its time for more than an hour. One
-- statement judges by one time, so that what it takes for possible is possible for the trigger below.
-- +goose StatementBegin
CREATE FUNCTION reportable(asked uuid, holder text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked AND i.spiffe_id = holder AND now() < i.expires_at + interval '1 hour'
            AND CASE i.credential_kind WHEN 'jwt' THEN i.status <> 'failed'
                ELSE EXISTS (SELECT FROM entries AS e WHERE e.id = asked AND e.index >= i.entry_index AND e.kind = 'issuance.issued') END);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION reportable FROM PUBLIC;

-- may_report tells besides that nothing has been reported yet. The caller holds the ledger's lock; it is volatile, so it sees
-- what was committed before that. What somebody prunes meanwhile is as good as gone: it is not waited for.
-- +goose StatementBegin
CREATE FUNCTION may_report(asked uuid, holder text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM issuances AS i WHERE i.id = asked FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND reportable(asked, holder) AND NOT EXISTS (SELECT FROM uses AS u WHERE u.issuance = asked);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION may_report FROM PUBLIC;

-- What is in the table its holder has said, in the entry that it names.
-- +goose StatementBegin
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
-- +goose StatementEnd
CREATE TRIGGER uses_holder_says_so AFTER INSERT ON uses FOR EACH ROW EXECUTE FUNCTION holder_says_so();
CREATE TRIGGER uses_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON uses FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();

-- For tools that draw tables. Columns may come, and never go.
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

GRANT SELECT, INSERT ON uses TO brevet_broker;
GRANT EXECUTE ON FUNCTION reportable, may_report TO brevet_broker;
GRANT SELECT ON uses, audit_usage TO brevet_auditor;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['reportable', 'may_report', 'holder_says_so'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;
-- This fails once there are entries of what it takes back: they are for good.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected', 'ledger.pruned'));
DROP VIEW audit_usage;
DROP TABLE uses;
DROP FUNCTION holder_says_so;
DROP FUNCTION may_report;
DROP FUNCTION reportable;
