-- +goose Up

-- Entries of what people do: a vote and a withdrawal move a request that began before; who somebody is, as their
-- provider last said.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'approval.vote', 'approval.remembered',
    'approval.withdrawn');

-- Who has voted, and in which groups they are, as the provider said at some time. What is older never replaces what is
-- newer.
CREATE TABLE people (
    id          text COLLATE "C" PRIMARY KEY CHECK (id <> ''),
    name        text NOT NULL,
    handle      text NOT NULL,
    groups      text[] NOT NULL,
    said_at     timestamptz NOT NULL,
    entry       uuid NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT people_entry FOREIGN KEY (entry, entry_index) REFERENCES entries (id, index)
);
CREATE TRIGGER people_only_later BEFORE UPDATE ON people FOR EACH ROW
    WHEN (NEW.said_at < OLD.said_at OR NEW.id <> OLD.id) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER people_are_kept BEFORE DELETE OR TRUNCATE ON people
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- What people are shown and vote on (canonical), how many votes there are, and what came of it: the request is
-- redeemed by an issuance of its own, which approves names back. Where people let their yes stand for the task, remembered
-- names the request that they said it to.
ALTER TABLE issuances
    ADD COLUMN canonical   text,
    ADD COLUMN votes       integer NOT NULL DEFAULT 0,
    ADD COLUMN redemptions integer NOT NULL DEFAULT 0,
    ADD COLUMN redeemed_by uuid,
    ADD COLUMN approves    uuid REFERENCES issuances (id),
    ADD COLUMN remembered  uuid REFERENCES issuances (id),
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK (CASE decision
        WHEN 'deny' THEN status = 'denied'
        WHEN 'pending' THEN status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed')
        WHEN 'allow' THEN status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
            'released', 'expired')
        ELSE false END),
    -- An approval is used once, and once more when what it was used for never reached anybody.
    ADD CONSTRAINT issuances_votes CHECK (CASE decision
        WHEN 'pending' THEN votes >= 0 AND redemptions BETWEEN 0 AND 2 AND approves IS NULL
            AND (status = 'redeemed') = (redemptions > 0) AND (redemptions > 0) = (redeemed_by IS NOT NULL)
            AND (status NOT IN ('approved', 'redeemed') OR canonical IS NOT NULL AND votes >= approval_quorum)
        ELSE num_nonnulls(canonical, redeemed_by, remembered) = 0 AND votes = 0 AND redemptions = 0
            AND (approves IS NOT NULL) = (decision = 'allow' AND decision_code = 'approved') END);

-- One approval is good for one credential, whatever else goes wrong.
CREATE UNIQUE INDEX issuances_one_per_approval ON issuances (approves)
    WHERE approves IS NOT NULL AND status NOT IN ('failed', 'compensated')
        AND NOT (leased AND status = 'revoked' AND status_detail = 'undelivered');
-- What waits for people, oldest first.
CREATE INDEX issuances_waiting ON issuances (approval_group, entry_index) WHERE status IN ('pending', 'approved');

CREATE INDEX issuances_waiting_of_sandbox ON issuances (spiffe_id, expires_at) WHERE status = 'pending';

-- A person says yes once and no once; the no ends it.
CREATE TABLE votes (
    request     uuid NOT NULL REFERENCES issuances (id),
    voter       text COLLATE "C" NOT NULL REFERENCES people (id),
    verdict     text NOT NULL CHECK (verdict IN ('approve', 'deny')),
    covers      text NOT NULL CHECK (covers IN ('request', 'task')),
    time        timestamptz NOT NULL,
    note        text NOT NULL,
    entry_index bigint NOT NULL,
    PRIMARY KEY (request, voter, verdict),
    CONSTRAINT votes_entry FOREIGN KEY (request, entry_index) REFERENCES entries (id, index)
);
CREATE TRIGGER votes_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON votes
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- may_move is the state machine, of what is issued as before, and of what waits for people.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'pending' THEN becomes IN ('pending', 'approved', 'rejected', 'withdrawn')
        WHEN 'approved' THEN becomes IN ('redeemed', 'rejected', 'withdrawn')
        WHEN 'redeemed' THEN becomes = 'redeemed'
        WHEN 'intent' THEN becomes IN ('issued', 'failed', 'unknown', 'compensated', 'revoking')
        WHEN 'unknown' THEN becomes = 'compensated'
        WHEN 'issued' THEN CASE becomes
            WHEN 'failed' THEN kind = 'jwt'
            WHEN 'revoking' THEN leased
            WHEN 'expired' THEN leased
            WHEN 'revoked' THEN NOT leased AND NOT static
            WHEN 'released' THEN NOT leased AND NOT static
            ELSE false END
        WHEN 'revoking' THEN becomes IN ('revoked', 'released')
        ELSE false END
$$;
-- +goose StatementEnd

-- enough tells whether as many people as a request needs say yes to it and are still in the group that it waits for.
-- +goose StatementBegin
CREATE FUNCTION enough(asked uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((
        SELECT i.approval_quorum <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'approve' AND i.approval_group = ANY (p.groups))
        FROM issuances AS i WHERE i.id = asked), false)
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION enough FROM PUBLIC;

-- crowded tells whether as many requests of a sandbox wait for people as may, besides those that begin with it: they are
-- not to be worn out.
-- +goose StatementBegin
CREATE FUNCTION crowded(subject text, besides bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN besides + (SELECT count(*) FROM issuances AS i
        WHERE i.spiffe_id = subject AND i.status = 'pending' AND i.expires_at > clock_timestamp()) >= 20;
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION crowded FROM PUBLIC;

-- redeemable tells whether a sandbox may have what was approved now: within a minute of the end of the wait, and not
-- again unless what it got before is dead and never reached it, for all that Vault and the connection tell. The caller holds the ledger's lock; it is volatile, so it sees what
-- was committed before that.
-- +goose StatementBegin
CREATE FUNCTION redeemable(asked uuid, subject text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN enough(asked) AND EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked
            AND NOT EXISTS (SELECT FROM votes AS v WHERE v.request IN (i.id, i.remembered) AND v.verdict = 'deny')
            AND i.spiffe_id = subject
            AND i.expires_at + interval '1 minute' > clock_timestamp()
            AND (i.status = 'approved' OR i.status = 'redeemed' AND i.redemptions < 2 AND EXISTS (
                SELECT FROM issuances AS p
                WHERE p.id = i.redeemed_by AND (p.status IN ('failed', 'compensated')
                    OR p.leased AND p.status = 'revoked' AND p.status_detail = 'undelivered'))));
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION redeemable FROM PUBLIC;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept issuances%ROWTYPE := OLD;
BEGIN
    IF NOT may_move(OLD.status, NEW.status, OLD.credential_kind, OLD.leased, OLD.static)
        OR NEW.status = 'pending' AND NEW.votes = OLD.votes THEN
        RAISE EXCEPTION 'a request does not move from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    kept.status := NEW.status;
    kept.status_time := NEW.status_time;
    kept.actor := NEW.actor;
    IF OLD.decision = 'pending' THEN
        kept.votes := OLD.votes + (NEW.votes > OLD.votes)::integer;
        IF NEW.status = 'redeemed' AND NEW.votes = OLD.votes THEN
            kept.redemptions := OLD.redemptions + 1;
            kept.redeemed_by := NEW.redeemed_by;
        ELSIF OLD.status = 'pending' AND OLD.votes = 0 AND NEW.status = 'approved' AND NEW.remembered IS NOT NULL THEN
            kept.votes := NEW.votes;
            kept.remembered := NEW.remembered;
        END IF;
    ELSE
        kept.status_detail := NEW.status_detail;
        kept.vault_accessor := coalesce(OLD.vault_accessor, NEW.vault_accessor);
        kept.vault_lease := coalesce(OLD.vault_lease, NEW.vault_lease);
        kept.credential_name := coalesce(OLD.credential_name, NEW.credential_name);
        kept.secret_digest := coalesce(OLD.secret_digest, NEW.secret_digest);
        IF NEW.status IN ('failed', 'unknown', 'compensated') THEN
            kept.idempotency_key := NULL;
        END IF;
    END IF;
    IF kept IS DISTINCT FROM NEW THEN
        RAISE EXCEPTION 'what was recorded about a request does not change' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- A request is approved, and redeemed, by people who are entitled to it and by nothing else; one vote is counted for each
-- that there is; and what is remembered was said, for the task, to the same ask of the same sandbox. The trigger looks when
-- the statement is done, so it sees the votes that come with the move.
-- +goose StatementBegin
CREATE FUNCTION people_said_so() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER issuances_people_said_so AFTER UPDATE ON issuances FOR EACH ROW
    WHEN (NEW.decision = 'pending') EXECUTE FUNCTION people_said_so();

-- What is issued as approved is what a request was redeemed by.
-- +goose StatementBegin
CREATE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.task, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.task, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND NEW.ttl <= i.ttl) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER issuances_approval_is_used AFTER INSERT ON issuances FOR EACH ROW
    WHEN (NEW.approves IS NOT NULL) EXECUTE FUNCTION approval_is_used();

-- What people said, and who they are, stands in the entry that it is taken from: whoever writes these tables by hand has
-- to append entries for it, which is seen.
-- +goose StatementBegin
CREATE FUNCTION entry_says_so() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said jsonb;
BEGIN
    IF TG_TABLE_NAME = 'people' THEN
        SELECT convert_from(e.body, 'UTF8')::jsonb INTO said FROM entries AS e
            WHERE e.id = NEW.entry AND e.index = NEW.entry_index AND e.kind = 'person.seen';
        IF said #>> '{person,id}' = NEW.id AND said #>> '{person,handle}' = NEW.handle
            AND said #> '{person,groups}' = to_jsonb(NEW.groups) THEN
            RETURN NULL;
        END IF;
    ELSE
        SELECT convert_from(e.body, 'UTF8')::jsonb INTO said FROM entries AS e
            WHERE e.id = NEW.request AND e.index = NEW.entry_index AND e.kind IN ('approval.vote', 'approval.remembered');
        IF said ->> 'kind' = 'approval.remembered'
            OR said #>> '{actor,id}' = NEW.voter AND said ->> 'verdict' = NEW.verdict AND said ->> 'covers' = NEW.covers THEN
            RETURN NULL;
        END IF;
    END IF;
    RAISE EXCEPTION 'no entry says what this row of % does', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER people_entry_says_so AFTER INSERT OR UPDATE ON people
    FOR EACH ROW EXECUTE FUNCTION entry_says_so();
CREATE TRIGGER votes_entry_says_so AFTER INSERT ON votes
    FOR EACH ROW EXECUTE FUNCTION entry_says_so();

DROP TRIGGER issuances_begin ON issuances;
CREATE TRIGGER issuances_begin BEFORE INSERT ON issuances FOR EACH ROW WHEN (
    NEW.status IS DISTINCT FROM CASE
        WHEN NEW.decision = 'deny' THEN 'denied'
        WHEN NEW.decision = 'pending' THEN 'pending'
        WHEN NEW.credential_kind = 'jwt' THEN 'issued'
        ELSE 'intent' END
    OR num_nonnulls(NEW.status_detail, NEW.actor, NEW.redeemed_by, NEW.remembered) > 0 OR NEW.votes + NEW.redemptions > 0
) EXECUTE FUNCTION refuse_beginning();

GRANT UPDATE (votes, redemptions, redeemed_by, remembered) ON issuances TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (name, handle, groups, said_at, entry, entry_index) ON people TO brevet_broker;
GRANT SELECT, INSERT ON votes TO brevet_broker;
GRANT EXECUTE ON FUNCTION crowded, enough, redeemable TO brevet_broker;
GRANT SELECT ON people, votes TO brevet_auditor;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['only_forward', 'may_move', 'crowded', 'enough', 'redeemable', 'people_said_so', 'approval_is_used',
        'entry_says_so'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once there are entries or records of what it takes back: they are for good.
DROP TRIGGER issuances_begin ON issuances;
CREATE TRIGGER issuances_begin BEFORE INSERT ON issuances FOR EACH ROW WHEN (
    NEW.status IS DISTINCT FROM CASE
        WHEN NEW.decision = 'deny' THEN 'denied'
        WHEN NEW.decision = 'pending' THEN 'pending'
        WHEN NEW.credential_kind = 'jwt' THEN 'issued'
        ELSE 'intent' END
    OR num_nonnulls(NEW.status_detail, NEW.actor) > 0
) EXECUTE FUNCTION refuse_beginning();
DROP TRIGGER issuances_approval_is_used ON issuances;
DROP TRIGGER issuances_people_said_so ON issuances;
DROP FUNCTION approval_is_used;
DROP FUNCTION people_said_so;
DROP FUNCTION redeemable;
DROP FUNCTION crowded;
DROP FUNCTION enough;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept issuances%ROWTYPE := OLD;
BEGIN
    IF NOT may_move(OLD.status, NEW.status, OLD.credential_kind, OLD.leased, OLD.static) THEN
        RAISE EXCEPTION 'a request does not move from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    kept.status := NEW.status;
    kept.status_detail := NEW.status_detail;
    kept.status_time := NEW.status_time;
    kept.actor := NEW.actor;
    kept.vault_accessor := coalesce(OLD.vault_accessor, NEW.vault_accessor);
    kept.vault_lease := coalesce(OLD.vault_lease, NEW.vault_lease);
    kept.credential_name := coalesce(OLD.credential_name, NEW.credential_name);
    kept.secret_digest := coalesce(OLD.secret_digest, NEW.secret_digest);
    IF NEW.status IN ('failed', 'unknown', 'compensated') THEN
        kept.idempotency_key := NULL;
    END IF;
    IF kept IS DISTINCT FROM NEW THEN
        RAISE EXCEPTION 'what was recorded about a request does not change' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'intent' THEN becomes IN ('issued', 'failed', 'unknown', 'compensated', 'revoking')
        WHEN 'unknown' THEN becomes = 'compensated'
        WHEN 'issued' THEN CASE becomes
            WHEN 'failed' THEN kind = 'jwt'
            WHEN 'revoking' THEN leased
            WHEN 'expired' THEN leased
            WHEN 'revoked' THEN NOT leased AND NOT static
            WHEN 'released' THEN NOT leased AND NOT static
            ELSE false END
        WHEN 'revoking' THEN becomes IN ('revoked', 'released')
        ELSE false END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['only_forward', 'may_move'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd
DROP TABLE votes;
DROP INDEX issuances_waiting_of_sandbox;
DROP INDEX issuances_waiting;
DROP INDEX issuances_one_per_approval;
ALTER TABLE issuances
    DROP CONSTRAINT issuances_votes,
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK (CASE decision
        WHEN 'deny' THEN status = 'denied'
        WHEN 'pending' THEN status = 'pending'
        WHEN 'allow' THEN status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
            'released', 'expired')
        ELSE false END),
    DROP COLUMN remembered,
    DROP COLUMN approves,
    DROP COLUMN redeemed_by,
    DROP COLUMN redemptions,
    DROP COLUMN votes,
    DROP COLUMN canonical;
DROP TABLE people;
DROP FUNCTION entry_says_so;
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired');
