-- +goose Up
-- +goose StatementBegin

-- People, their passkeys and votes, what an approval takes, and the webhooks that report it.

-- The people who have voted or registered a passkey, and their groups, as the identity provider last reported them. An older report never
-- replaces a newer one.
CREATE TABLE people (
    id          text COLLATE "C" PRIMARY KEY CHECK (id <> ''),
    name        text NOT NULL,
    handle      text NOT NULL,
    groups      text[] NOT NULL,
    said_at     timestamptz NOT NULL,
    entry       uuid NOT NULL,
    entry_index bigint NOT NULL
);
CREATE TRIGGER people_only_later BEFORE UPDATE ON people FOR EACH ROW
    WHEN (NEW.said_at < OLD.said_at OR NEW.id <> OLD.id) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER people_are_kept BEFORE DELETE OR TRUNCATE ON people
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- Passkeys. credential and public_key are base64url, and digest is the SHA-256 of the key in hexadecimal. A credential and a key belong to
-- one person for good, even after removal: otherwise somebody could register another person's key and present that person's signature
-- as their own.
CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    person        text COLLATE "C" NOT NULL REFERENCES people (id),
    credential    text COLLATE "C" NOT NULL UNIQUE CHECK (credential ~ '^[A-Za-z0-9_-]+$' AND length(credential) <= 1364),
    public_key    text COLLATE "C" NOT NULL CHECK (public_key ~ '^[A-Za-z0-9_-]+$' AND length(public_key) <= 2736),
    digest        text COLLATE "C" NOT NULL CONSTRAINT passkeys_once UNIQUE,
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
CREATE TRIGGER passkeys_are_kept BEFORE DELETE OR TRUNCATE ON passkeys FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- A row repeats the entry of its registration and the entry of its removal by the same person. After the removal it does not change. A
-- person has at most ten passkeys.
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
CREATE TRIGGER passkeys_are_registered AFTER INSERT OR UPDATE ON passkeys FOR EACH ROW EXECUTE FUNCTION passkey_is_registered();

-- may_register and may_unregister report whether a person may add a passkey and has one to remove; key is the digest of its public key. The
-- caller holds the ledger's lock. The functions are volatile, so they see what was committed before that.
CREATE FUNCTION may_register(of text, named text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM passkeys AS k WHERE k.credential = named)
        AND 10 > (SELECT count(*) FROM passkeys AS k WHERE k.person = of AND k.removed_index IS NULL);
END $$;
CREATE FUNCTION may_register(of text, named text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN may_register(of, named) AND NOT EXISTS (SELECT FROM passkeys AS k WHERE k.digest = key);
END $$;
CREATE FUNCTION may_unregister(of text, which uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM passkeys AS k WHERE k.id = which AND k.person = of AND k.removed_index IS NULL);
END $$;

-- Votes on requests. A person approves at most once, in one way, and denies at most once. Break-glass covers one request and needs a note.
-- assertion is the passkey's signature as JSON, and credential names the passkey. A denial is never signed.
CREATE TABLE votes (
    request     uuid NOT NULL REFERENCES issuances (id),
    voter       text COLLATE "C" NOT NULL REFERENCES people (id),
    verdict     text NOT NULL CHECK (verdict IN ('approve', 'deny', 'break_glass')),
    covers      text NOT NULL CHECK (covers IN ('request', 'task')),
    time        timestamptz NOT NULL,
    note        text NOT NULL,
    entry_index bigint NOT NULL,
    credential  text COLLATE "C",
    assertion   text,
    PRIMARY KEY (request, voter, verdict),
    CONSTRAINT votes_break_glass CHECK (verdict <> 'break_glass' OR covers = 'request' AND note ~ '\S'),
    CONSTRAINT votes_assertion CHECK (num_nulls(credential, assertion) IN (0, 2) AND (verdict <> 'deny' OR assertion IS NULL)
        AND CASE WHEN assertion IS NULL THEN true
            ELSE octet_length(assertion) <= 32768 AND coalesce(assertion::jsonb ->> 'id' = credential, false) END)
);
CREATE UNIQUE INDEX votes_one_yes ON votes (request, voter) WHERE verdict <> 'deny';
-- Denials are rare. The sweeper finds by time what they take back.
CREATE INDEX votes_no ON votes (time) WHERE verdict = 'deny';
CREATE TRIGGER votes_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON votes FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();

-- A row of people or votes repeats its entry. Whoever writes to these tables by hand has to append entries too, which auditors see.
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
CREATE TRIGGER people_entry_says_so AFTER INSERT OR UPDATE ON people
    FOR EACH ROW EXECUTE FUNCTION entry_says_so();
CREATE TRIGGER votes_entry_says_so AFTER INSERT ON votes
    FOR EACH ROW EXECUTE FUNCTION entry_says_so();

-- Nobody votes on a request that is made on their own behalf.
CREATE FUNCTION not_ones_own() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM issuances AS i WHERE i.id = NEW.request AND i.on_behalf_of = NEW.voter) THEN
        RAISE EXCEPTION 'request % is asked on behalf of its voter', NEW.request USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER votes_not_ones_own AFTER INSERT ON votes FOR EACH ROW EXECUTE FUNCTION not_ones_own();

-- An approval is signed if the text that people saw requires it. The signature is the one in the vote's entry, or that of the vote which
-- is reused.
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
CREATE TRIGGER votes_are_signed AFTER INSERT ON votes FOR EACH ROW EXECUTE FUNCTION vote_is_signed();

-- signed reports whether a vote counts: if the text requires a signature, the voter had the passkey before the vote, and still has it. Only
-- the broker can verify the signature itself.
CREATE FUNCTION signed(shown text, v votes) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT nullif(shown, '')::jsonb ->> 'passkey' IS DISTINCT FROM 'required' OR EXISTS (
        SELECT FROM passkeys AS k
        WHERE k.person = v.voter AND k.credential = v.credential AND k.removed_index IS NULL AND k.entry_index < v.entry_index)
$$;

-- approved_by returns what approves a request now, as the decision code of the issuance that redeems it: a quorum of its group, or else two
-- people of the break-glass group. The two kinds of votes are not added up. Only voters who are still in the group count.
CREATE FUNCTION approved_by(asked uuid) RETURNS text LANGUAGE sql VOLATILE AS $$
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

-- enough reports whether a request is approved, by either kind of votes.
CREATE FUNCTION enough(asked uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT approved_by(asked) IS NOT NULL
$$;

-- likeness is what people are shown of a request, without what is of that request alone and without the granted TTL, which the end of an
-- SVID can shorten.
CREATE FUNCTION likeness(shown text) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN nullif(shown, '')::jsonb - '{request,digest,expires,ttl}'::text[];

-- is_request reports whether a request equals another one of this likeness. A request with an idempotency key equals none.
CREATE FUNCTION is_request(i issuances, wanted jsonb, asked_ttl bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN i.idempotency_key IS NULL AND i.ttl_asked = asked_ttl AND i.scope = wanted ->> 'scope' AND likeness(i.canonical) = wanted;

-- crowded reports whether as many requests of a sandbox wait for people as may, so that it cannot wear them out. besides is their number in
-- the same batch.
CREATE FUNCTION crowded(subject text, besides bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN besides + (SELECT count(*) FROM issuances AS i
        WHERE i.spiffe_id = subject AND i.status = 'pending' AND i.expires_at > clock_timestamp() AND NOT outdated(i.entry_index)) >= 20;
END $$;

-- equal_request returns the oldest request of a sandbox that equals another one and is still open: pending, or to be redeemed. Requests that
-- must not lead to a credential now are not open.
CREATE FUNCTION equal_request(subject text, shown text, asked_ttl bigint, besides uuid[]) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    wanted jsonb := likeness(shown);
BEGIN
    RETURN (
        SELECT i.id FROM issuances AS i
        WHERE i.spiffe_id = subject AND i.decision = 'pending' AND i.expires_at + interval '1 minute' > clock_timestamp()
            AND i.status IN ('pending', 'approved', 'redeemed') AND i.id <> ALL (besides)
            AND is_request(i, wanted, asked_ttl)
            AND NOT EXISTS (
                SELECT FROM task_ends AS e
                WHERE e.spiffe_id = i.spiffe_id AND e.task = i.task AND (e.ended OR e.ends_at <= clock_timestamp()))
            AND NOT EXISTS (
                SELECT FROM quarantines AS q
                WHERE i.spiffe_id = q.spiffe_id OR starts_with(i.spiffe_id, q.spiffe_id || '/'))
            AND CASE i.status WHEN 'pending' THEN i.expires_at > clock_timestamp() AND NOT outdated(i.entry_index)
                ELSE redeemable(i.id, subject, approved_by(i.id)) END
        ORDER BY i.status = 'pending', i.entry_index
        LIMIT 1);
END $$;

-- redeemable reports whether a sandbox may redeem an approval now: on the kind of votes that the code names, by the catalogue that people saw,
-- at most a minute after the request has expired, and a second time only if the first credential is dead and was not delivered, as far as Vault and the connection
-- tell. The caller holds the ledger's lock. The function is volatile, so it sees what was committed before that.
CREATE FUNCTION redeemable(asked uuid, subject text, code text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce(approved_by(asked) = code, false) AND EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked
            AND NOT EXISTS (SELECT FROM votes AS v WHERE v.request IN (i.id, i.remembered) AND v.verdict = 'deny')
            AND i.spiffe_id = subject
            AND i.expires_at + interval '1 minute' > clock_timestamp()
            AND NOT outdated(i.entry_index)
            AND (i.status = 'approved' OR i.status = 'redeemed' AND i.redemptions < 2 AND EXISTS (
                SELECT FROM issuances AS p
                WHERE p.id = i.redeemed_by AND (p.status IN ('failed', 'compensated')
                    OR p.leased AND p.status = 'revoked' AND p.status_detail = 'undelivered'))));
END $$;

-- One approval is good for one live credential, whatever else goes wrong.
CREATE UNIQUE INDEX issuances_one_per_approval ON issuances (approves)
    WHERE approves IS NOT NULL AND status NOT IN ('failed', 'compensated')
        AND NOT (leased AND status = 'revoked' AND status_detail = 'undelivered');
CREATE INDEX issuances_approves ON issuances (approves) WHERE approves IS NOT NULL;
CREATE INDEX issuances_remembered ON issuances (remembered) WHERE remembered IS NOT NULL;

-- What waits for people. A request that has expired keeps its status for good: expires_at in each index skips those.
CREATE INDEX issuances_waiting ON issuances (approval_group, expires_at) WHERE status = 'pending';
CREATE INDEX issuances_waiting_break_glass ON issuances (break_glass, expires_at)
    WHERE status = 'pending' AND break_glass IS NOT NULL;
CREATE INDEX issuances_waiting_of_sandbox ON issuances (spiffe_id, expires_at) WHERE status = 'pending';
CREATE INDEX issuances_asked ON issuances (spiffe_id, expires_at) WHERE decision = 'pending';
CREATE INDEX issuances_undecided ON issuances (expires_at) WHERE status IN ('pending', 'approved');

-- A request moves to approved or redeemed only if the votes suffice, and counts exactly the votes that exist. Votes are reused only for the
-- same request of the same sandbox, key and person, within eight hours. The trigger runs after the statement, so it sees votes that come
-- with the move.
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
                WHERE r.id = NEW.remembered AND r.status IN ('approved', 'redeemed') AND r.remembered IS NULL AND NOT outdated(r.entry_index)
                    AND (r.spiffe_id, r.context, r.scope, r.params, r.resource, r.catalogue, r.approval_group, r.approval_quorum)
                        = (NEW.spiffe_id, NEW.context, NEW.scope, NEW.params, NEW.resource, NEW.catalogue, NEW.approval_group,
                            NEW.approval_quorum)
                    AND NEW.ttl <= r.ttl AND NEW.time < r.time + interval '8 hours'
                    AND r.jkt IS NOT DISTINCT FROM NEW.jkt AND r.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of
                    AND r.canonical::jsonb ->> 'thumbprint' IS NOT DISTINCT FROM NEW.canonical::jsonb ->> 'thumbprint'))
    THEN
        RAISE EXCEPTION 'nobody who may has made request % %', NEW.id, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER issuances_people_said_so AFTER UPDATE ON issuances FOR EACH ROW
    WHEN (NEW.decision = 'pending') EXECUTE FUNCTION people_said_so();

-- What is issued on an approval is what people approved, and no more.
CREATE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.context, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.context, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND i.jkt IS NOT DISTINCT FROM NEW.jkt AND i.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of
            AND i.on_behalf_groups IS NOT DISTINCT FROM NEW.on_behalf_groups
            AND NEW.ttl <= i.ttl AND NEW.decision_code = approved_by(i.id)) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER issuances_approval_is_used AFTER INSERT ON issuances FOR EACH ROW
    WHEN (NEW.approves IS NOT NULL) EXECUTE FUNCTION approval_is_used();

-- The outbox. next is the entry from which each webhook reads on, and holder is the replica that delivers.
CREATE TABLE webhooks (
    name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    next       bigint NOT NULL CHECK (next >= 0),
    holder     uuid,
    held_until timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE TRIGGER webhooks_only_forward BEFORE UPDATE ON webhooks FOR EACH ROW
    WHEN (NEW.next < OLD.next OR NEW.name <> OLD.name) EXECUTE FUNCTION forbid_change();

-- Events to deliver: the entry that caused each, and when to try. The content is read from the entry and its record. A row is deleted when
-- the receiver has accepted it.
CREATE TABLE webhook_notices (
    webhook     text COLLATE "C" NOT NULL REFERENCES webhooks (name),
    entry_index bigint NOT NULL,
    kind        text COLLATE "C" NOT NULL
                    CHECK (kind IN ('approval.waiting', 'approval.decided', 'approval.break_glass', 'credential.unrevoked')),
    due         timestamptz NOT NULL,
    attempts    integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    PRIMARY KEY (webhook, entry_index, kind)
);
CREATE INDEX webhook_notices_due ON webhook_notices (webhook, due);
CREATE TRIGGER webhook_notices_have_entries AFTER INSERT ON webhook_notices FOR EACH ROW EXECUTE FUNCTION has_entry();

-- +goose StatementEnd

-- +goose Down
-- Entries are permanent: this fails once there is one about a vote, a person or a passkey.
ALTER TABLE entries ADD CONSTRAINT entries_of_people CHECK (
    kind NOT LIKE 'approval.%' AND kind NOT LIKE 'person.%' AND kind NOT LIKE 'passkey.%');
ALTER TABLE entries DROP CONSTRAINT entries_of_people;
DROP TABLE webhook_notices;
DROP TABLE webhooks;
DROP TRIGGER issuances_approval_is_used ON issuances;
DROP TRIGGER issuances_people_said_so ON issuances;
DROP INDEX issuances_undecided, issuances_asked, issuances_waiting_of_sandbox, issuances_waiting_break_glass, issuances_waiting, issuances_remembered,
    issuances_approves, issuances_one_per_approval;
DROP FUNCTION approval_is_used, people_said_so, equal_request, redeemable, crowded, is_request, likeness, enough, approved_by, signed;
DROP TABLE votes;
DROP FUNCTION vote_is_signed, not_ones_own, may_unregister, may_register(text, text, text), may_register(text, text);
DROP TABLE passkeys;
DROP FUNCTION passkey_is_registered;
DROP TABLE people;
DROP FUNCTION entry_says_so;
