-- The complete schema, as pg_dump 15 prints it. Generated from the migrations by "make generate": do not edit.
-- The migrations say why each part is there.

CREATE SCHEMA brevet;

CREATE FUNCTION brevet.add_partition(size bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
DECLARE
    first bigint;
    name  text;
BEGIN
    LOCK TABLE entries IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT coalesce(max(p.beyond), 0) INTO first FROM entry_partitions AS p;
    IF size < 256 OR size % 256 <> 0 THEN
        RAISE EXCEPTION 'a partition has whole tiles of 256 entries, not % entries', size USING ERRCODE = 'check_violation';
    END IF;
    name := 'entries_' || first;
    EXECUTE format('CREATE TABLE %I (LIKE entries INCLUDING ALL)', name);
    PERFORM guard_partition(name);
    EXECUTE format('ALTER TABLE entries ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', name, first, first + size);
END $$;

CREATE FUNCTION brevet.admit(subjects text[], keys text[], tasks text[], scopes text[], ends timestamp with time zone[], catalogues text[], limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[], alive_per text[], parents uuid[] DEFAULT NULL::uuid[], ended uuid[] DEFAULT NULL::uuid[], shown text[] DEFAULT NULL::text[], ttls bigint[] DEFAULT NULL::bigint[], OUT verdicts text[], OUT reached bigint[], OUT waits bigint[], OUT current_term bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.approval_is_used() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.approved_by(asked uuid) RETURNS text
    LANGUAGE sql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.bootstrap_ends_once() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.created_at <> OLD.created_at OR OLD.bootstrap_ended_at IS NOT NULL
        OR NEW.bootstrap_ended_at NOT BETWEEN statement_timestamp() AND clock_timestamp() THEN
        RAISE EXCEPTION 'the bootstrap admin ends once, now, and does not begin again' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE brevet.issuances (
    id uuid NOT NULL,
    entry_index bigint NOT NULL,
    "time" timestamp with time zone NOT NULL,
    trust_domain text NOT NULL COLLATE pg_catalog."C",
    spiffe_id text NOT NULL COLLATE pg_catalog."C",
    svid_kind text NOT NULL,
    thumbprint text NOT NULL,
    task text NOT NULL COLLATE pg_catalog."C",
    scope text NOT NULL COLLATE pg_catalog."C",
    authority text NOT NULL,
    resource text NOT NULL,
    params jsonb NOT NULL,
    reason text NOT NULL,
    ttl_asked bigint NOT NULL,
    ttl bigint NOT NULL,
    decision text NOT NULL COLLATE pg_catalog."C",
    decision_code text NOT NULL,
    explanation text NOT NULL,
    policies text[] NOT NULL,
    clamps text[] NOT NULL,
    catalogue text NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    status_detail text,
    status_time timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    approval_group text,
    approval_quorum integer,
    credential_kind text,
    audience text,
    key_id text,
    claims_digest bytea,
    request_digest bytea NOT NULL,
    idempotency_key text,
    vault_path text,
    vault_accessor text,
    vault_lease text,
    credential_name text,
    secret_digest bytea,
    actor text,
    leased boolean DEFAULT false NOT NULL,
    static boolean DEFAULT false NOT NULL,
    canonical text,
    votes integer DEFAULT 0 NOT NULL,
    redemptions integer DEFAULT 0 NOT NULL,
    redeemed_by uuid,
    approves uuid,
    remembered uuid,
    break_glass text,
    jkt text,
    one_shot boolean DEFAULT false NOT NULL,
    parent uuid,
    status_list uuid,
    status_index integer,
    on_behalf_of text COLLATE pg_catalog."C",
    on_behalf_groups text[],
    context jsonb NOT NULL
);

CREATE FUNCTION brevet.broken_rule(i brevet.issuances, beginning boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (((i).trust_domain = ''::text) OR ((i).task = ''::text) OR ((i).scope = ''::text) OR ((i).catalogue = ''::text) OR ((i).decision_code = ''::text) OR ((i).approval_group = ''::text) OR ((i).audience = ''::text) OR ((i).key_id = ''::text) OR ((i).idempotency_key = ''::text) OR ((i).status_detail = ''::text) OR ((i).vault_path = ''::text) OR ((i).vault_accessor = ''::text) OR ((i).vault_lease = ''::text) OR ((i).credential_name = ''::text) OR ((i).actor = ''::text)) THEN 'issuances_texts'::text WHEN ((32 <> octet_length((i).request_digest)) OR (32 <> octet_length((i).claims_digest)) OR (32 <> octet_length((i).secret_digest))) THEN 'issuances_digests'::text WHEN (NOT starts_with((i).spiffe_id, (('spiffe://'::text || (i).trust_domain) || '/'::text))) THEN 'issuances_trust_domain'::text WHEN ((i).svid_kind <> ALL (ARRAY['x509-svid'::text, 'jwt-svid'::text])) THEN 'issuances_svid_kind'::text WHEN (((i).thumbprint <> ''::text) <> ((i).svid_kind = 'x509-svid'::text)) THEN 'issuances_thumbprint'::text WHEN (jsonb_typeof((i).params) <> 'object'::text) THEN 'issuances_params'::text WHEN ((((i).context ->> 'task'::text) IS DISTINCT FROM (i).task) OR (length(((i).context)::text) > 4096) OR jsonb_path_exists((i).context, '$.*?(@.type() != "string")'::jsonpath)) THEN 'issuances_context'::text WHEN (((i).ttl_asked < 0) OR ((i).ttl < CASE (i).decision WHEN 'deny'::text THEN 0 ELSE 1 END)) THEN 'issuances_ttl'::text WHEN (NOT CASE (i).decision WHEN 'deny'::text THEN ((i).expires_at IS NULL) ELSE COALESCE(((i).expires_at > (i)."time"), false) END) THEN 'issuances_expiry'::text WHEN ((i).credential_kind <> ALL (ARRAY['jwt'::text, 'vault-token'::text, 'database'::text, 'pki'::text, 'ssh'::text, 'kv'::text, 'vault'::text, 'github'::text, 'none'::text])) THEN 'issuances_credential_kind'::text WHEN (NOT CASE (i).decision WHEN 'deny'::text THEN (((i).status = 'denied'::text) AND (NOT (i).one_shot)) WHEN 'pending'::text THEN (((i).status = ANY (ARRAY['pending'::text, 'approved'::text, 'rejected'::text, 'withdrawn'::text, 'redeemed'::text])) AND (NOT (i).one_shot)) WHEN 'allow'::text THEN ((((i).status = ANY (ARRAY['intent'::text, 'issued'::text, 'failed'::text, 'unknown'::text, 'compensated'::text, 'revoking'::text, 'revoked'::text, 'released'::text, 'expired'::text])) OR (((i).status = 'used'::text) AND (i).one_shot)) AND ((NOT (i).one_shot) OR ((i).credential_kind = 'jwt'::text)) AND (((i).credential_kind <> 'none'::text) OR ((i).status = ANY (ARRAY['issued'::text, 'revoked'::text, 'released'::text])))) ELSE false END) THEN 'issuances_state'::text WHEN (beginning AND (((i).status IS DISTINCT FROM CASE WHEN ((i).decision = 'deny'::text) THEN 'denied'::text WHEN ((i).decision = 'pending'::text) THEN 'pending'::text WHEN ((i).credential_kind = ANY (ARRAY['jwt'::text, 'none'::text])) THEN 'issued'::text ELSE 'intent'::text END) OR (num_nonnulls((i).status_detail, (i).actor, (i).redeemed_by, (i).remembered) > 0) OR (((i).votes + (i).redemptions) > 0))) THEN 'issuances_begin'::text WHEN (((i).status_detail IS NOT NULL) <> ((i).status = ANY (ARRAY['failed'::text, 'unknown'::text, 'compensated'::text, 'revoking'::text, 'revoked'::text, 'released'::text]))) THEN 'issuances_detail'::text WHEN (((i).status = ANY (ARRAY['failed'::text, 'unknown'::text, 'compensated'::text])) AND ((i).idempotency_key IS NOT NULL)) THEN 'issuances_key_freed'::text WHEN (NOT CASE WHEN ((i).decision <> 'allow'::text) THEN ((num_nonnulls((i).credential_kind, (i).audience, (i).key_id, (i).claims_digest, (i).vault_path) = 0) AND (NOT (i).leased) AND (NOT (i).static)) WHEN ((i).credential_kind = 'jwt'::text) THEN ((num_nulls((i).audience, (i).key_id, (i).claims_digest) = 0) AND ((i).vault_path IS NULL) AND (NOT (i).leased) AND (NOT (i).static)) WHEN ((i).credential_kind = 'none'::text) THEN ((num_nonnulls((i).audience, (i).key_id, (i).claims_digest, (i).vault_path, (i).jkt) = 0) AND (NOT (i).leased) AND (NOT (i).static)) ELSE (((i).credential_kind IS NOT NULL) AND (num_nonnulls((i).audience, (i).key_id, (i).claims_digest) = 0) AND (((i).vault_path IS NULL) = ((i).credential_kind = 'vault-token'::text)) AND (NOT ((i).leased AND (i).static))) END) THEN 'issuances_intent'::text WHEN (NOT CASE WHEN (((i).decision <> 'allow'::text) OR ((i).credential_kind = ANY (ARRAY['jwt'::text, 'none'::text])) OR ((i).status = 'intent'::text)) THEN (num_nonnulls((i).vault_accessor, (i).vault_lease, (i).credential_name, (i).secret_digest) = 0) ELSE (((NOT (i).leased) OR ((i).status <> 'issued'::text) OR (num_nonnulls((i).vault_accessor, (i).vault_lease) > 0)) AND ((NOT (i).static) OR ((i).secret_digest IS NULL))) END) THEN 'issuances_minted'::text WHEN (NOT CASE WHEN ((i).status_list IS NULL) THEN ((i).status_index IS NULL) ELSE ((((i).credential_kind = 'jwt'::text) AND (((i).status_index >= 0) AND ((i).status_index <= 8191))) IS TRUE) END) THEN 'issuances_status_list'::text WHEN (NOT CASE WHEN ((i).parent IS NULL) THEN true WHEN ((i).decision = 'allow'::text) THEN (((i).credential_kind = 'jwt'::text) AND ((i).approves IS NULL) AND ((i).parent <> (i).id)) ELSE ((i).decision = 'deny'::text) END) THEN 'issuances_parent'::text WHEN (((i).approval_quorum < 1) OR (num_nulls((i).approval_group, (i).approval_quorum) <> CASE (i).decision WHEN 'pending'::text THEN 0 ELSE 2 END) OR (((i).break_glass IS NOT NULL) AND (NOT COALESCE((((i).break_glass = (((i).canonical)::jsonb ->> 'break_glass'::text)) AND ((i).break_glass <> ALL (ARRAY[''::text, (i).approval_group]))), false)))) THEN 'issuances_approval'::text WHEN (NOT CASE (i).decision WHEN 'pending'::text THEN (((i).votes >= 0) AND (((i).redemptions >= 0) AND ((i).redemptions <= 2)) AND ((i).approves IS NULL) AND (((i).status = 'redeemed'::text) = ((i).redemptions > 0)) AND (((i).redemptions > 0) = ((i).redeemed_by IS NOT NULL)) AND (((i).status <> ALL (ARRAY['approved'::text, 'redeemed'::text])) OR (((i).canonical IS NOT NULL) AND ((i).votes >= LEAST((i).approval_quorum, CASE WHEN ((i).break_glass IS NOT NULL) THEN 2 ELSE NULL::integer END))))) ELSE ((num_nonnulls((i).canonical, (i).redeemed_by, (i).remembered) = 0) AND ((i).votes = 0) AND ((i).redemptions = 0) AND (((i).approves IS NOT NULL) = (((i).decision = 'allow'::text) AND ((i).decision_code = ANY (ARRAY['approved'::text, 'break_glass'::text])))) AND (((i).decision_code <> 'break_glass'::text) OR (((i).ttl <= 1800) AND (((i).expires_at - (i)."time") <= '00:30:00'::interval)))) END) THEN 'issuances_votes'::text WHEN (((i).jkt IS NOT NULL) AND (NOT (((i).jkt ~ '^[A-Za-z0-9_-]{43}$'::text) AND (((i).canonical IS NULL) OR COALESCE(((((i).canonical)::jsonb ->> 'jkt'::text) = (i).jkt), false))))) THEN 'issuances_jkt'::text WHEN ((num_nulls((i).on_behalf_of, (i).on_behalf_groups) = 1) OR ((i).on_behalf_of !~~ '_%#_%'::text) OR ((COALESCE((i).canonical, ''::text) <> ''::text) AND ((((i).canonical)::jsonb ->> 'on_behalf_of'::text) IS DISTINCT FROM (i).on_behalf_of))) THEN 'issuances_on_behalf_of'::text ELSE NULL::text END;

CREATE FUNCTION brevet.catalogue_change_counts() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM catalogue_head AS h
        WHERE CASE NEW.kind
            WHEN 'applied' THEN h.change = NEW.id
            WHEN 'proposed' THEN h.version = NEW.version - 1 AND h.digest IS NOT DISTINCT FROM NEW.base
            ELSE true END
    ) OR NEW.proposal IS NOT NULL AND NOT EXISTS (
        SELECT FROM catalogue_changes AS p WHERE p.id = NEW.proposal AND p.kind = 'proposed'
    ) THEN
        RAISE EXCEPTION 'catalogue version % is not the next', NEW.version USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.catalogue_digest(names text[], contents bytea[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
    SELECT 'sha256:' || encode(sha256(string_agg(
        convert_to(encode(sha256(f.content), 'hex') || '  ' || f.name || E'\n', 'UTF8'), ''::bytea
        ORDER BY f.name COLLATE "C")), 'hex')
    FROM unnest(names, contents) AS f (name, content)
$$;

CREATE FUNCTION brevet.catalogue_entry_says_so() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM entries AS e
        WHERE e.id = NEW.id AND e.index = NEW.entry_index AND e.kind = 'catalogue.' || NEW.kind
            AND convert_from(e.body, 'UTF8')::jsonb ->> 'digest' = NEW.digest
            AND convert_from(e.body, 'UTF8')::jsonb #>> '{actor,id}' IS NOT DISTINCT FROM NEW.actor) THEN
        RAISE EXCEPTION 'no entry says what this change of the catalogue does' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.catalogue_head_follows() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 OR NOT EXISTS (
        SELECT FROM catalogue_changes AS c
        WHERE c.id = NEW.change AND c.kind = 'applied' AND c.version = NEW.version AND c.digest = NEW.digest
            AND c.base IS NOT DISTINCT FROM OLD.digest) THEN
        RAISE EXCEPTION 'nobody has applied catalogue version %', NEW.version USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.checkpoint_grows() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.size <= (SELECT max(c.size) FROM checkpoints AS c) OR NEW.size > (SELECT h.size FROM ledger_head AS h) THEN
        RAISE EXCEPTION 'a checkpoint of % entries does not follow', NEW.size USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION brevet.crowded(subject text, besides bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN besides + (SELECT count(*) FROM issuances AS i
        WHERE i.spiffe_id = subject AND i.status = 'pending' AND i.expires_at > clock_timestamp() AND NOT outdated(i.entry_index)) >= 20;
END $$;

CREATE FUNCTION brevet.enough(asked uuid) RETURNS boolean
    LANGUAGE sql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
    SELECT approved_by(asked) IS NOT NULL
$$;

CREATE FUNCTION brevet.entry_says_so() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.equal_request(subject text, shown text, asked_ttl bigint, besides uuid[]) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.extend_entries() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
DECLARE
    head  bigint;
    last  record;
    since bigint;
    began timestamptz;
BEGIN
    LOCK TABLE entries IN SHARE UPDATE EXCLUSIVE MODE;
    LOOP
        SELECT h.size INTO head FROM ledger_head AS h;
        SELECT p.first, p.beyond - p.first AS size INTO last FROM entry_partitions AS p ORDER BY p.first DESC LIMIT 1;
        EXIT WHEN head <= last.first;
        SELECT coalesce(max(p.first), 0) INTO since FROM entry_partitions AS p WHERE p.first < last.first;
        SELECT e.index, e.time INTO since, began FROM entries AS e WHERE e.index >= since ORDER BY e.index LIMIT 1;
        PERFORM add_partition(partition_size(head - coalesce(since, 0), clock_timestamp() - began, last.size));
    END LOOP;
END $$;

CREATE FUNCTION brevet.follow_entries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.forbid_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE FUNCTION brevet.gateway_says_so() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.guard_partition(name text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (id)
        WHERE kind = ''issuance.intent'' OR kind NOT LIKE ''issuance.%%'' AND kind NOT LIKE ''approval.%%''', name || '_one_beginning', name);
    EXECUTE format('CREATE TRIGGER %I BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()', name || '_append_only', name);
END $$;

CREATE FUNCTION brevet.has_entry() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM entries AS e
        WHERE e.index = NEW.entry_index AND (TG_TABLE_NAME = 'webhook_notices' OR e.id = (to_jsonb(NEW) ->> 'command')::uuid)) THEN
        RAISE EXCEPTION 'there is no such entry as this row of % names', TG_TABLE_NAME USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.head_counts_entries() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.size < OLD.size THEN
        RAISE EXCEPTION 'the ledger has % entries and cannot shrink to %', OLD.size, NEW.size USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.size > 0 AND NOT EXISTS (SELECT FROM entries AS e WHERE e.index = NEW.size - 1)
        OR EXISTS (SELECT FROM entries AS e WHERE e.index = NEW.size) THEN
        RAISE EXCEPTION 'the head counts % entries, which is not how many there are', NEW.size
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.holder_says_so() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.likeness(shown text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN ((NULLIF(shown, ''::text))::jsonb - '{request,digest,expires,ttl}'::text[]);

CREATE FUNCTION brevet.is_request(i brevet.issuances, wanted jsonb, asked_ttl bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((i).idempotency_key IS NULL) AND ((i).ttl_asked = asked_ttl) AND ((i).scope = (wanted ->> 'scope'::text)) AND (brevet.likeness((i).canonical) = wanted));

CREATE FUNCTION brevet.is_void(asked uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM issuances AS i WHERE i.id = asked AND i.status IN ('pending', 'approved') AND outdated(i.entry_index));
END $$;

CREATE FUNCTION brevet.issuance_terms(trust_domain text, reason text, spiffe_id text, facts text) RETURNS text[]
    LANGUAGE sql IMMUTABLE
    RETURN string_to_array(NULLIF("right"(((COALESCE(((('
'::text || trust_domain) || ':word='::text) || replace(NULLIF((strip(to_tsvector('simple'::regconfig, reason)))::text, ''::text), ' '::text, (('
'::text || trust_domain) || ':word='::text))), ''::text) || COALESCE(((('
'::text || trust_domain) || ':path='::text) || replace(NULLIF("right"(spiffe_id, ('-10'::integer - length(trust_domain))), ''::text), '/'::text, (('
'::text || trust_domain) || ':path='::text))), ''::text)) || COALESCE(replace(facts, '
'::text, (('
'::text || trust_domain) || ':'::text)), ''::text)), '-1'::integer), ''::text), '
'::text);

CREATE FUNCTION brevet.keep_rules() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
        DECLARE
            broken pg_catalog.text := brevet.broken_rule(ROW(NEW.id, NEW.entry_index, NEW."time", NEW.trust_domain, NEW.spiffe_id, NEW.svid_kind, NEW.thumbprint, NEW.task, NEW.scope, NEW.authority, NEW.resource, NEW.params, NEW.reason, NEW.ttl_asked, NEW.ttl, NEW.decision, NEW.decision_code, NEW.explanation, NEW.policies, NEW.clamps, NEW.catalogue, NEW.status, NEW.status_detail, NEW.status_time, NEW.expires_at, NEW.approval_group, NEW.approval_quorum, NEW.credential_kind, NEW.audience, NEW.key_id, NEW.claims_digest, NEW.request_digest, NEW.idempotency_key, NEW.vault_path, NEW.vault_accessor, NEW.vault_lease, NEW.credential_name, NEW.secret_digest, NEW.actor, NEW.leased, NEW.static, NEW.canonical, NEW.votes, NEW.redemptions, NEW.redeemed_by, NEW.approves, NEW.remembered, NEW.break_glass, NEW.jkt, NEW.one_shot, NEW.parent, NEW.status_list, NEW.status_index, NEW.on_behalf_of, NEW.on_behalf_groups, NEW.context)::brevet.issuances, TG_OP OPERATOR(pg_catalog.=) 'INSERT');
        BEGIN
            IF broken IS NOT NULL THEN
                RAISE EXCEPTION 'an issuance breaks the rule %', broken
                    USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
            END IF;
            RETURN NEW;
        END $$;

CREATE FUNCTION brevet.may_change_catalogue(change_kind text, doc jsonb) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
DECLARE
    head catalogue_head%ROWTYPE;
BEGIN
    SELECT * INTO head FROM catalogue_head;
    RETURN (doc ->> 'number')::bigint = head.version + 1 AND head.digest IS NOT DISTINCT FROM doc ->> 'base'
        AND (NOT doc ? 'proposal' OR EXISTS (
            SELECT FROM catalogue_changes AS p
            WHERE p.kind = 'proposed' AND p.id = (doc ->> 'proposal')::uuid
                AND p.version = head.version + 1 AND p.digest = doc ->> 'digest'
                AND NOT EXISTS (SELECT FROM catalogue_changes AS d WHERE d.proposal = p.id)))
        AND (change_kind <> 'catalogue.proposed' OR NOT EXISTS (
            SELECT FROM catalogue_changes AS p
            WHERE p.kind = 'proposed' AND p.version = head.version + 1 AND p.digest = doc ->> 'digest'
                AND NOT EXISTS (SELECT FROM catalogue_changes AS d WHERE d.proposal = p.id)));
END $$;

CREATE FUNCTION brevet.may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN CASE was WHEN 'pending'::text THEN (becomes = ANY (ARRAY['pending'::text, 'approved'::text, 'rejected'::text, 'withdrawn'::text])) WHEN 'approved'::text THEN (becomes = ANY (ARRAY['redeemed'::text, 'rejected'::text, 'withdrawn'::text])) WHEN 'redeemed'::text THEN (becomes = 'redeemed'::text) WHEN 'intent'::text THEN (becomes = ANY (ARRAY['issued'::text, 'failed'::text, 'unknown'::text, 'compensated'::text, 'revoking'::text])) WHEN 'unknown'::text THEN (becomes = 'compensated'::text) WHEN 'issued'::text THEN CASE becomes WHEN 'failed'::text THEN (kind = 'jwt'::text) WHEN 'used'::text THEN (kind = 'jwt'::text) WHEN 'revoking'::text THEN leased WHEN 'expired'::text THEN leased WHEN 'revoked'::text THEN ((NOT leased) AND (NOT static)) WHEN 'released'::text THEN ((NOT leased) AND (NOT static)) ELSE false END WHEN 'revoking'::text THEN (becomes = ANY (ARRAY['revoked'::text, 'released'::text])) ELSE false END;

CREATE FUNCTION brevet.may_register(of text, named text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM passkeys AS k WHERE k.credential = named)
        AND 10 > (SELECT count(*) FROM passkeys AS k WHERE k.person = of AND k.removed_index IS NULL);
END $$;

CREATE FUNCTION brevet.may_register(of text, named text, key text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN may_register(of, named) AND NOT EXISTS (SELECT FROM passkeys AS k WHERE k.digest = key);
END $$;

CREATE FUNCTION brevet.may_report(asked uuid, holder text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    PERFORM FROM issuances AS i WHERE i.id = asked FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND reportable(asked, holder) AND NOT EXISTS (SELECT FROM uses AS u WHERE u.issuance = asked);
END $$;

CREATE FUNCTION brevet.may_report_calls(asked uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM call_reports AS r WHERE r.id = asked);
END $$;

CREATE FUNCTION brevet.may_unregister(of text, which uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (SELECT FROM passkeys AS k WHERE k.id = which AND k.person = of AND k.removed_index IS NULL);
END $$;

CREATE FUNCTION brevet.not_ones_own() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (SELECT FROM issuances AS i WHERE i.id = NEW.request AND i.on_behalf_of = NEW.voter) THEN
        RAISE EXCEPTION 'request % is asked on behalf of its voter', NEW.request USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.only_forward() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.only_narrower() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.only_pruned() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF TG_OP <> 'DELETE' OR current_setting('brevet.pruning', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.outdated(since bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (SELECT FROM catalogue_changes AS c WHERE c.kind = 'applied' AND c.entry_index > since);
END $$;

CREATE FUNCTION brevet.partition_size(grown bigint, during interval, last bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
    SELECT 1::bigint << least(22, greatest(12, least(
        ceil(log(2, greatest(grown, 1) * 2592000 / greatest(extract(epoch FROM during), 86400))),
        ceil(log(2, greatest(last, 1))) + 3)))::integer
$$;

CREATE FUNCTION brevet.passkey_is_registered() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.people_said_so() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.redeemable(asked uuid, subject text, code text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE FUNCTION brevet.replica_reads_on() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.seen > (SELECT size FROM ledger_head)
        OR TG_OP = 'UPDATE' AND (NEW.id <> OLD.id OR NEW.seen < OLD.seen OR NEW.beat <= OLD.beat) THEN
        RAISE EXCEPTION 'replica % cannot have read up to %', NEW.id, NEW.seen USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION brevet.reportable(asked uuid, holder text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked AND i.spiffe_id = holder AND now() < i.expires_at + interval '1 hour'
            AND CASE WHEN i.credential_kind IN ('jwt', 'none') THEN i.status <> 'failed'
                ELSE EXISTS (SELECT FROM entries AS e WHERE e.id = asked AND e.index >= i.entry_index AND e.kind = 'issuance.issued') END);
END $$;

CREATE TABLE brevet.votes (
    request uuid NOT NULL,
    voter text NOT NULL COLLATE pg_catalog."C",
    verdict text NOT NULL,
    covers text NOT NULL,
    "time" timestamp with time zone NOT NULL,
    note text NOT NULL,
    entry_index bigint NOT NULL,
    credential text COLLATE pg_catalog."C",
    assertion text,
    CONSTRAINT votes_assertion CHECK (((num_nulls(credential, assertion) = ANY (ARRAY[0, 2])) AND ((verdict <> 'deny'::text) OR (assertion IS NULL)) AND
CASE
    WHEN (assertion IS NULL) THEN true
    ELSE ((octet_length(assertion) <= 32768) AND COALESCE((((assertion)::jsonb ->> 'id'::text) = credential), false))
END)),
    CONSTRAINT votes_break_glass CHECK (((verdict <> 'break_glass'::text) OR ((covers = 'request'::text) AND (note ~ '\S'::text)))),
    CONSTRAINT votes_covers_check CHECK ((covers = ANY (ARRAY['request'::text, 'task'::text]))),
    CONSTRAINT votes_verdict_check CHECK ((verdict = ANY (ARRAY['approve'::text, 'deny'::text, 'break_glass'::text])))
);

CREATE FUNCTION brevet.signed(shown text, v brevet.votes) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
    SELECT nullif(shown, '')::jsonb ->> 'passkey' IS DISTINCT FROM 'required' OR EXISTS (
        SELECT FROM passkeys AS k
        WHERE k.person = v.voter AND k.credential = v.credential AND k.removed_index IS NULL AND k.entry_index < v.entry_index)
$$;

CREATE FUNCTION brevet.take_hashes() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF NEW.level = 0 THEN
        SELECT string_agg(e.leaf_hash, ''::bytea ORDER BY e.index) INTO NEW.hashes FROM entries AS e
            WHERE e.index >= NEW.number * 256 AND e.index < NEW.number * 256 + 256;
    ELSE
        SELECT string_agg(t.root, ''::bytea ORDER BY t.number) INTO NEW.hashes FROM tree_tiles AS t
            WHERE t.level = NEW.level - 1 AND t.number >= NEW.number * 256 AND t.number < NEW.number * 256 + 256;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION brevet.tidy_terms() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    PERFORM gin_clean_pending_list('issuances_by_term');
END $$;

CREATE FUNCTION brevet.void_stays() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
BEGIN
    IF outdated(OLD.entry_index) THEN
        RAISE EXCEPTION 'request % is void: the catalogue has changed', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TABLE brevet.catalogue_changes (
    id uuid NOT NULL,
    kind text NOT NULL,
    digest text NOT NULL COLLATE pg_catalog."C",
    base text COLLATE pg_catalog."C",
    version bigint NOT NULL,
    proposal uuid,
    proposer text COLLATE pg_catalog."C",
    actor text COLLATE pg_catalog."C",
    reason text NOT NULL,
    "time" timestamp with time zone NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT catalogue_changes_actor CHECK (((actor IS NOT NULL) OR ((kind = 'applied'::text) AND (version = 1)))),
    CONSTRAINT catalogue_changes_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT catalogue_changes_base CHECK ((((base IS NULL) = (version = 1)) AND (digest IS DISTINCT FROM base))),
    CONSTRAINT catalogue_changes_kind_check CHECK ((kind = ANY (ARRAY['proposed'::text, 'applied'::text, 'rejected'::text]))),
    CONSTRAINT catalogue_changes_proposal CHECK ((((proposal IS NULL) = (proposer IS NULL)) AND
CASE kind
    WHEN 'proposed'::text THEN (proposal IS NULL)
    WHEN 'rejected'::text THEN (proposal IS NOT NULL)
    ELSE ((proposer IS NULL) OR (proposer <> actor))
END)),
    CONSTRAINT catalogue_changes_version_check CHECK ((version >= 1))
);

CREATE FUNCTION brevet.voided_by(status text, since bigint, expires_at timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (SELECT c.version FROM brevet.catalogue_changes c WHERE ((voided_by.status = ANY (ARRAY['pending'::text, 'approved'::text])) AND (c.kind = 'applied'::text) AND (c.entry_index > voided_by.since) AND (c."time" < (voided_by.expires_at + CASE voided_by.status WHEN 'approved'::text THEN '00:01:00'::interval ELSE '00:00:00'::interval END))) ORDER BY c.entry_index LIMIT 1);

CREATE FUNCTION brevet.vote_is_signed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'brevet', 'pg_temp'
    AS $$
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

CREATE TABLE brevet.call_reports (
    id uuid NOT NULL,
    trust_domain text NOT NULL COLLATE pg_catalog."C",
    spiffe_id text NOT NULL COLLATE pg_catalog."C",
    task text NOT NULL COLLATE pg_catalog."C",
    session uuid NOT NULL,
    sequence bigint NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    final boolean NOT NULL,
    "time" timestamp with time zone NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT call_reports_period CHECK ((since <= until)),
    CONSTRAINT call_reports_sequence_check CHECK (((sequence >= 1) AND (sequence <= 10000000)))
);

CREATE TABLE brevet.entries (
    index bigint NOT NULL,
    id uuid NOT NULL,
    "time" timestamp with time zone NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL,
    leaf_hash bytea NOT NULL
)
PARTITION BY RANGE (index);

CREATE VIEW brevet.audit_calls AS
 SELECT r.trust_domain,
    r.spiffe_id AS sandbox,
    r.task,
    r.session,
    r.sequence,
    r.final,
    c.host,
    c.method,
    c.path,
    c.scope,
    c.refused,
    COALESCE(c.other, false) AS other,
    c.count,
    c.first AS first_time,
    c.last AS last_time,
    c.statuses,
    COALESCE(c.bytes_in, (0)::bigint) AS bytes_in,
    COALESCE(c.bytes_out, (0)::bigint) AS bytes_out,
    r."time",
    r.entry_index
   FROM (brevet.call_reports r
     JOIN brevet.entries e ON ((e.index = r.entry_index))),
    LATERAL jsonb_to_recordset(((convert_from(e.body, 'UTF8'::name))::jsonb #> '{report,calls}'::text[])) c(host text, method text, path text, scope text, refused text, other boolean, count bigint, first timestamp with time zone, last timestamp with time zone, statuses jsonb, bytes_in bigint, bytes_out bigint);

CREATE VIEW brevet.audit_issuances AS
 SELECT i.id,
    i.entry_index,
    i."time",
    i.trust_domain,
    i.spiffe_id AS sandbox,
    i.task,
    i.scope,
    i.authority,
    i.resource,
    i.params,
    i.reason,
    i.ttl_asked AS ttl_asked_seconds,
    i.ttl AS ttl_seconds,
    i.decision,
    i.decision_code,
    i.explanation,
    i.policies,
    i.catalogue,
        CASE
            WHEN ((i.status = ANY (ARRAY['pending'::text, 'approved'::text])) AND (brevet.voided_by(i.status, i.entry_index, i.expires_at) IS NOT NULL)) THEN 'void'::text
            WHEN l.lapsed THEN 'expired'::text
            ELSE i.status
        END AS status,
    i.status_detail,
        CASE
            WHEN ((i.status = ANY (ARRAY['pending'::text, 'approved'::text])) AND (brevet.voided_by(i.status, i.entry_index, i.expires_at) IS NOT NULL)) THEN ( SELECT c."time"
               FROM brevet.catalogue_changes c
              WHERE ((c.kind = 'applied'::text) AND (c.version = brevet.voided_by(i.status, i.entry_index, i.expires_at))))
            WHEN l.lapsed THEN i.expires_at
            ELSE i.status_time
        END AS status_time,
    i.expires_at,
    i.approval_group,
    i.approval_quorum,
    i.votes,
    i.approves,
    i.redeemed_by,
    i.credential_kind,
    i.audience,
    i.key_id,
    encode(COALESCE(i.claims_digest, i.secret_digest), 'hex'::text) AS sha256,
    i.credential_name,
    i.actor AS ended_by,
    i.on_behalf_of
   FROM brevet.issuances i,
    LATERAL ( SELECT ((i.status = ANY (ARRAY['issued'::text, 'pending'::text, 'approved'::text])) AND (NOT i.leased) AND (i.expires_at <= (now() -
                CASE i.status
                    WHEN 'approved'::text THEN '00:01:00'::interval
                    ELSE '00:00:00'::interval
                END))) AS lapsed) l;

CREATE TABLE brevet.task_ends (
    spiffe_id text NOT NULL COLLATE pg_catalog."C",
    task text NOT NULL COLLATE pg_catalog."C",
    ends_at timestamp with time zone NOT NULL,
    ended boolean NOT NULL,
    since timestamp with time zone NOT NULL,
    command uuid NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT task_ends_spiffe_id_check CHECK ((spiffe_id ~ '^spiffe://[^/]+/.'::text)),
    CONSTRAINT task_ends_task_check CHECK ((task <> ''::text))
);

CREATE VIEW brevet.audit_tasks AS
 SELECT i.spiffe_id AS sandbox,
    i.task,
    min(i.trust_domain) AS trust_domain,
    count(*) AS requests,
    count(*) FILTER (WHERE (i.decision = 'allow'::text)) AS issued,
    count(*) FILTER (WHERE (i.decision = 'deny'::text)) AS denied,
    count(*) FILTER (WHERE (i.decision = 'pending'::text)) AS asked_people,
    min(i."time") AS first_time,
    max(i."time") AS last_time,
    min(e.ends_at) AS ends_at,
    COALESCE(bool_or(e.ended), false) AS ended
   FROM (brevet.issuances i
     LEFT JOIN brevet.task_ends e ON (((e.spiffe_id = i.spiffe_id) AND (e.task = i.task))))
  GROUP BY i.spiffe_id, i.task;

CREATE TABLE brevet.uses (
    issuance uuid NOT NULL,
    began bigint NOT NULL,
    calls bigint NOT NULL,
    last_used_at timestamp with time zone,
    "time" timestamp with time zone NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT uses_calls_check CHECK (((calls >= 0) AND (calls <= 1000000000))),
    CONSTRAINT uses_last CHECK (((last_used_at IS NULL) = (calls = 0)))
);

CREATE VIEW brevet.audit_usage AS
 SELECT ((i."time" AT TIME ZONE 'UTC'::text))::date AS day,
    i.trust_domain,
    i.scope,
    count(*) FILTER (WHERE (i.approves IS NULL)) AS asked,
    count(*) FILTER (WHERE (i.status = ANY (ARRAY['issued'::text, 'revoking'::text, 'revoked'::text, 'released'::text, 'expired'::text, 'used'::text]))) AS granted,
    count(*) FILTER (WHERE (i.status = ANY (ARRAY['denied'::text, 'rejected'::text]))) AS denied,
    count(u.issuance) AS reported,
    count(*) FILTER (WHERE (u.calls > 0)) AS reported_used,
    (COALESCE(sum(u.calls), (0)::numeric))::bigint AS reported_calls,
    max(u.last_used_at) AS reported_last_used_at
   FROM (brevet.issuances i
     LEFT JOIN brevet.uses u ON ((u.began = i.entry_index)))
  WHERE (i.authority <> ''::text)
  GROUP BY (((i."time" AT TIME ZONE 'UTC'::text))::date), i.trust_domain, i.scope;

CREATE TABLE brevet.people (
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    handle text NOT NULL,
    groups text[] NOT NULL,
    said_at timestamp with time zone NOT NULL,
    entry uuid NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT people_id_check CHECK ((id <> ''::text))
);

CREATE VIEW brevet.audit_votes AS
 SELECT v.request,
    i.trust_domain,
    i.spiffe_id AS sandbox,
    i.task,
    i.scope,
    i.resource,
    v.voter,
    p.name AS voter_name,
    p.handle AS voter_handle,
    v.verdict,
    v.covers,
    v."time",
    v.note,
    v.entry_index
   FROM ((brevet.votes v
     JOIN brevet.issuances i ON ((i.id = v.request)))
     JOIN brevet.people p ON ((p.id = v.voter)));

CREATE TABLE brevet.catalogue_head (
    only_row boolean DEFAULT true NOT NULL,
    version bigint NOT NULL,
    digest text COLLATE pg_catalog."C",
    change uuid,
    CONSTRAINT catalogue_head_of_change CHECK ((num_nulls(digest, change) =
CASE version
    WHEN 0 THEN 2
    ELSE 0
END)),
    CONSTRAINT catalogue_head_only_row_check CHECK (only_row),
    CONSTRAINT catalogue_head_version_check CHECK ((version >= 0))
);

CREATE TABLE brevet.catalogues (
    digest text NOT NULL COLLATE pg_catalog."C",
    names text[] NOT NULL,
    contents bytea[] NOT NULL,
    CONSTRAINT catalogues_digest CHECK (COALESCE(((cardinality(names) = cardinality(contents)) AND (array_position(names, NULL::text) IS NULL) AND (array_position(contents, NULL::bytea) IS NULL) AND (digest = brevet.catalogue_digest(names, contents))), false))
);

CREATE TABLE brevet.checkpoints (
    size bigint NOT NULL,
    root bytea NOT NULL,
    "time" timestamp with time zone NOT NULL,
    note text NOT NULL,
    CONSTRAINT checkpoints_note CHECK (((split_part(note, '
'::text, 2) = (size)::text) AND (split_part(note, '
'::text, 3) = encode(root, 'base64'::text)))),
    CONSTRAINT checkpoints_root_check CHECK ((octet_length(root) = 32)),
    CONSTRAINT checkpoints_size_check CHECK ((size > 0))
);

CREATE TABLE brevet.cosignatures (
    size bigint NOT NULL,
    witness text NOT NULL,
    line text NOT NULL,
    "time" timestamp with time zone NOT NULL,
    CONSTRAINT cosignatures_line_check CHECK (((line ~ '^— [^[:space:]+]+ [A-Za-z0-9+/]{102}==\n$'::text) AND (octet_length(line) <= 1024))),
    CONSTRAINT cosignatures_witness_check CHECK ((witness ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);

CREATE TABLE brevet.deployment (
    only_row boolean DEFAULT true NOT NULL,
    cursor_key bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    bootstrap_ended_at timestamp with time zone,
    CONSTRAINT deployment_cursor_key_check CHECK ((octet_length(cursor_key) = 32)),
    CONSTRAINT deployment_only_row_check CHECK (only_row)
);

CREATE TABLE brevet.dpop_seen (
    digest bytea NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT dpop_seen_digest_check CHECK ((octet_length(digest) = 32))
);

CREATE TABLE brevet.entries_0 (
    index bigint NOT NULL,
    id uuid NOT NULL,
    "time" timestamp with time zone NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL,
    leaf_hash bytea NOT NULL
);

CREATE VIEW brevet.entry_partitions AS
 SELECT (c.relname)::text AS name,
    ((regexp_match(b.bounds, 'FROM \(''(\d+)''\)'::text))[1])::bigint AS first,
    ((regexp_match(b.bounds, 'TO \(''(\d+)''\)'::text))[1])::bigint AS beyond
   FROM (pg_inherits i
     JOIN pg_class c ON ((c.oid = i.inhrelid))),
    LATERAL ( SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) b
  WHERE (i.inhparent = ('brevet.entries'::regclass)::oid);

CREATE TABLE brevet.goose_db_version (
    id integer NOT NULL,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp without time zone DEFAULT now() NOT NULL
);

ALTER TABLE brevet.goose_db_version ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME brevet.goose_db_version_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE brevet.ledger_head (
    only_row boolean DEFAULT true NOT NULL,
    size bigint NOT NULL
)
WITH (fillfactor='10');

CREATE TABLE brevet.passkeys (
    id uuid NOT NULL,
    person text NOT NULL COLLATE pg_catalog."C",
    credential text NOT NULL COLLATE pg_catalog."C",
    public_key text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    algorithm integer NOT NULL,
    sign_count bigint NOT NULL,
    name text NOT NULL,
    "time" timestamp with time zone NOT NULL,
    entry_index bigint NOT NULL,
    removed_at timestamp with time zone,
    removed_index bigint,
    CONSTRAINT passkeys_credential_check CHECK (((credential ~ '^[A-Za-z0-9_-]+$'::text) AND (length(credential) <= 1364))),
    CONSTRAINT passkeys_digest CHECK ((digest = encode(sha256(decode(rpad(translate(public_key, '-_'::text, '+/'::text), (((length(public_key) + 3) / 4) * 4), '='::text), 'base64'::text)), 'hex'::text))),
    CONSTRAINT passkeys_name_check CHECK (((name ~ '\S'::text) AND (length(name) <= 64))),
    CONSTRAINT passkeys_public_key_check CHECK (((public_key ~ '^[A-Za-z0-9_-]+$'::text) AND (length(public_key) <= 2736))),
    CONSTRAINT passkeys_removed CHECK (((num_nulls(removed_at, removed_index) = ANY (ARRAY[0, 2])) AND COALESCE((removed_index > entry_index), true))),
    CONSTRAINT passkeys_sign_count_check CHECK (((sign_count >= 0) AND (sign_count <= '4294967295'::bigint)))
);

CREATE TABLE brevet.quarantines (
    spiffe_id text NOT NULL COLLATE pg_catalog."C",
    since timestamp with time zone NOT NULL,
    actor text,
    reason text NOT NULL,
    command uuid NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT quarantines_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT quarantines_spiffe_id_check CHECK ((spiffe_id ~ '^spiffe://[^/]+(/[^/]+)*$'::text))
);

CREATE TABLE brevet.rate_limits (
    key text NOT NULL COLLATE pg_catalog."C",
    tat timestamp with time zone NOT NULL,
    CONSTRAINT rate_limits_key_check CHECK ((key <> ''::text))
);

CREATE TABLE brevet.replicas (
    id uuid NOT NULL,
    seen bigint NOT NULL,
    beat bigint NOT NULL,
    CONSTRAINT replicas_seen_check CHECK ((seen >= 0))
);

CREATE TABLE brevet.sessions (
    id bytea NOT NULL,
    data bytea NOT NULL,
    ends timestamp with time zone NOT NULL,
    CONSTRAINT sessions_data_check CHECK ((octet_length(data) <= 65536)),
    CONSTRAINT sessions_id_check CHECK ((octet_length(id) = 32))
);

CREATE TABLE brevet.sweeper_term (
    only_row boolean DEFAULT true NOT NULL,
    term bigint NOT NULL,
    CONSTRAINT sweeper_term_only_row_check CHECK (only_row),
    CONSTRAINT sweeper_term_term_check CHECK ((term >= 0))
);

CREATE TABLE brevet.tree_tiles (
    level smallint NOT NULL,
    number bigint NOT NULL,
    hashes bytea NOT NULL,
    root bytea NOT NULL,
    CONSTRAINT tree_tiles_hashes_check CHECK ((octet_length(hashes) = (256 * 32))),
    CONSTRAINT tree_tiles_level_check CHECK (((level >= 0) AND (level <= 7))),
    CONSTRAINT tree_tiles_number_check CHECK ((number >= 0)),
    CONSTRAINT tree_tiles_root_check CHECK ((octet_length(root) = 32))
);

CREATE TABLE brevet.webhook_notices (
    webhook text NOT NULL COLLATE pg_catalog."C",
    entry_index bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    due timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    CONSTRAINT webhook_notices_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT webhook_notices_kind_check CHECK ((kind = ANY (ARRAY['approval.waiting'::text, 'approval.decided'::text, 'approval.break_glass'::text, 'credential.unrevoked'::text])))
);

CREATE TABLE brevet.webhooks (
    name text NOT NULL COLLATE pg_catalog."C",
    next bigint NOT NULL,
    holder uuid,
    held_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT webhooks_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)),
    CONSTRAINT webhooks_next_check CHECK ((next >= 0))
);

ALTER TABLE ONLY brevet.entries ATTACH PARTITION brevet.entries_0 FOR VALUES FROM ('0') TO ('4096');

ALTER TABLE ONLY brevet.call_reports
    ADD CONSTRAINT call_reports_entry_index_key UNIQUE (entry_index);

ALTER TABLE ONLY brevet.call_reports
    ADD CONSTRAINT call_reports_of_session UNIQUE (spiffe_id, task, session, sequence);

ALTER TABLE ONLY brevet.call_reports
    ADD CONSTRAINT call_reports_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_entry_index_key UNIQUE (entry_index);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_id_digest_version_actor_key UNIQUE (id, digest, version, actor);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_proposal_key UNIQUE (proposal);

ALTER TABLE ONLY brevet.catalogue_head
    ADD CONSTRAINT catalogue_head_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY brevet.catalogues
    ADD CONSTRAINT catalogues_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY brevet.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (size);

ALTER TABLE ONLY brevet.cosignatures
    ADD CONSTRAINT cosignatures_pkey PRIMARY KEY (size, witness);

ALTER TABLE ONLY brevet.deployment
    ADD CONSTRAINT deployment_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY brevet.dpop_seen
    ADD CONSTRAINT dpop_seen_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY brevet.entries
    ADD CONSTRAINT entries_of_record UNIQUE (id, index);

ALTER TABLE ONLY brevet.entries_0
    ADD CONSTRAINT entries_0_id_index_key UNIQUE (id, index);

ALTER TABLE ONLY brevet.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (index);

ALTER TABLE ONLY brevet.entries_0
    ADD CONSTRAINT entries_0_pkey PRIMARY KEY (index);

ALTER TABLE ONLY brevet.goose_db_version
    ADD CONSTRAINT goose_db_version_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.issuances
    ADD CONSTRAINT issuances_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.ledger_head
    ADD CONSTRAINT ledger_head_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY brevet.passkeys
    ADD CONSTRAINT passkeys_credential_key UNIQUE (credential);

ALTER TABLE ONLY brevet.passkeys
    ADD CONSTRAINT passkeys_once UNIQUE (digest);

ALTER TABLE ONLY brevet.passkeys
    ADD CONSTRAINT passkeys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.people
    ADD CONSTRAINT people_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.quarantines
    ADD CONSTRAINT quarantines_pkey PRIMARY KEY (spiffe_id);

ALTER TABLE ONLY brevet.rate_limits
    ADD CONSTRAINT rate_limits_pkey PRIMARY KEY (key);

ALTER TABLE ONLY brevet.replicas
    ADD CONSTRAINT replicas_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY brevet.sweeper_term
    ADD CONSTRAINT sweeper_term_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY brevet.task_ends
    ADD CONSTRAINT task_ends_pkey PRIMARY KEY (spiffe_id, task);

ALTER TABLE ONLY brevet.tree_tiles
    ADD CONSTRAINT tree_tiles_pkey PRIMARY KEY (level, number);

ALTER TABLE ONLY brevet.uses
    ADD CONSTRAINT uses_began_key UNIQUE (began);

ALTER TABLE ONLY brevet.uses
    ADD CONSTRAINT uses_pkey PRIMARY KEY (issuance);

ALTER TABLE ONLY brevet.votes
    ADD CONSTRAINT votes_pkey PRIMARY KEY (request, voter, verdict);

ALTER TABLE ONLY brevet.webhook_notices
    ADD CONSTRAINT webhook_notices_pkey PRIMARY KEY (webhook, entry_index, kind);

ALTER TABLE ONLY brevet.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (name);

CREATE UNIQUE INDEX catalogue_changes_one_of_version ON brevet.catalogue_changes USING btree (version) WHERE (kind = 'applied'::text);

CREATE INDEX catalogue_changes_proposed ON brevet.catalogue_changes USING btree (version, digest) WHERE (kind = 'proposed'::text);

CREATE INDEX dpop_seen_until ON brevet.dpop_seen USING btree (until);

CREATE INDEX entries_of_kind ON ONLY brevet.entries USING btree (kind, index) WHERE (kind = ANY (ARRAY['credentials.revoke'::text, 'task.end'::text, 'ledger.pruned'::text, 'passkey.removed'::text]));

CREATE INDEX entries_0_kind_index_idx ON brevet.entries_0 USING btree (kind, index) WHERE (kind = ANY (ARRAY['credentials.revoke'::text, 'task.end'::text, 'ledger.pruned'::text, 'passkey.removed'::text]));

CREATE UNIQUE INDEX entries_0_one_beginning ON brevet.entries_0 USING btree (id) WHERE ((kind = 'issuance.intent'::text) OR ((kind !~~ 'issuance.%'::text) AND (kind !~~ 'approval.%'::text)));

CREATE INDEX issuances_alive ON brevet.issuances USING btree (date_bin('01:00:00'::interval, expires_at, '2000-01-01 00:00:00+00'::timestamp with time zone), spiffe_id, expires_at) WHERE (status = ANY (ARRAY['intent'::text, 'issued'::text, 'unknown'::text, 'revoking'::text]));

CREATE INDEX issuances_alive_of_sandbox ON brevet.issuances USING btree (spiffe_id, scope, expires_at) WHERE (status = ANY (ARRAY['intent'::text, 'issued'::text, 'unknown'::text, 'revoking'::text]));

CREATE INDEX issuances_alive_of_trust_domain ON brevet.issuances USING btree (trust_domain, scope, expires_at) WHERE (status = ANY (ARRAY['intent'::text, 'issued'::text, 'unknown'::text, 'revoking'::text]));

CREATE INDEX issuances_approves ON brevet.issuances USING btree (approves) WHERE (approves IS NOT NULL);

CREATE INDEX issuances_asked ON brevet.issuances USING btree (spiffe_id, expires_at) WHERE (decision = 'pending'::text);

CREATE INDEX issuances_by_authority ON brevet.issuances USING btree (authority, trust_domain, entry_index DESC) WHERE (authority <> 'read'::text);

CREATE INDEX issuances_by_catalogue ON brevet.issuances USING btree (hashtextextended(catalogue, (0)::bigint), trust_domain, ((- entry_index)));

CREATE INDEX issuances_by_code ON brevet.issuances USING btree (decision_code, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE (decision_code <> 'permitted'::text);

CREATE INDEX issuances_by_decision ON brevet.issuances USING btree (decision, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE (decision <> 'allow'::text);

CREATE INDEX issuances_by_digest ON brevet.issuances USING hash (COALESCE(claims_digest, secret_digest)) WHERE (COALESCE(claims_digest, secret_digest) IS NOT NULL);

CREATE INDEX issuances_by_group ON brevet.issuances USING btree (approval_group, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE (approval_group IS NOT NULL);

CREATE INDEX issuances_by_key ON brevet.issuances USING btree (hashtextextended(key_id, (0)::bigint), trust_domain, ((- entry_index)));

CREATE INDEX issuances_by_name ON brevet.issuances USING hash (credential_name) WHERE (credential_name IS NOT NULL);

CREATE INDEX issuances_by_parent ON brevet.issuances USING btree (parent) WHERE (parent IS NOT NULL);

CREATE INDEX issuances_by_spiffe_id ON brevet.issuances USING btree (spiffe_id, entry_index) WITH (deduplicate_items=off);

CREATE INDEX issuances_by_status ON brevet.issuances USING btree (status, trust_domain, entry_index DESC) WHERE (status <> 'issued'::text);

CREATE INDEX issuances_by_task ON brevet.issuances USING btree (task, trust_domain, entry_index) WITH (deduplicate_items=off);

CREATE INDEX issuances_by_term ON brevet.issuances USING gin ((ARRAY[(((((entry_index >> 12) << 5) | (12)::bigint) << 32) | ((hashtext(trust_domain))::bigint & '4294967295'::bigint)), (((((entry_index >> 15) << 5) | (15)::bigint) << 32) | ((hashtext(trust_domain))::bigint & '4294967295'::bigint)), (((((entry_index >> 18) << 5) | (18)::bigint) << 32) | ((hashtext(trust_domain))::bigint & '4294967295'::bigint))]), brevet.issuance_terms(trust_domain, reason, spiffe_id, ((((((((('
scope='::text || scope) || '
resource='::text) || hashtextextended(resource, (0)::bigint)) || COALESCE(('
user='::text || hashtextextended(on_behalf_of, (0)::bigint)), ''::text)) || COALESCE(('
group='::text || approval_group), ''::text)) || COALESCE(('
status='::text || NULLIF(status, 'issued'::text)), ''::text)) || COALESCE(('
decision='::text || NULLIF(decision, 'allow'::text)), ''::text)) || COALESCE(('
code='::text || NULLIF(decision_code, 'permitted'::text)), ''::text)) || COALESCE(('
authority='::text || NULLIF(authority, 'read'::text)), ''::text))), jsonb_set('{}'::jsonb, ARRAY[trust_domain], params) jsonb_path_ops);

CREATE INDEX issuances_by_time ON brevet.issuances USING btree (((entry_index >> 13)), "time");

CREATE INDEX issuances_by_trust_domain ON brevet.issuances USING btree (trust_domain, entry_index) WITH (deduplicate_items=off);

CREATE INDEX issuances_by_user ON brevet.issuances USING btree (on_behalf_of, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE (on_behalf_of IS NOT NULL);

CREATE UNIQUE INDEX issuances_entry_index ON brevet.issuances USING btree (entry_index);

CREATE INDEX issuances_handed_down ON brevet.issuances USING btree (expires_at) WHERE ((parent IS NOT NULL) AND (status = 'issued'::text));

CREATE UNIQUE INDEX issuances_idempotency ON brevet.issuances USING btree (spiffe_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE UNIQUE INDEX issuances_one_per_approval ON brevet.issuances USING btree (approves) WHERE ((approves IS NOT NULL) AND (status <> ALL (ARRAY['failed'::text, 'compensated'::text])) AND (NOT (leased AND (status = 'revoked'::text) AND (status_detail = 'undelivered'::text))));

CREATE INDEX issuances_remembered ON brevet.issuances USING btree (remembered) WHERE (remembered IS NOT NULL);

CREATE UNIQUE INDEX issuances_status_list ON brevet.issuances USING btree (status_list, status_index) WHERE (status_list IS NOT NULL);

CREATE INDEX issuances_undecided ON brevet.issuances USING btree (expires_at) WHERE (status = ANY (ARRAY['pending'::text, 'approved'::text]));

CREATE INDEX issuances_unfinished ON brevet.issuances USING btree (status, expires_at) WHERE ((status = ANY (ARRAY['intent'::text, 'unknown'::text, 'revoking'::text])) OR ((status = 'issued'::text) AND leased));

CREATE INDEX issuances_waiting ON brevet.issuances USING btree (approval_group, expires_at) WHERE (status = 'pending'::text);

CREATE INDEX issuances_waiting_break_glass ON brevet.issuances USING btree (break_glass, expires_at) WHERE ((status = 'pending'::text) AND (break_glass IS NOT NULL));

CREATE INDEX issuances_waiting_of_sandbox ON brevet.issuances USING btree (spiffe_id, expires_at) WHERE (status = 'pending'::text);

CREATE INDEX passkeys_of_person ON brevet.passkeys USING btree (person) WHERE (removed_index IS NULL);

CREATE INDEX sessions_end ON brevet.sessions USING btree (ends);

CREATE INDEX task_ends_due ON brevet.task_ends USING btree (ends_at) WHERE (NOT ended);

CREATE INDEX task_ends_ordered ON brevet.task_ends USING btree (since) WHERE ended;

CREATE INDEX votes_by_voter ON brevet.votes USING btree (voter, request);

CREATE INDEX votes_no ON brevet.votes USING btree ("time") WHERE (verdict = 'deny'::text);

CREATE UNIQUE INDEX votes_one_yes ON brevet.votes USING btree (request, voter) WHERE (verdict <> 'deny'::text);

CREATE INDEX webhook_notices_due ON brevet.webhook_notices USING btree (webhook, due);

ALTER INDEX brevet.entries_of_record ATTACH PARTITION brevet.entries_0_id_index_key;

ALTER INDEX brevet.entries_of_kind ATTACH PARTITION brevet.entries_0_kind_index_idx;

ALTER INDEX brevet.entries_pkey ATTACH PARTITION brevet.entries_0_pkey;

CREATE TRIGGER call_reports_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.call_reports FOR EACH STATEMENT EXECUTE FUNCTION brevet.only_pruned();

CREATE TRIGGER call_reports_gateway_says_so AFTER INSERT ON brevet.call_reports FOR EACH ROW EXECUTE FUNCTION brevet.gateway_says_so();

CREATE TRIGGER catalogue_change_counts AFTER INSERT ON brevet.catalogue_changes FOR EACH ROW EXECUTE FUNCTION brevet.catalogue_change_counts();

CREATE TRIGGER catalogue_changes_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.catalogue_changes FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER catalogue_changes_entry_says_so AFTER INSERT ON brevet.catalogue_changes FOR EACH ROW EXECUTE FUNCTION brevet.catalogue_entry_says_so();

CREATE TRIGGER catalogue_head_follows AFTER UPDATE ON brevet.catalogue_head FOR EACH ROW EXECUTE FUNCTION brevet.catalogue_head_follows();

CREATE TRIGGER catalogue_head_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON brevet.catalogue_head FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER catalogues_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.catalogues FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER checkpoints_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.checkpoints FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER checkpoints_grow BEFORE INSERT ON brevet.checkpoints FOR EACH ROW EXECUTE FUNCTION brevet.checkpoint_grows();

CREATE TRIGGER cosignatures_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.cosignatures FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER deployment_bootstrap_ends_once BEFORE UPDATE OF created_at, bootstrap_ended_at ON brevet.deployment FOR EACH ROW EXECUTE FUNCTION brevet.bootstrap_ends_once();

CREATE TRIGGER deployment_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON brevet.deployment FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER dpop_seen_is_kept BEFORE DELETE ON brevet.dpop_seen FOR EACH ROW WHEN ((old.until > (now() - '00:01:00'::interval))) EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER entries_0_append_only BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON brevet.entries_0 FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER entries_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.entries FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER entries_follow AFTER INSERT ON brevet.entries REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION brevet.follow_entries();

CREATE TRIGGER head_counts_entries AFTER UPDATE ON brevet.ledger_head FOR EACH ROW EXECUTE FUNCTION brevet.head_counts_entries();

CREATE TRIGGER issuances_approval_is_used AFTER INSERT ON brevet.issuances FOR EACH ROW WHEN ((new.approves IS NOT NULL)) EXECUTE FUNCTION brevet.approval_is_used();

CREATE TRIGGER issuances_are_kept BEFORE DELETE OR TRUNCATE ON brevet.issuances FOR EACH STATEMENT EXECUTE FUNCTION brevet.only_pruned();

CREATE TRIGGER issuances_keep_rules BEFORE INSERT OR UPDATE ON brevet.issuances FOR EACH ROW EXECUTE FUNCTION brevet.keep_rules();

CREATE TRIGGER issuances_only_forward BEFORE UPDATE ON brevet.issuances FOR EACH ROW EXECUTE FUNCTION brevet.only_forward();

CREATE TRIGGER issuances_only_narrower AFTER INSERT ON brevet.issuances FOR EACH ROW WHEN (((new.parent IS NOT NULL) AND (new.decision = 'allow'::text))) EXECUTE FUNCTION brevet.only_narrower();

CREATE TRIGGER issuances_people_said_so AFTER UPDATE ON brevet.issuances FOR EACH ROW WHEN ((new.decision = 'pending'::text)) EXECUTE FUNCTION brevet.people_said_so();

CREATE TRIGGER issuances_void_stays BEFORE UPDATE ON brevet.issuances FOR EACH ROW WHEN (((old.status = ANY (ARRAY['pending'::text, 'approved'::text])) OR (new.redemptions > old.redemptions))) EXECUTE FUNCTION brevet.void_stays();

CREATE TRIGGER ledger_head_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON brevet.ledger_head FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER passkeys_are_kept BEFORE DELETE OR TRUNCATE ON brevet.passkeys FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER passkeys_are_registered AFTER INSERT OR UPDATE ON brevet.passkeys FOR EACH ROW EXECUTE FUNCTION brevet.passkey_is_registered();

CREATE TRIGGER people_are_kept BEFORE DELETE OR TRUNCATE ON brevet.people FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER people_entry_says_so AFTER INSERT OR UPDATE ON brevet.people FOR EACH ROW EXECUTE FUNCTION brevet.entry_says_so();

CREATE TRIGGER people_only_later BEFORE UPDATE ON brevet.people FOR EACH ROW WHEN (((new.said_at < old.said_at) OR (new.id <> old.id))) EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER quarantines_do_not_change BEFORE UPDATE OR TRUNCATE ON brevet.quarantines FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER quarantines_have_entries AFTER INSERT ON brevet.quarantines FOR EACH ROW EXECUTE FUNCTION brevet.has_entry();

CREATE TRIGGER rate_limits_are_kept BEFORE DELETE ON brevet.rate_limits FOR EACH ROW WHEN ((old.tat > (now() - '01:00:00'::interval))) EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER replicas_read_on AFTER INSERT OR UPDATE ON brevet.replicas FOR EACH ROW EXECUTE FUNCTION brevet.replica_reads_on();

CREATE TRIGGER sweeper_term_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON brevet.sweeper_term FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER sweeper_term_only_grows BEFORE UPDATE ON brevet.sweeper_term FOR EACH ROW WHEN (((new.term <> (old.term + 1)) OR (NOT new.only_row))) EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER task_ends_are_kept BEFORE DELETE OR TRUNCATE ON brevet.task_ends FOR EACH STATEMENT EXECUTE FUNCTION brevet.only_pruned();

CREATE TRIGGER task_ends_have_entries AFTER INSERT OR UPDATE ON brevet.task_ends FOR EACH ROW EXECUTE FUNCTION brevet.has_entry();

CREATE TRIGGER task_ends_only_sooner BEFORE UPDATE ON brevet.task_ends FOR EACH ROW WHEN (((new.ends_at > old.ends_at) OR (old.ended AND (NOT new.ended)) OR ((new.spiffe_id IS DISTINCT FROM old.spiffe_id) OR (new.task IS DISTINCT FROM old.task)))) EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER tree_tiles_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.tree_tiles FOR EACH STATEMENT EXECUTE FUNCTION brevet.forbid_change();

CREATE TRIGGER tree_tiles_take_hashes BEFORE INSERT ON brevet.tree_tiles FOR EACH ROW EXECUTE FUNCTION brevet.take_hashes();

CREATE TRIGGER uses_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.uses FOR EACH STATEMENT EXECUTE FUNCTION brevet.only_pruned();

CREATE TRIGGER uses_holder_says_so AFTER INSERT ON brevet.uses FOR EACH ROW EXECUTE FUNCTION brevet.holder_says_so();

CREATE TRIGGER votes_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON brevet.votes FOR EACH STATEMENT EXECUTE FUNCTION brevet.only_pruned();

CREATE TRIGGER votes_are_signed AFTER INSERT ON brevet.votes FOR EACH ROW EXECUTE FUNCTION brevet.vote_is_signed();

CREATE TRIGGER votes_entry_says_so AFTER INSERT ON brevet.votes FOR EACH ROW EXECUTE FUNCTION brevet.entry_says_so();

CREATE TRIGGER votes_not_ones_own AFTER INSERT ON brevet.votes FOR EACH ROW EXECUTE FUNCTION brevet.not_ones_own();

CREATE TRIGGER webhook_notices_have_entries AFTER INSERT ON brevet.webhook_notices FOR EACH ROW EXECUTE FUNCTION brevet.has_entry();

CREATE TRIGGER webhooks_only_forward BEFORE UPDATE ON brevet.webhooks FOR EACH ROW WHEN (((new.next < old.next) OR (new.name <> old.name))) EXECUTE FUNCTION brevet.forbid_change();

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_base_fkey FOREIGN KEY (base) REFERENCES brevet.catalogues(digest);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_digest_fkey FOREIGN KEY (digest) REFERENCES brevet.catalogues(digest);

ALTER TABLE ONLY brevet.catalogue_changes
    ADD CONSTRAINT catalogue_changes_of_proposal FOREIGN KEY (proposal, digest, version, proposer) REFERENCES brevet.catalogue_changes(id, digest, version, actor);

ALTER TABLE ONLY brevet.catalogue_head
    ADD CONSTRAINT catalogue_head_change_fkey FOREIGN KEY (change) REFERENCES brevet.catalogue_changes(id);

ALTER TABLE ONLY brevet.catalogue_head
    ADD CONSTRAINT catalogue_head_digest_fkey FOREIGN KEY (digest) REFERENCES brevet.catalogues(digest);

ALTER TABLE ONLY brevet.cosignatures
    ADD CONSTRAINT cosignatures_size_fkey FOREIGN KEY (size) REFERENCES brevet.checkpoints(size);

ALTER TABLE ONLY brevet.issuances
    ADD CONSTRAINT issuances_approves_fkey FOREIGN KEY (approves) REFERENCES brevet.issuances(id);

ALTER TABLE ONLY brevet.issuances
    ADD CONSTRAINT issuances_parent_fkey FOREIGN KEY (parent) REFERENCES brevet.issuances(id);

ALTER TABLE ONLY brevet.issuances
    ADD CONSTRAINT issuances_remembered_fkey FOREIGN KEY (remembered) REFERENCES brevet.issuances(id);

ALTER TABLE ONLY brevet.passkeys
    ADD CONSTRAINT passkeys_person_fkey FOREIGN KEY (person) REFERENCES brevet.people(id);

ALTER TABLE ONLY brevet.uses
    ADD CONSTRAINT uses_issuance_fkey FOREIGN KEY (issuance) REFERENCES brevet.issuances(id);

ALTER TABLE ONLY brevet.votes
    ADD CONSTRAINT votes_request_fkey FOREIGN KEY (request) REFERENCES brevet.issuances(id);

ALTER TABLE ONLY brevet.votes
    ADD CONSTRAINT votes_voter_fkey FOREIGN KEY (voter) REFERENCES brevet.people(id);

ALTER TABLE ONLY brevet.webhook_notices
    ADD CONSTRAINT webhook_notices_webhook_fkey FOREIGN KEY (webhook) REFERENCES brevet.webhooks(name);

GRANT USAGE ON SCHEMA brevet TO brevet_broker;
GRANT USAGE ON SCHEMA brevet TO brevet_auditor;

REVOKE ALL ON FUNCTION brevet.add_partition(size bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION brevet.admit(subjects text[], keys text[], tasks text[], scopes text[], ends timestamp with time zone[], catalogues text[], limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[], alive_per text[], parents uuid[], ended uuid[], shown text[], ttls bigint[], OUT verdicts text[], OUT reached bigint[], OUT waits bigint[], OUT current_term bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.admit(subjects text[], keys text[], tasks text[], scopes text[], ends timestamp with time zone[], catalogues text[], limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[], alive_per text[], parents uuid[], ended uuid[], shown text[], ttls bigint[], OUT verdicts text[], OUT reached bigint[], OUT waits bigint[], OUT current_term bigint) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.approved_by(asked uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.approved_by(asked uuid) TO brevet_broker;

GRANT SELECT ON TABLE brevet.issuances TO brevet_broker;
GRANT SELECT ON TABLE brevet.issuances TO brevet_auditor;

GRANT UPDATE(status) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(status_detail) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(status_time) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(idempotency_key) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(vault_accessor) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(vault_lease) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(credential_name) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(secret_digest) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(actor) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(votes) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(redemptions) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(redeemed_by) ON TABLE brevet.issuances TO brevet_broker;

GRANT UPDATE(remembered) ON TABLE brevet.issuances TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.broken_rule(i brevet.issuances, beginning boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.broken_rule(i brevet.issuances, beginning boolean) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.catalogue_digest(names text[], contents bytea[]) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.catalogue_digest(names text[], contents bytea[]) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.crowded(subject text, besides bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.crowded(subject text, besides bigint) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.enough(asked uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.enough(asked uuid) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.extend_entries() FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.extend_entries() TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.follow_entries() FROM PUBLIC;

REVOKE ALL ON FUNCTION brevet.guard_partition(name text) FROM PUBLIC;

REVOKE ALL ON FUNCTION brevet.is_void(asked uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.is_void(asked uuid) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_change_catalogue(change_kind text, doc jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_change_catalogue(change_kind text, doc jsonb) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_move(was text, becomes text, kind text, leased boolean, static boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_move(was text, becomes text, kind text, leased boolean, static boolean) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_register(of text, named text) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_register(of text, named text) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_register(of text, named text, key text) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_register(of text, named text, key text) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_report(asked uuid, holder text) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_report(asked uuid, holder text) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_report_calls(asked uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_report_calls(asked uuid) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.may_unregister(of text, which uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.may_unregister(of text, which uuid) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.outdated(since bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.outdated(since bigint) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.partition_size(grown bigint, during interval, last bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION brevet.redeemable(asked uuid, subject text, code text) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.redeemable(asked uuid, subject text, code text) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.reportable(asked uuid, holder text) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.reportable(asked uuid, holder text) TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.votes TO brevet_broker;
GRANT SELECT ON TABLE brevet.votes TO brevet_auditor;

REVOKE ALL ON FUNCTION brevet.signed(shown text, v brevet.votes) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.signed(shown text, v brevet.votes) TO brevet_broker;

REVOKE ALL ON FUNCTION brevet.tidy_terms() FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.tidy_terms() TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.catalogue_changes TO brevet_broker;
GRANT SELECT ON TABLE brevet.catalogue_changes TO brevet_auditor;

REVOKE ALL ON FUNCTION brevet.voided_by(status text, since bigint, expires_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION brevet.voided_by(status text, since bigint, expires_at timestamp with time zone) TO brevet_broker;
GRANT ALL ON FUNCTION brevet.voided_by(status text, since bigint, expires_at timestamp with time zone) TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.call_reports TO brevet_broker;
GRANT SELECT ON TABLE brevet.call_reports TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.entries TO brevet_broker;
GRANT SELECT ON TABLE brevet.entries TO brevet_auditor;

GRANT SELECT ON TABLE brevet.audit_calls TO brevet_auditor;

GRANT SELECT ON TABLE brevet.audit_issuances TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.task_ends TO brevet_broker;
GRANT SELECT ON TABLE brevet.task_ends TO brevet_auditor;

GRANT UPDATE(ends_at) ON TABLE brevet.task_ends TO brevet_broker;

GRANT UPDATE(ended) ON TABLE brevet.task_ends TO brevet_broker;

GRANT UPDATE(since) ON TABLE brevet.task_ends TO brevet_broker;

GRANT UPDATE(command) ON TABLE brevet.task_ends TO brevet_broker;

GRANT UPDATE(entry_index) ON TABLE brevet.task_ends TO brevet_broker;

GRANT SELECT ON TABLE brevet.audit_tasks TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.uses TO brevet_broker;
GRANT SELECT ON TABLE brevet.uses TO brevet_auditor;

GRANT SELECT ON TABLE brevet.audit_usage TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.people TO brevet_broker;
GRANT SELECT ON TABLE brevet.people TO brevet_auditor;

GRANT UPDATE(name) ON TABLE brevet.people TO brevet_broker;

GRANT UPDATE(handle) ON TABLE brevet.people TO brevet_broker;

GRANT UPDATE(groups) ON TABLE brevet.people TO brevet_broker;

GRANT UPDATE(said_at) ON TABLE brevet.people TO brevet_broker;

GRANT UPDATE(entry) ON TABLE brevet.people TO brevet_broker;

GRANT UPDATE(entry_index) ON TABLE brevet.people TO brevet_broker;

GRANT SELECT ON TABLE brevet.audit_votes TO brevet_auditor;

GRANT SELECT ON TABLE brevet.catalogue_head TO brevet_broker;
GRANT SELECT ON TABLE brevet.catalogue_head TO brevet_auditor;

GRANT UPDATE(version) ON TABLE brevet.catalogue_head TO brevet_broker;

GRANT UPDATE(digest) ON TABLE brevet.catalogue_head TO brevet_broker;

GRANT UPDATE(change) ON TABLE brevet.catalogue_head TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.catalogues TO brevet_broker;
GRANT SELECT ON TABLE brevet.catalogues TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.checkpoints TO brevet_broker;
GRANT SELECT ON TABLE brevet.checkpoints TO brevet_auditor;

GRANT SELECT,INSERT ON TABLE brevet.cosignatures TO brevet_broker;
GRANT SELECT ON TABLE brevet.cosignatures TO brevet_auditor;

GRANT SELECT ON TABLE brevet.deployment TO brevet_broker;

GRANT UPDATE(bootstrap_ended_at) ON TABLE brevet.deployment TO brevet_broker;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.dpop_seen TO brevet_broker;

GRANT SELECT ON TABLE brevet.entry_partitions TO brevet_broker;
GRANT SELECT ON TABLE brevet.entry_partitions TO brevet_auditor;

GRANT SELECT ON TABLE brevet.goose_db_version TO brevet_broker;
GRANT SELECT ON TABLE brevet.goose_db_version TO brevet_auditor;

GRANT SELECT ON TABLE brevet.ledger_head TO brevet_broker;
GRANT SELECT ON TABLE brevet.ledger_head TO brevet_auditor;

GRANT UPDATE(size) ON TABLE brevet.ledger_head TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.passkeys TO brevet_broker;
GRANT SELECT ON TABLE brevet.passkeys TO brevet_auditor;

GRANT UPDATE(removed_at) ON TABLE brevet.passkeys TO brevet_broker;

GRANT UPDATE(removed_index) ON TABLE brevet.passkeys TO brevet_broker;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.quarantines TO brevet_broker;
GRANT SELECT ON TABLE brevet.quarantines TO brevet_auditor;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.rate_limits TO brevet_broker;

GRANT UPDATE(tat) ON TABLE brevet.rate_limits TO brevet_broker;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.replicas TO brevet_broker;

GRANT UPDATE(seen) ON TABLE brevet.replicas TO brevet_broker;

GRANT UPDATE(beat) ON TABLE brevet.replicas TO brevet_broker;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.sessions TO brevet_broker;

GRANT UPDATE(data) ON TABLE brevet.sessions TO brevet_broker;

GRANT UPDATE(ends) ON TABLE brevet.sessions TO brevet_broker;

GRANT SELECT ON TABLE brevet.sweeper_term TO brevet_broker;

GRANT UPDATE(term) ON TABLE brevet.sweeper_term TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.tree_tiles TO brevet_broker;
GRANT SELECT ON TABLE brevet.tree_tiles TO brevet_auditor;

GRANT SELECT,INSERT,DELETE ON TABLE brevet.webhook_notices TO brevet_broker;
GRANT SELECT ON TABLE brevet.webhook_notices TO brevet_auditor;

GRANT UPDATE(due) ON TABLE brevet.webhook_notices TO brevet_broker;

GRANT UPDATE(attempts) ON TABLE brevet.webhook_notices TO brevet_broker;

GRANT SELECT,INSERT ON TABLE brevet.webhooks TO brevet_broker;
GRANT SELECT ON TABLE brevet.webhooks TO brevet_auditor;

GRANT UPDATE(next) ON TABLE brevet.webhooks TO brevet_broker;

GRANT UPDATE(holder) ON TABLE brevet.webhooks TO brevet_broker;

GRANT UPDATE(held_until) ON TABLE brevet.webhooks TO brevet_broker;
