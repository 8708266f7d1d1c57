-- +goose Up

-- Entries of what becomes of catalogues.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected'));

-- catalogue_digest is the digest of a catalogue: the SHA-256 of a line for each file, its own SHA-256 and its name.
-- +goose StatementBegin
CREATE FUNCTION catalogue_digest(names text[], contents bytea[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'sha256:' || encode(sha256(string_agg(
        convert_to(encode(sha256(f.content), 'hex') || '  ' || f.name || E'\n', 'UTF8'), ''::bytea
        ORDER BY f.name COLLATE "C")), 'hex')
    FROM unnest(names, contents) AS f (name, content)
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION catalogue_digest FROM PUBLIC;

-- The files of each catalogue, byte for byte, under the name that they make by themselves.
CREATE TABLE catalogues (
    digest   text COLLATE "C" PRIMARY KEY,
    names    text[] NOT NULL,
    contents bytea[] NOT NULL,
    CONSTRAINT catalogues_digest CHECK (coalesce(cardinality(names) = cardinality(contents)
        AND array_position(names, NULL) IS NULL AND array_position(contents, NULL) IS NULL
        AND digest = catalogue_digest(names, contents), false))
);
CREATE TRIGGER catalogues_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON catalogues
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- What somebody did about catalogues: proposed that one follows on its base, as the version that it would be, put one in
-- force, or turned a proposal down. A proposal is open while its version is the next one and no line names it. Who
-- proposes does not apply. Nobody has applied the first: Brevet itself did, as it was configured.
CREATE TABLE catalogue_changes (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('proposed', 'applied', 'rejected')),
    digest      text COLLATE "C" NOT NULL REFERENCES catalogues (digest),
    base        text COLLATE "C" REFERENCES catalogues (digest),
    version     bigint NOT NULL CHECK (version >= 1),
    proposal    uuid UNIQUE,
    proposer    text COLLATE "C",
    actor       text COLLATE "C" CHECK (actor <> ''),
    reason      text NOT NULL,
    time        timestamptz NOT NULL,
    entry_index bigint NOT NULL UNIQUE,
    UNIQUE (id, digest, version, actor),
    CONSTRAINT catalogue_changes_entry FOREIGN KEY (id, entry_index) REFERENCES entries (id, index),
    CONSTRAINT catalogue_changes_of_proposal FOREIGN KEY (proposal, digest, version, proposer)
        REFERENCES catalogue_changes (id, digest, version, actor),
    CONSTRAINT catalogue_changes_base CHECK ((base IS NULL) = (version = 1) AND digest IS DISTINCT FROM base),
    CONSTRAINT catalogue_changes_actor CHECK (actor IS NOT NULL OR kind = 'applied' AND version = 1),
    CONSTRAINT catalogue_changes_proposal CHECK ((proposal IS NULL) = (proposer IS NULL) AND CASE kind
        WHEN 'proposed' THEN proposal IS NULL
        WHEN 'rejected' THEN proposal IS NOT NULL
        ELSE proposer IS NULL OR proposer <> actor END)
);
CREATE UNIQUE INDEX catalogue_changes_one_of_version ON catalogue_changes (version) WHERE kind = 'applied';
CREATE INDEX catalogue_changes_proposed ON catalogue_changes (version, digest) WHERE kind = 'proposed';
CREATE TRIGGER catalogue_changes_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON catalogue_changes
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The catalogue in force; version 0 is none yet.
CREATE TABLE catalogue_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  bigint NOT NULL CHECK (version >= 0),
    digest   text COLLATE "C" REFERENCES catalogues (digest),
    change   uuid REFERENCES catalogue_changes (id),
    CONSTRAINT catalogue_head_of_change CHECK (num_nulls(digest, change) = CASE version WHEN 0 THEN 2 ELSE 0 END)
);
INSERT INTO catalogue_head (version) VALUES (0);
CREATE TRIGGER catalogue_head_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON catalogue_head
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The head and the changes go together, one version after the other. Both triggers look when the statement is done.
-- +goose StatementBegin
CREATE FUNCTION catalogue_head_follows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 OR NOT EXISTS (
        SELECT FROM catalogue_changes AS c
        WHERE c.id = NEW.change AND c.kind = 'applied' AND c.version = NEW.version AND c.digest = NEW.digest
            AND c.base IS NOT DISTINCT FROM OLD.digest) THEN
        RAISE EXCEPTION 'nobody has applied catalogue version %', NEW.version USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER catalogue_head_follows AFTER UPDATE ON catalogue_head
    FOR EACH ROW EXECUTE FUNCTION catalogue_head_follows();

-- +goose StatementBegin
CREATE FUNCTION catalogue_change_counts() RETURNS trigger LANGUAGE plpgsql AS $$
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
-- +goose StatementEnd
CREATE TRIGGER catalogue_change_counts AFTER INSERT ON catalogue_changes
    FOR EACH ROW EXECUTE FUNCTION catalogue_change_counts();

-- may_change_catalogue tells whether a change that an entry describes follows on what is in force. The caller holds the
-- ledger's lock; it is volatile, so it sees what was committed before that.
-- +goose StatementBegin
CREATE FUNCTION may_change_catalogue(change_kind text, doc jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
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
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION may_change_catalogue FROM PUBLIC;

-- admit is as before, and of each decision comes the catalogue that it was made by: its verdict is superseded when that is
-- not in force (any more). While none ever was, all are.
DROP FUNCTION admit;
-- +goose StatementBegin
CREATE FUNCTION admit(
    subjects text[], keys text[], tasks text[], scopes text[], ends timestamptz[], catalogues text[],
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
        FROM unnest(subjects, keys, tasks, catalogues) WITH ORDINALITY AS t (subject, key, task, catalogue, n)
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

-- A change stands in the entry that it is taken from.
-- +goose StatementBegin
CREATE FUNCTION catalogue_entry_says_so() RETURNS trigger LANGUAGE plpgsql AS $$
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
-- +goose StatementEnd
CREATE TRIGGER catalogue_changes_entry_says_so AFTER INSERT ON catalogue_changes
    FOR EACH ROW EXECUTE FUNCTION catalogue_entry_says_so();


GRANT SELECT, INSERT ON catalogues, catalogue_changes TO brevet_broker;
GRANT SELECT, UPDATE (version, digest, change) ON catalogue_head TO brevet_broker;
GRANT EXECUTE ON FUNCTION admit, catalogue_digest, may_change_catalogue TO brevet_broker;
GRANT SELECT ON catalogues, catalogue_changes, catalogue_head TO brevet_auditor;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['admit', 'catalogue_digest', 'catalogue_head_follows', 'catalogue_change_counts',
        'may_change_catalogue', 'catalogue_entry_says_so'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once there are entries of what it takes back: they are for good.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen'));
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
GRANT EXECUTE ON FUNCTION admit TO brevet_broker;
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.admit SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
DROP TABLE catalogue_head;
DROP TABLE catalogue_changes;
DROP FUNCTION catalogue_entry_says_so;
DROP TABLE catalogues;
DROP FUNCTION may_change_catalogue;
DROP FUNCTION catalogue_change_counts;
DROP FUNCTION catalogue_head_follows;
DROP FUNCTION catalogue_digest;
