-- +goose Up
-- +goose StatementBegin

-- Requests and what becomes of them: their rules, the state machine, and what admits a request to the ledger.

-- The current state of each request. It can be rebuilt from the entries. Identifiers compare bytewise, so that a prefix is a range.
CREATE TABLE issuances (
    id              uuid PRIMARY KEY,
    entry_index     bigint NOT NULL, -- of the entry that begins the request
    time            timestamptz NOT NULL,
    -- who asks
    trust_domain    text COLLATE "C" NOT NULL,
    spiffe_id       text COLLATE "C" NOT NULL,
    svid_kind       text NOT NULL,
    thumbprint      text NOT NULL,
    -- for what
    task            text COLLATE "C" NOT NULL,
    scope           text COLLATE "C" NOT NULL,
    authority       text NOT NULL, -- empty if the scope is unknown
    resource        text NOT NULL,
    params          jsonb NOT NULL,
    reason          text NOT NULL,
    ttl_asked       bigint NOT NULL, -- seconds, 0 for the default
    ttl             bigint NOT NULL, -- seconds
    -- the decision
    decision        text COLLATE "C" NOT NULL,
    decision_code   text NOT NULL,
    explanation     text NOT NULL,
    policies        text[] NOT NULL,
    clamps          text[] NOT NULL,
    catalogue       text NOT NULL,
    -- the state
    status          text COLLATE "C" NOT NULL,
    status_detail   text,
    status_time     timestamptz NOT NULL,
    expires_at      timestamptz,
    approval_group  text,
    approval_quorum integer,
    -- the credential, as intended
    credential_kind text,
    audience        text,
    key_id          text,
    claims_digest   bytea,
    request_digest  bytea NOT NULL, -- a retry or a redemption has the same digest
    idempotency_key text,
    vault_path      text,
    -- the credential, as Vault has created it
    vault_accessor  text,
    vault_lease     text,
    credential_name text,
    secret_digest   bytea,
    actor           text, -- who ended it
    leased          boolean NOT NULL DEFAULT false, -- Vault can end it
    static          boolean NOT NULL DEFAULT false, -- nobody can end it
    -- the approval: canonical is the text that people see and vote on; redeemed_by and approves link a request with the issuance that
    -- redeems it; remembered is the earlier request whose votes are reused
    canonical       text,
    votes           integer NOT NULL DEFAULT 0,
    redemptions     integer NOT NULL DEFAULT 0,
    redeemed_by     uuid,
    approves        uuid REFERENCES issuances (id),
    remembered      uuid REFERENCES issuances (id),
    break_glass     text, -- the group that may approve in place of approval_group
    -- more about the credential
    jkt             text, -- RFC 7638 thumbprint of the key that the token is bound to
    one_shot        boolean NOT NULL DEFAULT false, -- the first successful check uses the token up
    parent          uuid REFERENCES issuances (id), -- the issuance that a token exchange derives this one from
    status_list     uuid, -- the token's position in a status list
    status_index    integer,
    -- the person on whose behalf the sandbox asks, and the groups that the identity provider reported then
    on_behalf_of     text COLLATE "C",
    on_behalf_groups text[],
    -- the request context as the entry has it: what the sandbox stated besides the action, by name, with the task
    context          jsonb NOT NULL
);

CREATE UNIQUE INDEX issuances_entry_index ON issuances (entry_index);
CREATE UNIQUE INDEX issuances_idempotency ON issuances (spiffe_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX issuances_status_list ON issuances (status_list, status_index) WHERE status_list IS NOT NULL;
CREATE INDEX issuances_by_parent ON issuances (parent) WHERE parent IS NOT NULL;
-- Tokens from a token exchange that have time left.
CREATE INDEX issuances_handed_down ON issuances (expires_at) WHERE parent IS NOT NULL AND status = 'issued';

-- Credentials that may be alive. In the first index, those that expire within the same hour are adjacent, ordered by sandbox: a few
-- range scans find what is below a path and has time left, however long the history is.
CREATE INDEX issuances_alive ON issuances (date_bin('1 hour', expires_at, '2000-01-01 00:00:00Z'), spiffe_id, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
CREATE INDEX issuances_alive_of_sandbox ON issuances (spiffe_id, scope, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
CREATE INDEX issuances_alive_of_trust_domain ON issuances (trust_domain, scope, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
-- What the sweeper has to finish.
CREATE INDEX issuances_unfinished ON issuances (status, expires_at)
    WHERE status IN ('intent', 'unknown', 'revoking') OR (status = 'issued' AND leased);

-- broken_rule returns the name of a rule that an issuance breaks, or NULL. It replaces CHECK constraints: PostgreSQL parses every CHECK
-- again for each statement, which took a fifth of a commit, but a function only once per session. The names of rules appear as
-- constraint names in errors. beginning says that the row is new.
CREATE FUNCTION broken_rule(i issuances, beginning boolean) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN i.trust_domain = '' OR i.task = '' OR i.scope = '' OR i.catalogue = '' OR i.decision_code = '' OR i.approval_group = ''
            OR i.audience = '' OR i.key_id = '' OR i.idempotency_key = '' OR i.status_detail = '' OR i.vault_path = ''
            OR i.vault_accessor = '' OR i.vault_lease = '' OR i.credential_name = '' OR i.actor = ''
        THEN 'issuances_texts'
    WHEN 32 <> octet_length(i.request_digest) OR 32 <> octet_length(i.claims_digest) OR 32 <> octet_length(i.secret_digest)
        THEN 'issuances_digests'
    WHEN NOT starts_with(i.spiffe_id, 'spiffe://' || i.trust_domain || '/') THEN 'issuances_trust_domain'
    WHEN i.svid_kind NOT IN ('x509-svid', 'jwt-svid') THEN 'issuances_svid_kind'
    WHEN (i.thumbprint <> '') <> (i.svid_kind = 'x509-svid') THEN 'issuances_thumbprint'
    WHEN jsonb_typeof(i.params) <> 'object' THEN 'issuances_params'
    WHEN i.context ->> 'task' IS DISTINCT FROM i.task OR length(i.context::text) > 4096
            OR jsonb_path_exists(i.context, '$.* ? (@.type() != "string")')
        THEN 'issuances_context'
    WHEN i.ttl_asked < 0 OR i.ttl < CASE i.decision WHEN 'deny' THEN 0 ELSE 1 END THEN 'issuances_ttl'
    WHEN NOT CASE i.decision WHEN 'deny' THEN i.expires_at IS NULL ELSE coalesce(i.expires_at > i.time, false) END
        THEN 'issuances_expiry'
    WHEN i.credential_kind NOT IN ('jwt', 'vault-token', 'database', 'pki', 'ssh', 'kv', 'vault', 'github', 'none')
        THEN 'issuances_credential_kind'
    -- The state.
    WHEN NOT CASE i.decision
        WHEN 'deny' THEN i.status = 'denied' AND NOT i.one_shot
        WHEN 'pending' THEN i.status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed') AND NOT i.one_shot
        WHEN 'allow' THEN (i.status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released',
                'expired') OR i.status = 'used' AND i.one_shot)
            AND (NOT i.one_shot OR i.credential_kind = 'jwt')
            AND (i.credential_kind <> 'none' OR i.status IN ('issued', 'revoked', 'released'))
        ELSE false END
        THEN 'issuances_state'
    WHEN beginning AND (
            i.status IS DISTINCT FROM CASE
                WHEN i.decision = 'deny' THEN 'denied'
                WHEN i.decision = 'pending' THEN 'pending'
                WHEN i.credential_kind IN ('jwt', 'none') THEN 'issued'
                ELSE 'intent' END
            OR num_nonnulls(i.status_detail, i.actor, i.redeemed_by, i.remembered) > 0 OR i.votes + i.redemptions > 0)
        THEN 'issuances_begin'
    WHEN (i.status_detail IS NOT NULL)
            <> (i.status IN ('failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released'))
        THEN 'issuances_detail'
    -- A request that came to nothing frees its idempotency key for a retry.
    WHEN i.status IN ('failed', 'unknown', 'compensated') AND i.idempotency_key IS NOT NULL THEN 'issuances_key_freed'
    -- The credential, as intended.
    WHEN NOT CASE
        WHEN i.decision <> 'allow' THEN num_nonnulls(i.credential_kind, i.audience, i.key_id, i.claims_digest, i.vault_path) = 0
            AND NOT i.leased AND NOT i.static
        WHEN i.credential_kind = 'jwt' THEN num_nulls(i.audience, i.key_id, i.claims_digest) = 0 AND i.vault_path IS NULL
            AND NOT i.leased AND NOT i.static
        -- A permit is the record itself: there is no credential.
        WHEN i.credential_kind = 'none' THEN num_nonnulls(i.audience, i.key_id, i.claims_digest, i.vault_path, i.jkt) = 0
            AND NOT i.leased AND NOT i.static
        ELSE i.credential_kind IS NOT NULL AND num_nonnulls(i.audience, i.key_id, i.claims_digest) = 0
            AND (i.vault_path IS NULL) = (i.credential_kind = 'vault-token') AND NOT (i.leased AND i.static) END
        THEN 'issuances_intent'
    -- The credential, as Vault has created it. A leased one can be found again, to be revoked. The digest of a static secret is not
    -- stored: somebody could guess the secret from it.
    WHEN NOT CASE
        WHEN i.decision <> 'allow' OR i.credential_kind IN ('jwt', 'none') OR i.status = 'intent'
            THEN num_nonnulls(i.vault_accessor, i.vault_lease, i.credential_name, i.secret_digest) = 0
        ELSE (NOT i.leased OR i.status <> 'issued' OR num_nonnulls(i.vault_accessor, i.vault_lease) > 0)
            AND (NOT i.static OR i.secret_digest IS NULL) END
        THEN 'issuances_minted'
    WHEN NOT CASE
        WHEN i.status_list IS NULL THEN i.status_index IS NULL
        ELSE (i.credential_kind = 'jwt' AND i.status_index BETWEEN 0 AND 8191) IS TRUE END
        THEN 'issuances_status_list'
    WHEN NOT CASE
        WHEN i.parent IS NULL THEN true
        WHEN i.decision = 'allow' THEN i.credential_kind = 'jwt' AND i.approves IS NULL AND i.parent <> i.id
        ELSE i.decision = 'deny' END
        THEN 'issuances_parent'
    -- The approval. The break-glass group is the one that people see, and never the group that was asked.
    WHEN i.approval_quorum < 1
        OR num_nulls(i.approval_group, i.approval_quorum) <> CASE i.decision WHEN 'pending' THEN 0 ELSE 2 END
        OR i.break_glass IS NOT NULL AND NOT coalesce(
            i.break_glass = i.canonical::jsonb ->> 'break_glass' AND i.break_glass NOT IN ('', i.approval_group), false)
        THEN 'issuances_approval'
    -- An approval is redeemed once, and once more if the first credential reached nobody. A break-glass credential lives for half an hour
    -- at most.
    WHEN NOT CASE i.decision
        WHEN 'pending' THEN i.votes >= 0 AND i.redemptions BETWEEN 0 AND 2 AND i.approves IS NULL
            AND (i.status = 'redeemed') = (i.redemptions > 0) AND (i.redemptions > 0) = (i.redeemed_by IS NOT NULL)
            AND (i.status NOT IN ('approved', 'redeemed') OR i.canonical IS NOT NULL
                AND i.votes >= least(i.approval_quorum, CASE WHEN i.break_glass IS NOT NULL THEN 2 END))
        ELSE num_nonnulls(i.canonical, i.redeemed_by, i.remembered) = 0 AND i.votes = 0 AND i.redemptions = 0
            AND (i.approves IS NOT NULL) = (i.decision = 'allow' AND i.decision_code IN ('approved', 'break_glass'))
            AND (i.decision_code <> 'break_glass' OR i.ttl <= 1800 AND i.expires_at - i.time <= interval '30 minutes') END
        THEN 'issuances_votes'
    -- The key and the person it is bound to, which people see.
    WHEN i.jkt IS NOT NULL AND NOT (i.jkt ~ '^[A-Za-z0-9_-]{43}$'
            AND (i.canonical IS NULL OR coalesce(i.canonical::jsonb ->> 'jkt' = i.jkt, false)))
        THEN 'issuances_jkt'
    WHEN num_nulls(i.on_behalf_of, i.on_behalf_groups) = 1 OR i.on_behalf_of NOT LIKE '_%#_%'
        OR coalesce(i.canonical, '') <> '' AND i.canonical::jsonb ->> 'on_behalf_of' IS DISTINCT FROM i.on_behalf_of
        THEN 'issuances_on_behalf_of'
END;

-- The trigger runs row by row: in some versions a statement-level trigger does not see all rows that a MERGE inserts. Its function is the
-- only one that names the schema, and has no search_path: setting one for each row takes longer than the rules. It names each column, so
-- that PostgreSQL reads columns directly and not as fields of a row. A migration that adds a column creates it again.
DO $do$
BEGIN
    EXECUTE format($sql$
        CREATE FUNCTION keep_rules() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            broken pg_catalog.text := %1$I.broken_rule(ROW(%2$s)::%1$I.issuances, TG_OP OPERATOR(pg_catalog.=) 'INSERT');
        BEGIN
            IF broken IS NOT NULL THEN
                RAISE EXCEPTION 'an issuance breaks the rule %%', broken
                    USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
            END IF;
            RETURN NEW;
        END $$
    $sql$, current_schema(), (
        SELECT string_agg(format('NEW.%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute AS a
        WHERE a.attrelid = 'issuances'::regclass AND a.attnum > 0));
END $do$;
CREATE TRIGGER issuances_keep_rules BEFORE INSERT OR UPDATE ON issuances FOR EACH ROW EXECUTE FUNCTION keep_rules();

-- may_move is the state machine. A JWT, an SSH certificate and a permit end by one move, because nobody but Brevet has to confirm it. What Vault
-- holds is revoking until Vault has confirmed that it ended. A static secret does not end here. Only one-shot tokens become used
-- (issuances_state). The body binds its names when it is created, so the function needs no search_path, which would keep PostgreSQL from
-- inlining it.
CREATE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE was
    WHEN 'pending' THEN becomes IN ('pending', 'approved', 'rejected', 'withdrawn')
    WHEN 'approved' THEN becomes IN ('redeemed', 'rejected', 'withdrawn')
    WHEN 'redeemed' THEN becomes = 'redeemed'
    WHEN 'intent' THEN becomes IN ('issued', 'failed', 'unknown', 'compensated', 'revoking')
    WHEN 'unknown' THEN becomes = 'compensated'
    WHEN 'issued' THEN CASE becomes
        WHEN 'failed' THEN kind = 'jwt'
        WHEN 'used' THEN kind = 'jwt'
        WHEN 'revoking' THEN leased
        WHEN 'expired' THEN leased
        WHEN 'revoked' THEN NOT leased AND NOT static
        WHEN 'released' THEN NOT leased AND NOT static
        ELSE false END
    WHEN 'revoking' THEN becomes IN ('revoked', 'released')
    ELSE false END;

-- A request changes only by a move, and a move changes only the columns that belong to it. What Vault reported stays once it is set.
CREATE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER issuances_only_forward BEFORE UPDATE ON issuances
    FOR EACH ROW EXECUTE FUNCTION only_forward();

CREATE TRIGGER issuances_are_kept BEFORE DELETE OR TRUNCATE ON issuances FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();

-- follow_entries holds the rules of what a statement inserts, and adds the row of each request that an entry begins. It takes the row from
-- the entry's body, so the two cannot disagree. Nothing else adds rows, so the broker has no right to, hence SECURITY DEFINER.
--
-- A statement inserts exactly the entries by which it has moved the head, so the index has no gaps and no entry is beyond the head. No
-- record begins twice, across partitions. Only the owner may record that entries were pruned. One trigger replaces CHECK constraints,
-- which PostgreSQL parses again for each statement. It relies on a complete transition table: CheckServer refuses the versions of
-- PostgreSQL where MERGE leaves rows out. The names of rules appear as constraint names in errors.
CREATE FUNCTION follow_entries() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    lowest    bigint;
    highest   bigint;
    added     bigint;
    beginning bigint;
    pruned    bigint;
    broken    text;
    begun     bigint;
BEGIN
    -- Rows of another table could run code of their types as the owner.
    IF TG_RELID <> 'entries'::regclass THEN
        RAISE EXCEPTION 'only entries are followed, not %', TG_RELID::regclass USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT min(a.index), max(a.index), count(*), count(*) FILTER (WHERE a.begins), count(*) FILTER (WHERE a.kind = 'ledger.pruned'),
        min(CASE
            WHEN a.kind NOT IN (
                    'request.denied', 'request.pending', 'issuance.intent', 'call.refused', 'calls.recorded', 'issuance.issued',
                    'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking', 'issuance.revoked',
                    'issuance.released', 'issuance.expired', 'issuance.used', 'issuance.reported', 'task.end', 'quarantine.add',
                    'quarantine.remove', 'credentials.revoke', 'approval.vote', 'approval.remembered', 'approval.withdrawn',
                    'person.seen', 'passkey.registered', 'passkey.removed', 'catalogue.proposed', 'catalogue.applied',
                    'catalogue.rejected', 'ledger.pruned')
                THEN 'entries_kind'
            WHEN octet_length(a.body) > 65536 THEN 'entries_size'
            WHEN a.leaf_hash <> sha256('\x00'::bytea || a.body) THEN 'entries_leaf_hash'
            WHEN NOT a.begins AND NOT convert_from(a.body, 'UTF8')::jsonb @> jsonb_build_object('kind', a.kind, 'id', a.id)
                THEN 'entries_agree' -- what begins is checked below, so that PostgreSQL parses a body only once
            END)
    INTO lowest, highest, added, beginning, pruned, broken
    FROM (SELECT *, kind IN ('request.denied', 'request.pending', 'issuance.intent') AS begins FROM added_entries) AS a;
    IF added = 0 THEN
        RETURN NULL;
    END IF;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'an entry breaks the rule %', broken
            USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    IF highest <> (SELECT size FROM ledger_head) - 1 OR lowest <> highest - added + 1
        OR lowest > 0 AND NOT EXISTS (SELECT FROM entries AS e WHERE e.index = lowest - 1) THEN
        RAISE EXCEPTION 'entries % to % do not end at the head', lowest, highest USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (
        SELECT FROM added_entries AS a
        WHERE (a.kind = 'issuance.intent' OR a.kind NOT LIKE 'issuance.%' AND a.kind NOT LIKE 'approval.%')
            AND EXISTS (
                SELECT FROM entries AS e
                WHERE e.id = a.id AND e.index < a.index
                    AND (e.kind = 'issuance.intent' OR e.kind NOT LIKE 'issuance.%' AND e.kind NOT LIKE 'approval.%'))) THEN
        RAISE EXCEPTION 'what has begun does not begin again' USING ERRCODE = 'unique_violation';
    END IF;
    -- In a function of the owner, only the session's user says who asks.
    IF pruned > 0 AND NOT pg_has_role(session_user, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RAISE EXCEPTION 'nobody but the owner drops entries' USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF beginning = 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO issuances (
        id, entry_index, time, trust_domain, spiffe_id, svid_kind, thumbprint, task, scope, authority, resource,
        params, reason, ttl_asked, ttl, decision, decision_code, explanation, policies, clamps, catalogue,
        status, status_time, expires_at, approval_group, approval_quorum, break_glass,
        credential_kind, audience, key_id, claims_digest, request_digest, idempotency_key,
        vault_path, leased, static, one_shot, canonical, approves, jkt, parent, status_list, status_index,
        on_behalf_of, on_behalf_groups, context)
    SELECT
        id, index, time, subject ->> 'trust_domain', subject ->> 'spiffe_id', subject ->> 'svid', subject ->> 'thumbprint',
        request ->> 'task', request ->> 'scope', decision ->> 'authority', decision ->> 'resource',
        coalesce(decision -> 'params', request -> 'params'), request ->> 'reason',
        (request ->> 'ttl')::bigint, (decision ->> 'ttl')::bigint, decision ->> 'outcome',
        decision ->> 'code', decision ->> 'explanation',
        -- Most lists have one item at most, which is faster to take without a subquery.
        CASE jsonb_array_length(decision -> 'policies') WHEN 0 THEN '{}' WHEN 1 THEN ARRAY[decision -> 'policies' ->> 0]
            ELSE ARRAY(SELECT jsonb_array_elements_text(decision -> 'policies')) END,
        CASE jsonb_array_length(decision -> 'clamps') WHEN 0 THEN '{}' WHEN 1 THEN ARRAY[decision -> 'clamps' -> 0 ->> 'bound']
            ELSE ARRAY(SELECT c ->> 'bound' FROM jsonb_array_elements(decision -> 'clamps') AS c) END,
        decision ->> 'catalogue', doc ->> 'status', time, (doc ->> 'expires')::timestamptz,
        decision -> 'approval' ->> 'group', (decision -> 'approval' ->> 'quorum')::integer,
        decision -> 'approval' ->> 'break_glass',
        intent ->> 'kind', intent ->> 'audience', intent ->> 'key_id',
        decode(intent ->> 'claims_digest', 'hex'), decode(request ->> 'digest', 'hex'),
        request ->> 'idempotency_key', nullif(intent -> 'grant' ->> 'path', ''),
        coalesce((intent -> 'grant' ->> 'leased')::boolean, false),
        coalesce((intent -> 'grant' ->> 'static')::boolean, false),
        coalesce((intent ->> 'one_shot')::boolean, false),
        decision -> 'approval' ->> 'canonical', (doc -> 'approves' ->> 'request')::uuid, request ->> 'jkt',
        (doc ->> 'parent')::uuid, (intent -> 'status_list' ->> 'id')::uuid,
        (intent -> 'status_list' ->> 'index')::integer, doc -> 'on_behalf_of' ->> 'id',
        CASE WHEN doc ? 'on_behalf_of' THEN ARRAY(SELECT jsonb_array_elements_text(doc -> 'on_behalf_of' -> 'groups')) END,
        request - '{scope,params,ttl,reason,idempotency_key,jkt,digest}'::text[]
    FROM (
        SELECT *, doc -> 'subject' AS subject, doc -> 'request' AS request, doc -> 'decision' AS decision, doc -> 'intent' AS intent
        FROM (
            SELECT a.index, a.id, a.time, a.kind, convert_from(a.body, 'UTF8')::jsonb AS doc FROM added_entries AS a
            WHERE a.kind IN ('request.denied', 'request.pending', 'issuance.intent') OFFSET 0
        ) AS parsed
        WHERE doc ->> 'kind' = kind AND doc ->> 'id' = id::text OFFSET 0
    ) AS e;
    GET DIAGNOSTICS begun = ROW_COUNT;
    IF begun <> beginning THEN
        RAISE EXCEPTION 'an entry differs from its body' USING ERRCODE = 'check_violation', CONSTRAINT = 'entries_agree';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER entries_follow AFTER INSERT ON entries
    REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION follow_entries();

-- A token that comes from a token exchange grants no more than its parent, for no longer, and has at most three ancestors. admit checks that
-- these are in force when the token is issued. Each check of the token checks it again.
CREATE FUNCTION only_narrower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
            SELECT FROM issuances AS p
            WHERE p.id = NEW.parent AND p.credential_kind = 'jwt' AND NOT p.one_shot AND p.jkt IS NULL
                AND (p.context, p.scope, p.resource, p.params, p.audience)
                    = (NEW.context, NEW.scope, NEW.resource, NEW.params, NEW.audience)
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
CREATE TRIGGER issuances_only_narrower AFTER INSERT ON issuances FOR EACH ROW
    WHEN (NEW.parent IS NOT NULL AND NEW.decision = 'allow') EXECUTE FUNCTION only_narrower();

-- When tasks end or ended, as commands order it. An end can only move to an earlier time, and is never undone.
CREATE TABLE task_ends (
    spiffe_id   text COLLATE "C" NOT NULL CHECK (spiffe_id ~ '^spiffe://[^/]+/.'),
    task        text COLLATE "C" NOT NULL CHECK (task <> ''),
    ends_at     timestamptz NOT NULL,
    ended       boolean NOT NULL,
    since       timestamptz NOT NULL,
    command     uuid NOT NULL,
    entry_index bigint NOT NULL,
    PRIMARY KEY (spiffe_id, task)
);
CREATE INDEX task_ends_due ON task_ends (ends_at) WHERE NOT ended;
CREATE INDEX task_ends_ordered ON task_ends (since) WHERE ended;
CREATE TRIGGER task_ends_only_sooner BEFORE UPDATE ON task_ends FOR EACH ROW WHEN (
    NEW.ends_at > OLD.ends_at OR (OLD.ended AND NOT NEW.ended)
    OR (NEW.spiffe_id, NEW.task) IS DISTINCT FROM (OLD.spiffe_id, OLD.task)
) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER task_ends_are_kept BEFORE DELETE OR TRUNCATE ON task_ends FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();
CREATE TRIGGER task_ends_have_entries AFTER INSERT OR UPDATE ON task_ends FOR EACH ROW EXECUTE FUNCTION has_entry();

-- The quarantines in force: of a SPIFFE ID and every ID below it, or of a trust domain.
CREATE TABLE quarantines (
    spiffe_id   text COLLATE "C" PRIMARY KEY CHECK (spiffe_id ~ '^spiffe://[^/]+(/[^/]+)*$'),
    since       timestamptz NOT NULL,
    actor       text CHECK (actor <> ''),
    reason      text NOT NULL,
    command     uuid NOT NULL,
    entry_index bigint NOT NULL
);
CREATE TRIGGER quarantines_do_not_change BEFORE UPDATE OR TRUNCATE ON quarantines
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
CREATE TRIGGER quarantines_have_entries AFTER INSERT ON quarantines FOR EACH ROW EXECUTE FUNCTION has_entry();

-- The sweeper's fencing token: it grows by one with each new leader, so nobody can use up the numbers. A move by an earlier leader is
-- refused.
CREATE TABLE sweeper_term (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    term     bigint NOT NULL CHECK (term >= 0)
);
INSERT INTO sweeper_term (term) VALUES (0);
CREATE TRIGGER sweeper_term_only_grows BEFORE UPDATE ON sweeper_term FOR EACH ROW
    WHEN (NEW.term <> OLD.term + 1 OR NOT NEW.only_row) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER sweeper_term_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON sweeper_term
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The rate limits of scopes, by the generic cell rate algorithm: tat is the theoretical arrival time of the next request. A time in the
-- past means the same as no row, so such a row may be deleted.
CREATE TABLE rate_limits (
    key text COLLATE "C" PRIMARY KEY CHECK (key <> ''),
    tat timestamptz NOT NULL
);
CREATE TRIGGER rate_limits_are_kept BEFORE DELETE ON rate_limits FOR EACH ROW
    WHEN (OLD.tat > now() - interval '1 hour') EXECUTE FUNCTION forbid_change();

-- admit makes the caller the only appender until it commits, and then judges a batch, one item after the other. It is a function because
-- it must see what other appenders committed while it waited for the lock.
--
-- An item is its subject, unless it is a denial without an idempotency key; that key; its task and scope, unless it is a denial; its
-- expiry, if it is allowed; and the catalogue that decided it. A limit is its item, its key, the microseconds between two requests, and
-- the burst. A limit on live credentials has their maximum number as its burst, and says in alive_per what they are counted per. Limits
-- come in the order of their items.
--
-- parents and ended are NULL, unless an item of the batch derives a token from another (token exchange). Then parents has that other
-- token, and ended the issuance that an item ends.
--
-- shown and ttls are NULL, unless an item of the batch waits for people and has no idempotency key. Then they have what people are shown of
-- it, and the TTL that it asks for.
--
-- The verdict is NULL for an item that passes, which then counts against all its limits. Otherwise it is repeated (the idempotency key is
-- used), superseded (another catalogue is in force), quarantined, task_ended, parent_ended (a token that it comes from is not in force any
-- more), asked (an equal request is pending) or limited. If it is limited, reached is the place of the
-- limit among the item's limits, and waits is the time in microseconds until the item would pass. current_term is the leading sweeper's
-- term. The time is the database's, read under the lock, so that replicas with different clocks count alike.
CREATE FUNCTION admit(
    subjects text[], keys text[], tasks text[], scopes text[], ends timestamptz[], catalogues text[],
    limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[], alive_per text[],
    parents uuid[] DEFAULT NULL, ended uuid[] DEFAULT NULL, shown text[] DEFAULT NULL, ttls bigint[] DEFAULT NULL,
    OUT verdicts text[], OUT reached bigint[], OUT waits bigint[], OUT current_term bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prior    bigint[]; -- the item before with the same idempotency key
    moment   timestamptz;
    first    bigint;
    beyond   bigint := 1;
    tightest bigint;
    excess   interval;
    in_force text;
BEGIN
    PERFORM FROM ledger_head FOR UPDATE;
    SELECT h.digest INTO in_force FROM catalogue_head AS h;
    moment := clock_timestamp();
    SELECT array_agg(asked.verdict ORDER BY asked.n), array_agg(asked.prior ORDER BY asked.n),
        (SELECT s.term FROM sweeper_term AS s)
    INTO verdicts, prior, current_term
    FROM (
        SELECT t.n,
            CASE
                WHEN t.key IS NOT NULL AND EXISTS (
                    SELECT FROM issuances AS i WHERE i.spiffe_id = t.subject AND i.idempotency_key = t.key)
                    THEN 'repeated'
                WHEN t.catalogue <> in_force THEN 'superseded'
                WHEN t.task IS NULL THEN NULL
                -- The SPIFFE ID, each path above it, and its trust domain.
                WHEN EXISTS (SELECT FROM quarantines) AND EXISTS (
                    SELECT FROM generate_series(3, cardinality(string_to_array(t.subject, '/'))) AS parts,
                        quarantines AS q
                    WHERE q.spiffe_id = array_to_string((string_to_array(t.subject, '/'))[:parts], '/'))
                    THEN 'quarantined'
                WHEN EXISTS (
                    SELECT FROM task_ends AS e
                    WHERE e.spiffe_id = t.subject AND e.task = t.task AND (e.ended OR e.ends_at <= moment))
                    THEN 'task_ended'
            END AS verdict,
            CASE WHEN t.key IS NOT NULL THEN lag(t.n) OVER (PARTITION BY t.subject, t.key ORDER BY t.n) END AS prior
        FROM unnest(subjects, keys, tasks, catalogues) WITH ORDINALITY AS t (subject, key, task, catalogue, n)
    ) AS asked;
    IF parents IS NOT NULL THEN
        -- The broker checked the parent before it asked for the lock, so the parent may have ended since. An earlier item of the batch may
        -- end an ancestor, which the table does not show yet. If that item is refused in turn, the exchange is refused all the same.
        SELECT array_agg(
            CASE
                WHEN t.verdict IS NULL AND t.parent IS NOT NULL AND EXISTS (
                    WITH RECURSIVE above AS (
                        SELECT p.*, 1 AS height FROM issuances AS p WHERE p.id = t.parent
                        UNION ALL
                        SELECT p.*, a.height + 1 FROM above AS a JOIN issuances AS p ON p.id = a.parent WHERE a.height < 3
                    )
                    SELECT FROM above AS a
                    WHERE a.status <> 'issued' OR a.expires_at <= moment OR a.id = ANY (ended[:t.n - 1])
                        OR EXISTS (
                            SELECT FROM task_ends AS e
                            WHERE e.spiffe_id = a.spiffe_id AND e.task = a.task AND (e.ended OR e.ends_at <= moment))
                        OR EXISTS (SELECT FROM quarantines) AND EXISTS (
                            SELECT FROM generate_series(3, cardinality(string_to_array(a.spiffe_id, '/'))) AS parts,
                                quarantines AS q
                            WHERE q.spiffe_id = array_to_string((string_to_array(a.spiffe_id, '/'))[:parts], '/')))
                    THEN 'parent_ended'
                ELSE t.verdict
            END ORDER BY t.n)
        INTO verdicts
        FROM unnest(verdicts, parents) WITH ORDINALITY AS t (verdict, parent, n);
    END IF;
    IF shown IS NOT NULL THEN
        -- The broker looked for an equal request before it asked for the lock. An earlier item of the batch may be equal, too.
        SELECT array_agg(
            CASE
                WHEN t.verdict IS NULL AND t.wanted IS NOT NULL AND (t.before IS NOT NULL OR EXISTS (
                    SELECT FROM issuances AS i
                    WHERE i.spiffe_id = t.subject AND i.status = 'pending' AND i.expires_at > moment
                        AND is_request(i, t.wanted, t.ttl) AND NOT outdated(i.entry_index)))
                    THEN 'asked'
                ELSE t.verdict
            END ORDER BY t.n)
        INTO verdicts
        FROM (
            SELECT u.*, lag(u.n) OVER (PARTITION BY u.subject, u.ttl, u.wanted ORDER BY u.n) AS before
            FROM (
                SELECT s.subject, s.verdict, likeness(s.shown) AS wanted, s.ttl, s.n
                FROM unnest(subjects, verdicts, shown, ttls) WITH ORDINALITY AS s (subject, verdict, shown, ttl, n)
            ) AS u
        ) AS t;
    END IF;
    reached := array_fill(NULL::bigint, ARRAY[cardinality(keys)]);
    waits := reached;
    FOR item IN 1 .. cardinality(keys) LOOP
        first := beyond;
        WHILE limit_items[beyond] = item LOOP
            beyond := beyond + 1;
        END LOOP;
        -- An idempotency key belongs to the first item of the batch that passes with it.
        IF prior[item] IS NOT NULL AND coalesce(verdicts[prior[item]], 'repeated') = 'repeated' THEN
            verdicts[item] := 'repeated';
        END IF;
        CONTINUE WHEN verdicts[item] IS NOT NULL OR first = beyond;
        IF array_remove(alive_per[first:beyond - 1], NULL) <> '{}' THEN
            -- Earlier items of the batch are not in the table yet.
            SELECT l.place, greatest(alive.until - moment, interval '1 second')
            INTO tightest, excess
            FROM unnest(alive_per[first:beyond - 1], bursts[first:beyond - 1]) WITH ORDINALITY AS l (per, most, place),
                LATERAL (
                    SELECT count(*) AS number, min(a.until) AS until
                    FROM (
                        SELECT i.expires_at AS until FROM issuances AS i
                        WHERE l.per = 'sandbox' AND i.spiffe_id = subjects[item] AND i.scope = scopes[item]
                            AND i.status IN ('intent', 'issued', 'unknown', 'revoking') AND i.expires_at > moment
                        UNION ALL
                        SELECT i.expires_at FROM issuances AS i
                        WHERE l.per = 'task' AND i.spiffe_id = subjects[item] AND i.scope = scopes[item]
                            AND i.status IN ('intent', 'issued', 'unknown', 'revoking') AND i.expires_at > moment
                            AND i.task = tasks[item]
                        UNION ALL
                        SELECT i.expires_at FROM issuances AS i
                        WHERE l.per = 'trust_domain' AND i.trust_domain = split_part(subjects[item], '/', 3)
                            AND i.scope = scopes[item]
                            AND i.status IN ('intent', 'issued', 'unknown', 'revoking') AND i.expires_at > moment
                        UNION ALL
                        SELECT b.until
                        FROM unnest(subjects[:item - 1], tasks[:item - 1], scopes[:item - 1], ends[:item - 1],
                            verdicts[:item - 1]) AS b (subject, task, scope, until, verdict)
                        WHERE b.verdict IS NULL AND b.scope = scopes[item] AND b.until > moment AND CASE l.per
                            WHEN 'sandbox' THEN b.subject = subjects[item]
                            WHEN 'task' THEN b.subject = subjects[item] AND b.task = tasks[item]
                            ELSE split_part(b.subject, '/', 3) = split_part(subjects[item], '/', 3) END
                    ) AS a
                ) AS alive
            WHERE l.per IS NOT NULL AND alive.number >= l.most
            ORDER BY 2 DESC LIMIT 1;
            IF FOUND THEN
                verdicts[item] := 'limited';
                reached[item] := tightest;
                waits[item] := ceil(extract(epoch FROM excess) * 1000000);
                CONTINUE;
            END IF;
        END IF;
        SELECT l.place, greatest(r.tat - moment, interval '0') + (1 - l.burst) * l.emission * interval '1 microsecond'
        INTO tightest, excess
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1], bursts[first:beyond - 1],
            alive_per[first:beyond - 1]) WITH ORDINALITY AS l (key, emission, burst, per, place)
            LEFT JOIN rate_limits AS r ON r.key = l.key
        WHERE l.per IS NULL
        ORDER BY 2 DESC LIMIT 1;
        IF excess > interval '0' THEN
            verdicts[item] := 'limited';
            reached[item] := tightest;
            waits[item] := ceil(extract(epoch FROM excess) * 1000000);
            CONTINUE;
        END IF;
        INSERT INTO rate_limits AS r (key, tat)
        SELECT l.key, moment + l.emission * interval '1 microsecond'
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1], alive_per[first:beyond - 1])
            AS l (key, emission, per)
        WHERE l.per IS NULL
        ON CONFLICT (key) DO UPDATE SET tat = greatest(r.tat, moment) + (excluded.tat - moment);
    END LOOP;
END $$;

-- +goose StatementEnd

-- +goose Down
-- Entries are permanent: this fails once there is one about a request or a command.
ALTER TABLE entries ADD CONSTRAINT entries_of_issuances CHECK (kind IN ('call.refused', 'ledger.pruned'));
ALTER TABLE entries DROP CONSTRAINT entries_of_issuances;
DROP FUNCTION admit;
DROP TABLE rate_limits;
DROP TABLE sweeper_term;
DROP TABLE quarantines;
DROP TABLE task_ends;
DROP TRIGGER issuances_keep_rules ON issuances;
DROP FUNCTION keep_rules, broken_rule;
DROP TRIGGER entries_follow ON entries;
DROP TABLE issuances;
DROP FUNCTION follow_entries, only_narrower, only_forward, may_move;
