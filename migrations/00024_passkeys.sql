-- +goose Up

-- Whoever appends locks issuances before any other table that this changes: from here on nobody has one of them and waits for another.
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;

-- Who has registered which passkey, and has taken it back, is for good.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used', 'issuance.reported',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen', 'passkey.registered', 'passkey.removed',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected', 'ledger.pruned'));

-- The passkeys of people. credential and public_key are base64url, and digest is the SHA-256 of the key in hexadecimal. A
-- credential is somebody's once: nobody registers again what was removed.
CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    person        text COLLATE "C" NOT NULL REFERENCES people (id),
    credential    text COLLATE "C" NOT NULL UNIQUE CHECK (credential ~ '^[A-Za-z0-9_-]+$' AND length(credential) <= 1364),
    public_key    text COLLATE "C" NOT NULL CHECK (public_key ~ '^[A-Za-z0-9_-]+$' AND length(public_key) <= 2736),
    digest        text COLLATE "C" NOT NULL,
    algorithm     integer NOT NULL,
    sign_count    bigint NOT NULL CHECK (sign_count BETWEEN 0 AND 4294967295),
    name          text NOT NULL CHECK (name ~ '\S' AND length(name) <= 64),
    time          timestamptz NOT NULL,
    entry_index   bigint NOT NULL,
    removed_at    timestamptz,
    removed_index bigint,
    CONSTRAINT passkeys_digest CHECK (digest = encode(sha256(decode(
        rpad(translate(public_key, '-_', '+/'), (length(public_key) + 3) / 4 * 4, '='), 'base64')), 'hex')),
    CONSTRAINT passkeys_removed CHECK (num_nulls(removed_at, removed_index) IN (0, 2) AND coalesce(removed_index > entry_index, true))
);
CREATE INDEX passkeys_of_person ON passkeys (person) WHERE removed_index IS NULL;

-- A row says what its entries say: that of its registration, and that of its removal by the same person, after which it stays as
-- it is. A person has ten at most.
-- +goose StatementBegin
CREATE FUNCTION passkey_is_registered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
            SELECT FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb AS doc) AS said
            WHERE (e.id, e.index, e.kind, e.time) = (NEW.id, NEW.entry_index, 'passkey.registered', NEW.time)
                AND (doc #>> '{actor,id}', doc ->> 'credential', doc ->> 'public_key', doc ->> 'digest', doc ->> 'name')
                    = (NEW.person, NEW.credential, NEW.public_key, NEW.digest, NEW.name)
                AND (doc ->> 'algorithm')::integer = NEW.algorithm AND (doc ->> 'sign_count')::bigint = NEW.sign_count)
        OR NEW.removed_index IS NOT NULL AND NOT EXISTS (
            SELECT FROM entries AS e, LATERAL (SELECT convert_from(e.body, 'UTF8')::jsonb AS doc) AS said
            WHERE (e.index, e.kind, e.time) = (NEW.removed_index, 'passkey.removed', NEW.removed_at)
                AND (doc #>> '{actor,id}', doc ->> 'passkey') = (NEW.person, NEW.id::text))
        OR 10 < (SELECT count(*) FROM passkeys AS k WHERE k.person = NEW.person AND k.removed_index IS NULL)
        OR TG_OP = 'UPDATE' AND (OLD.removed_index IS NOT NULL
            OR (NEW.id, NEW.person, NEW.credential, NEW.public_key, NEW.digest, NEW.algorithm, NEW.sign_count, NEW.name, NEW.time,
                NEW.entry_index) <> (OLD.id, OLD.person, OLD.credential, OLD.public_key, OLD.digest, OLD.algorithm, OLD.sign_count,
                OLD.name, OLD.time, OLD.entry_index))
    THEN
        RAISE EXCEPTION 'no entry says that there is such a passkey' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER passkeys_are_registered AFTER INSERT OR UPDATE ON passkeys FOR EACH ROW EXECUTE FUNCTION passkey_is_registered();
CREATE TRIGGER passkeys_are_kept BEFORE DELETE OR TRUNCATE ON passkeys FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- may_register and may_unregister tell whether a person can have a passkey more, or has one to remove. The caller holds the
-- ledger's lock; they are volatile, so they see what was committed before that.
-- +goose StatementBegin
CREATE FUNCTION may_register(of text, named text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM passkeys AS k WHERE k.credential = named)
        AND 10 > (SELECT count(*) FROM passkeys AS k WHERE k.person = of AND k.removed_index IS NULL);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION may_register FROM PUBLIC;
-- +goose StatementBegin
CREATE FUNCTION may_unregister(of text, which uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM passkeys AS k WHERE k.id = which AND k.person = of AND k.removed_index IS NULL);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION may_unregister FROM PUBLIC;

-- What a passkey has signed for a vote, as JSON, and which one it was. Nobody signs a no.
ALTER TABLE votes
    ADD COLUMN credential text COLLATE "C",
    ADD COLUMN assertion  text,
    ADD CONSTRAINT votes_assertion CHECK (num_nulls(credential, assertion) IN (0, 2) AND (verdict <> 'deny' OR assertion IS NULL)
        AND CASE WHEN assertion IS NULL THEN true
            ELSE octet_length(assertion) <= 32768 AND coalesce(assertion::jsonb ->> 'id' = credential, false) END);

-- A yes is signed where people were shown that it has to be, and it is signed as its entry says, or as the vote that is
-- remembered.
-- +goose StatementBegin
CREATE FUNCTION vote_is_signed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said jsonb;
BEGIN
    IF NEW.verdict <> 'deny' AND NEW.assertion IS NULL AND EXISTS (
        SELECT FROM issuances AS i WHERE i.id = NEW.request AND nullif(i.canonical, '')::jsonb ->> 'passkey' = 'required') THEN
        RAISE EXCEPTION 'a yes to request % has to be signed by a passkey', NEW.request USING ERRCODE = 'check_violation';
    END IF;
    SELECT convert_from(e.body, 'UTF8')::jsonb INTO said FROM entries AS e
        WHERE e.id = NEW.request AND e.index = NEW.entry_index AND e.kind IN ('approval.vote', 'approval.remembered');
    IF said ->> 'kind' = 'approval.remembered' AND NOT EXISTS (
            SELECT FROM votes AS v
            WHERE v.request = (said ->> 'of')::uuid AND v.voter = NEW.voter AND v.verdict = NEW.verdict
                AND (v.credential, v.assertion) IS NOT DISTINCT FROM (NEW.credential, NEW.assertion))
        OR said ->> 'kind' = 'approval.vote'
            AND (said ->> 'credential', said ->> 'assertion') IS DISTINCT FROM (NEW.credential, NEW.assertion) THEN
        RAISE EXCEPTION 'no entry says that a vote on request % is signed so', NEW.request USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER votes_are_signed AFTER INSERT ON votes FOR EACH ROW EXECUTE FUNCTION vote_is_signed();

-- signed tells whether a vote counts for a text that people were shown: where it has to be signed, the voter had the passkey
-- before, and has it still. Whether the signature is one only the broker can tell.
-- +goose StatementBegin
CREATE FUNCTION signed(shown text, v votes) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT nullif(shown, '')::jsonb ->> 'passkey' IS DISTINCT FROM 'required' OR EXISTS (
        SELECT FROM passkeys AS k
        WHERE k.person = v.voter AND k.credential = v.credential AND k.removed_index IS NULL AND k.entry_index < v.entry_index)
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION signed FROM PUBLIC;

-- As it was, of votes that are signed where they have to be.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approved_by(asked uuid) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN i.approval_quorum <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'approve' AND i.approval_group = ANY (p.groups) AND signed(i.canonical, v)) THEN 'approved'
        WHEN 2 <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'break_glass' AND i.break_glass = ANY (p.groups) AND signed(i.canonical, v)) THEN 'break_glass'
        END
    FROM issuances AS i WHERE i.id = asked
$$;
-- +goose StatementEnd

GRANT SELECT, INSERT, UPDATE (removed_at, removed_index) ON passkeys TO brevet_broker;
GRANT EXECUTE ON FUNCTION may_register, may_unregister, signed TO brevet_broker;
GRANT SELECT ON passkeys TO brevet_auditor;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['passkey_is_registered', 'may_register', 'may_unregister', 'vote_is_signed', 'signed', 'approved_by'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;
-- This fails once there are passkeys: what was said about them is for good.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used', 'issuance.reported',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected', 'ledger.pruned'));
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approved_by(asked uuid) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN i.approval_quorum <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'approve' AND i.approval_group = ANY (p.groups)) THEN 'approved'
        WHEN 2 <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'break_glass' AND i.break_glass = ANY (p.groups)) THEN 'break_glass'
        END
    FROM issuances AS i WHERE i.id = asked
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.approved_by SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
DROP FUNCTION signed;
DROP TRIGGER votes_are_signed ON votes;
DROP FUNCTION vote_is_signed;
ALTER TABLE votes
    DROP CONSTRAINT votes_assertion,
    DROP COLUMN assertion,
    DROP COLUMN credential;
DROP FUNCTION may_unregister;
DROP FUNCTION may_register;
DROP TABLE passkeys;
DROP FUNCTION passkey_is_registered;
