-- +goose Up

-- Entries of the states that came with dynamic credentials, and of commands. A record begins once, and so does a
-- command.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired');

-- What Vault was asked for, what it made, and who ended that. A leased credential can be ended in Vault, a static one
-- by nobody.
ALTER TABLE issuances
    ADD COLUMN vault_path      text,
    ADD COLUMN vault_accessor  text,
    ADD COLUMN vault_lease     text,
    ADD COLUMN credential_name text,
    ADD COLUMN secret_digest   bytea,
    ADD COLUMN actor           text,
    ADD COLUMN leased          boolean NOT NULL DEFAULT false,
    ADD COLUMN static          boolean NOT NULL DEFAULT false,
    -- One constraint, because each costs every append some time.
    ADD CONSTRAINT issuances_vault_check CHECK (
        '' <> ALL (ARRAY[vault_path, vault_accessor, vault_lease, credential_name, actor])
        AND octet_length(secret_digest) = 32),
    DROP CONSTRAINT issuances_credential_kind_check,
    ADD CONSTRAINT issuances_credential_kind_check
        CHECK (credential_kind IN ('jwt', 'vault-token', 'database', 'pki', 'ssh', 'kv', 'vault')),
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK (CASE decision
        WHEN 'deny' THEN status = 'denied'
        WHEN 'pending' THEN status = 'pending'
        WHEN 'allow' THEN status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
            'released', 'expired')
        ELSE false END),
    DROP CONSTRAINT issuances_detail,
    ADD CONSTRAINT issuances_detail CHECK ((status_detail IS NOT NULL) = (status IN
        ('failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released'))),
    DROP CONSTRAINT issuances_intent,
    ADD CONSTRAINT issuances_intent CHECK (CASE
        WHEN decision <> 'allow' THEN
            num_nonnulls(credential_kind, audience, key_id, claims_digest, vault_path) = 0 AND NOT leased AND NOT static
        WHEN credential_kind = 'jwt' THEN
            num_nulls(audience, key_id, claims_digest) = 0 AND vault_path IS NULL AND NOT leased AND NOT static
        ELSE credential_kind IS NOT NULL AND num_nonnulls(audience, key_id, claims_digest) = 0
            AND (vault_path IS NULL) = (credential_kind = 'vault-token') AND NOT (leased AND static) END),
    -- Nothing is known of what Vault made before it was asked. What is leased can be found again, to be ended; a static
    -- secret could be guessed from its digest.
    ADD CONSTRAINT issuances_minted CHECK (CASE
        WHEN decision <> 'allow' OR credential_kind = 'jwt' OR status = 'intent' THEN
            num_nonnulls(vault_accessor, vault_lease, credential_name, secret_digest) = 0
        ELSE (NOT leased OR status <> 'issued' OR num_nonnulls(vault_accessor, vault_lease) > 0)
            AND (NOT static OR secret_digest IS NULL) END),
    DROP CONSTRAINT issuances_key_freed,
    -- A request that came to nothing gives its key back, so that a retry with it may run.
    ADD CONSTRAINT issuances_key_freed CHECK (status NOT IN ('failed', 'unknown', 'compensated') OR idempotency_key IS NULL);

-- may_move is the state machine. A JWT and an SSH certificate end by one move, because nobody but Brevet has to
-- confirm it; what Vault holds ends in Vault, and until Vault has confirmed that it is revoking; and what is static does
-- not end here at all.
-- +goose StatementBegin
CREATE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
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
REVOKE EXECUTE ON FUNCTION may_move FROM PUBLIC;

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
CREATE FUNCTION refuse_beginning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a request does not begin as %', NEW.status USING ERRCODE = 'check_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER issuances_begin BEFORE INSERT ON issuances FOR EACH ROW WHEN (
    NEW.status IS DISTINCT FROM CASE
        WHEN NEW.decision = 'deny' THEN 'denied'
        WHEN NEW.decision = 'pending' THEN 'pending'
        WHEN NEW.credential_kind = 'jwt' THEN 'issued'
        ELSE 'intent' END
    OR num_nonnulls(NEW.status_detail, NEW.actor) > 0
) EXECUTE FUNCTION refuse_beginning();

-- What may be alive, by whom it is counted and by when it ends; and of that, what is not over because its time is.
-- In the first, what ends in the same hour lies together, by sandbox: few looks then find what is below a path and has
-- time left, however much there was before.
CREATE INDEX issuances_alive ON issuances (date_bin('1 hour', expires_at, '2000-01-01 00:00:00Z'), spiffe_id, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
CREATE INDEX issuances_alive_of_sandbox ON issuances (spiffe_id, scope, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
CREATE INDEX issuances_alive_of_trust_domain ON issuances (trust_domain, scope, expires_at)
    WHERE status IN ('intent', 'issued', 'unknown', 'revoking');
CREATE INDEX issuances_unfinished ON issuances (status, expires_at)
    WHERE status IN ('intent', 'unknown', 'revoking') OR (status = 'issued' AND leased);

-- When tasks end, or ended, and since when that is ordered: a projection of the commands. An end can be brought forward,
-- and is never undone.
CREATE TABLE task_ends (
    spiffe_id   text COLLATE "C" NOT NULL CHECK (spiffe_id ~ '^spiffe://[^/]+/.'),
    task        text COLLATE "C" NOT NULL CHECK (task <> ''),
    ends_at     timestamptz NOT NULL,
    ended       boolean NOT NULL,
    since       timestamptz NOT NULL,
    command     uuid NOT NULL,
    entry_index bigint NOT NULL,
    PRIMARY KEY (spiffe_id, task),
    CONSTRAINT task_ends_entry FOREIGN KEY (command, entry_index) REFERENCES entries (id, index)
);
CREATE INDEX task_ends_due ON task_ends (ends_at) WHERE NOT ended;
CREATE INDEX task_ends_ordered ON task_ends (since) WHERE ended;
CREATE TRIGGER task_ends_only_sooner BEFORE UPDATE ON task_ends FOR EACH ROW WHEN (
    NEW.ends_at > OLD.ends_at OR (OLD.ended AND NOT NEW.ended)
    OR (NEW.spiffe_id, NEW.task) IS DISTINCT FROM (OLD.spiffe_id, OLD.task)
) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER task_ends_are_kept BEFORE DELETE OR TRUNCATE ON task_ends
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The standing quarantines: of a SPIFFE ID, of all below a path, or of a trust domain.
CREATE TABLE quarantines (
    spiffe_id   text COLLATE "C" PRIMARY KEY CHECK (spiffe_id ~ '^spiffe://[^/]+(/[^/]+)*$'),
    since       timestamptz NOT NULL,
    actor       text CHECK (actor <> ''),
    reason      text NOT NULL,
    command     uuid NOT NULL,
    entry_index bigint NOT NULL,
    CONSTRAINT quarantines_entry FOREIGN KEY (command, entry_index) REFERENCES entries (id, index)
);
CREATE TRIGGER quarantines_do_not_change BEFORE UPDATE OR TRUNCATE ON quarantines
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- Counts who has been the sweeper. A move by one that no longer leads is refused.
CREATE TABLE sweeper_term (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    term     bigint NOT NULL CHECK (term >= 0)
);
INSERT INTO sweeper_term (term) VALUES (0);
CREATE TRIGGER sweeper_term_only_grows BEFORE UPDATE ON sweeper_term FOR EACH ROW
    WHEN (NEW.term <= OLD.term OR NOT NEW.only_row) EXECUTE FUNCTION forbid_change();
CREATE TRIGGER sweeper_term_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON sweeper_term
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- A limit is forgotten only when it would say the same without its row.
CREATE TRIGGER rate_limits_are_kept BEFORE DELETE ON rate_limits FOR EACH ROW
    WHEN (OLD.tat > now() - interval '1 hour') EXECUTE FUNCTION forbid_change();

-- admit makes the caller the only appender until it commits, and judges the items of a batch one after the other. It is
-- a function because it must see what other appenders committed while it waited for the lock.
--
-- Of each item come the subject, when it has an idempotency key or is no denial; the key; and of what is no denial the
-- task and the scope, and the end when it is allowed. Of each limit, in the order of the items, come the item, the key,
-- the microseconds between two requests and the burst; or, with what is counted alive per, how many may be.
--
-- The verdict on an item is null when it may pass: then it counts against all of its limits at once. Else it is
-- repeated (its key is used already), quarantined, task_ended or limited, and then come the place among its limits of
-- the one that it is over and the microseconds until it would pass. The term is that of the leading sweeper. Time is
-- the database's, read under the lock, so that replicas whose clocks differ count alike.
DROP FUNCTION admit;
-- +goose StatementBegin
CREATE FUNCTION admit(
    subjects text[], keys text[], tasks text[], scopes text[], ends timestamptz[],
    limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[], alive_per text[],
    OUT verdicts text[], OUT reached bigint[], OUT waits bigint[], OUT current_term bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prior    bigint[]; -- the item before with the same idempotency key
    moment   timestamptz;
    first    bigint;
    beyond   bigint := 1;
    tightest bigint;
    excess   interval;
BEGIN
    PERFORM FROM ledger_head FOR UPDATE;
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
                WHEN t.task IS NULL THEN NULL
                -- The ID itself, each path above it, and its trust domain.
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
        FROM unnest(subjects, keys, tasks) WITH ORDINALITY AS t (subject, key, task, n)
    ) AS asked;
    FOR item IN 1 .. cardinality(keys) LOOP
        first := beyond;
        WHILE limit_items[beyond] = item LOOP
            beyond := beyond + 1;
        END LOOP;
        -- A key belongs to the first request that passes with it.
        IF prior[item] IS NOT NULL AND coalesce(verdicts[prior[item]], 'repeated') = 'repeated' THEN
            verdicts[item] := 'repeated';
        END IF;
        CONTINUE WHEN verdicts[item] IS NOT NULL OR first = beyond;
        IF array_remove(alive_per[first:beyond - 1], NULL) <> '{}' THEN
            -- What the batch itself begins is not in the table yet.
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
REVOKE EXECUTE ON FUNCTION admit FROM PUBLIC;

GRANT UPDATE (vault_accessor, vault_lease, credential_name, secret_digest, actor) ON issuances TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (ends_at, ended, since, command, entry_index) ON task_ends TO brevet_broker;
GRANT SELECT, INSERT, DELETE ON quarantines TO brevet_broker;
GRANT SELECT, UPDATE (term) ON sweeper_term TO brevet_broker;
GRANT DELETE ON rate_limits TO brevet_broker;
GRANT EXECUTE ON FUNCTION admit, may_move TO brevet_broker;
GRANT SELECT ON task_ends, quarantines TO brevet_auditor;

-- Whatever a session calls its own, temporary tables included, the functions look at what is here.
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['forbid_change', 'only_grow', 'entries_reach_head', 'head_counts_entries', 'only_forward',
        'refuse_beginning', 'may_move', 'admit'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once there are entries or records of what it takes back: they are for good.
ALTER FUNCTION forbid_change RESET search_path;
ALTER FUNCTION only_grow RESET search_path;
ALTER FUNCTION entries_reach_head RESET search_path;
ALTER FUNCTION head_counts_entries RESET search_path;
REVOKE DELETE ON rate_limits FROM brevet_broker;
DROP TRIGGER rate_limits_are_kept ON rate_limits;
DROP TABLE sweeper_term;
DROP TABLE quarantines;
DROP TABLE task_ends;
DROP INDEX issuances_unfinished;
DROP INDEX issuances_alive_of_trust_domain;
DROP INDEX issuances_alive_of_sandbox;
DROP INDEX issuances_alive;
DROP TRIGGER issuances_begin ON issuances;
DROP FUNCTION refuse_beginning;
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN
    ('request.denied', 'request.pending', 'issuance.intent', 'issuance.failed', 'call.refused'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind <> 'issuance.failed';
ALTER TABLE issuances
    DROP CONSTRAINT issuances_credential_kind_check,
    ADD CONSTRAINT issuances_credential_kind_check CHECK (credential_kind IN ('jwt')),
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK ((decision, status) IN (
        ('deny', 'denied'), ('pending', 'pending'), ('allow', 'issued'), ('allow', 'failed'))),
    DROP CONSTRAINT issuances_detail,
    ADD CONSTRAINT issuances_detail CHECK ((status_detail IS NOT NULL) = (status = 'failed')),
    DROP CONSTRAINT issuances_intent,
    ADD CONSTRAINT issuances_intent CHECK (num_nulls(credential_kind, audience, key_id, claims_digest)
        = CASE decision WHEN 'allow' THEN 0 ELSE 4 END),
    DROP CONSTRAINT issuances_minted,
    DROP CONSTRAINT issuances_vault_check,
    DROP CONSTRAINT issuances_key_freed,
    ADD CONSTRAINT issuances_key_freed CHECK (status <> 'failed' OR idempotency_key IS NULL),
    DROP COLUMN static,
    DROP COLUMN leased,
    DROP COLUMN actor,
    DROP COLUMN secret_digest,
    DROP COLUMN credential_name,
    DROP COLUMN vault_lease,
    DROP COLUMN vault_accessor,
    DROP COLUMN vault_path;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    moving constant text[] := '{status,status_detail,status_time,idempotency_key}';
BEGIN
    IF (OLD.status, NEW.status) NOT IN (
        ('issued', 'failed')
    ) THEN
        RAISE EXCEPTION 'a request does not move from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation';
    END IF;
    IF to_jsonb(NEW) - moving <> to_jsonb(OLD) - moving OR NEW.idempotency_key IS NOT NULL THEN
        RAISE EXCEPTION 'what was recorded about a request does not change' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
DROP FUNCTION may_move;
DROP FUNCTION admit;
-- +goose StatementBegin
CREATE FUNCTION admit(
    subjects text[], keys text[], limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[],
    OUT repeated boolean[], OUT reached text[], OUT waits bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prior    bigint[]; -- the item before with the same idempotency key
    moment   timestamptz;
    first    bigint;
    beyond   bigint := 1;
    tightest text;
    excess   interval;
BEGIN
    PERFORM FROM ledger_head FOR UPDATE;
    SELECT array_agg(asked.used ORDER BY asked.n), array_agg(asked.prior ORDER BY asked.n) INTO repeated, prior
    FROM (
        SELECT t.n,
            t.key IS NOT NULL AND EXISTS (
                SELECT FROM issuances AS i WHERE i.spiffe_id = t.subject AND i.idempotency_key = t.key) AS used,
            CASE WHEN t.key IS NOT NULL THEN lag(t.n) OVER (PARTITION BY t.subject, t.key ORDER BY t.n) END AS prior
        FROM unnest(subjects, keys) WITH ORDINALITY AS t (subject, key, n)
    ) AS asked;
    moment := clock_timestamp();
    FOR item IN 1 .. cardinality(keys) LOOP
        first := beyond;
        WHILE limit_items[beyond] = item LOOP
            beyond := beyond + 1;
        END LOOP;
        -- A key belongs to the first request that was not over a limit.
        IF prior[item] IS NOT NULL AND reached[prior[item]] IS NULL THEN
            repeated[item] := true;
        END IF;
        CONTINUE WHEN repeated[item] OR first = beyond;
        SELECT l.key, greatest(r.tat - moment, interval '0') + (1 - l.burst) * l.emission * interval '1 microsecond'
        INTO tightest, excess
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1], bursts[first:beyond - 1])
            AS l (key, emission, burst)
            LEFT JOIN rate_limits AS r ON r.key = l.key
        ORDER BY 2 DESC LIMIT 1;
        IF excess > interval '0' THEN
            reached[item] := tightest;
            waits[item] := ceil(extract(epoch FROM excess) * 1000000);
            CONTINUE;
        END IF;
        INSERT INTO rate_limits AS r (key, tat)
        SELECT l.key, moment + l.emission * interval '1 microsecond'
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1]) AS l (key, emission)
        ON CONFLICT (key) DO UPDATE SET tat = greatest(r.tat, moment) + (excluded.tat - moment);
    END LOOP;
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION admit FROM PUBLIC;
GRANT EXECUTE ON FUNCTION admit TO brevet_broker;
