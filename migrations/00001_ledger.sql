-- +goose Up

-- The number of entries. Every append bumps it first, so its row is the lock that orders all appends.
CREATE TABLE ledger_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    size     bigint NOT NULL CHECK (size >= 0)
) WITH (fillfactor = 10);
INSERT INTO ledger_head (size) VALUES (0);

-- What all replicas share and nobody else needs to know: the key that list cursors are sealed with.
CREATE TABLE deployment (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cursor_key bytea NOT NULL CHECK (octet_length(cursor_key) = 32)
);
INSERT INTO deployment (cursor_key)
    VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

-- Every event, for good. Entry n is the leaf n of a Merkle tree as in RFC 6962, so the index counts from 0 and has
-- no gaps. The id is the request's; a refused call, which never became a request, has one of its own. What stands
-- beside the body cannot say something else than the body.
CREATE TABLE entries (
    index     bigint PRIMARY KEY CHECK (index >= 0),
    id        uuid NOT NULL,
    time      timestamptz NOT NULL,
    kind      text COLLATE "C" NOT NULL CHECK (kind IN
                  ('request.denied', 'request.pending', 'issuance.intent', 'issuance.failed', 'call.refused')),
    body      bytea NOT NULL CHECK (octet_length(body) <= 65536),
    leaf_hash bytea NOT NULL CHECK (leaf_hash = sha256('\x00'::bytea || body)),
    CONSTRAINT entries_body_agrees CHECK (
        convert_from(body, 'UTF8')::jsonb @> jsonb_build_object('kind', kind, 'id', id)),
    CONSTRAINT entries_of_record UNIQUE (id, index)
);
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind <> 'issuance.failed';

-- The current state of each request: a projection that can be rebuilt from the entries. Identifiers compare
-- bytewise, so that a prefix is a range.
CREATE TABLE issuances (
    id              uuid PRIMARY KEY,
    entry_index     bigint NOT NULL,
    time            timestamptz NOT NULL,
    trust_domain    text COLLATE "C" NOT NULL CHECK (trust_domain <> ''),
    spiffe_id       text COLLATE "C" NOT NULL,
    svid_kind       text NOT NULL CHECK (svid_kind IN ('x509-svid', 'jwt-svid')),
    thumbprint      text NOT NULL,
    task            text COLLATE "C" NOT NULL CHECK (task <> ''),
    scope           text COLLATE "C" NOT NULL CHECK (scope <> ''),
    authority       text NOT NULL, -- empty when the scope was unknown
    resource        text NOT NULL,
    params          jsonb NOT NULL CHECK (jsonb_typeof(params) = 'object'),
    reason          text NOT NULL,
    ttl_asked       bigint NOT NULL, -- seconds, 0 for the default
    ttl             bigint NOT NULL, -- seconds
    decision        text COLLATE "C" NOT NULL,
    decision_code   text NOT NULL CHECK (decision_code <> ''),
    explanation     text NOT NULL,
    policies        text[] NOT NULL,
    clamps          text[] NOT NULL,
    catalogue       text NOT NULL CHECK (catalogue <> ''),
    status          text COLLATE "C" NOT NULL,
    status_detail   text CHECK (status_detail <> ''),
    status_time     timestamptz NOT NULL,
    expires_at      timestamptz,
    approval_group  text CHECK (approval_group <> ''),
    approval_quorum integer CHECK (approval_quorum >= 1),
    credential_kind text CHECK (credential_kind IN ('jwt')),
    audience        text CHECK (audience <> ''),
    key_id          text CHECK (key_id <> ''),
    claims_digest   bytea CHECK (octet_length(claims_digest) = 32),
    request_digest  bytea NOT NULL CHECK (octet_length(request_digest) = 32),
    idempotency_key text CHECK (idempotency_key <> ''),
    CONSTRAINT issuances_entry FOREIGN KEY (id, entry_index) REFERENCES entries (id, index),
    CONSTRAINT issuances_trust_domain CHECK (starts_with(spiffe_id, 'spiffe://' || trust_domain || '/')),
    CONSTRAINT issuances_thumbprint CHECK ((thumbprint <> '') = (svid_kind = 'x509-svid')),
    CONSTRAINT issuances_state CHECK ((decision, status) IN (
        ('deny', 'denied'), ('pending', 'pending'), ('allow', 'issued'), ('allow', 'failed'))),
    CONSTRAINT issuances_detail CHECK ((status_detail IS NOT NULL) = (status = 'failed')),
    CONSTRAINT issuances_intent CHECK (num_nulls(credential_kind, audience, key_id, claims_digest)
        = CASE decision WHEN 'allow' THEN 0 ELSE 4 END),
    CONSTRAINT issuances_approval CHECK (num_nulls(approval_group, approval_quorum)
        = CASE decision WHEN 'pending' THEN 0 ELSE 2 END),
    CONSTRAINT issuances_expiry CHECK (CASE decision WHEN 'deny' THEN expires_at IS NULL
        ELSE coalesce(expires_at > time, false) END),
    CONSTRAINT issuances_ttl CHECK (ttl_asked >= 0 AND ttl >= CASE decision WHEN 'deny' THEN 0 ELSE 1 END),
    -- A failed request gives its key back, so that a retry with it may run.
    CONSTRAINT issuances_key_freed CHECK (status <> 'failed' OR idempotency_key IS NULL)
);

-- One index for each filter, in the order of the listing. What most records are is not worth an index.
CREATE UNIQUE INDEX issuances_entry_index ON issuances (entry_index);
CREATE UNIQUE INDEX issuances_idempotency ON issuances (spiffe_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX issuances_by_trust_domain ON issuances (trust_domain, entry_index DESC);
CREATE INDEX issuances_by_spiffe_id ON issuances (spiffe_id, entry_index DESC);
CREATE INDEX issuances_by_scope ON issuances (scope, entry_index DESC);
CREATE INDEX issuances_by_task ON issuances (task, entry_index DESC);
CREATE INDEX issuances_by_status ON issuances (status, entry_index DESC) WHERE status <> 'issued';
CREATE INDEX issuances_by_decision ON issuances (decision, entry_index DESC) WHERE decision <> 'allow';
CREATE INDEX issuances_by_time ON issuances (time);

-- +goose StatementBegin
CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
-- +goose StatementEnd

-- The owner is held too, short of dropping the triggers.
CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
CREATE TRIGGER issuances_are_kept BEFORE DELETE OR TRUNCATE ON issuances
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
CREATE TRIGGER ledger_head_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON ledger_head
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- +goose StatementBegin
CREATE FUNCTION only_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size < OLD.size THEN
        RAISE EXCEPTION 'the ledger has % entries and cannot shrink to %', OLD.size, NEW.size
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER ledger_head_only_grows BEFORE UPDATE ON ledger_head
    FOR EACH ROW EXECUTE FUNCTION only_grow();

-- The index has no gaps and nothing lies ahead of the head, whoever appends: what a statement inserts are exactly the
-- entries that it moved the head over. Both triggers look when the statement is done.
-- +goose StatementBegin
CREATE FUNCTION entries_reach_head() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lowest  bigint;
    highest bigint;
    added   bigint;
BEGIN
    SELECT min(index), max(index), count(*) INTO lowest, highest, added FROM added_entries;
    IF added > 0 AND (highest <> (SELECT size FROM ledger_head) - 1 OR lowest <> highest - added + 1) THEN
        RAISE EXCEPTION 'entries % to % do not end at the head', lowest, highest USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER entries_reach_head AFTER INSERT ON entries
    REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION entries_reach_head();

-- +goose StatementBegin
CREATE FUNCTION head_counts_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size <> (SELECT coalesce(max(index), -1) + 1 FROM entries) THEN
        RAISE EXCEPTION 'the head counts % entries, which is not how many there are', NEW.size
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER head_counts_entries AFTER UPDATE ON ledger_head
    FOR EACH ROW EXECUTE FUNCTION head_counts_entries();

-- +goose StatementBegin
CREATE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER issuances_only_forward BEFORE UPDATE ON issuances
    FOR EACH ROW EXECUTE FUNCTION only_forward();

-- The limits of scopes, as the generic cell rate algorithm keeps them: when the next request would arrive if all that
-- were counted had kept their distance. A time in the past counts as no row.
CREATE TABLE rate_limits (
    key text COLLATE "C" PRIMARY KEY CHECK (key <> ''),
    tat timestamptz NOT NULL
);

-- admit makes the caller the only appender until it commits, and judges the items of a batch one after the other. It
-- is a function because it must see what other appenders committed while it waited for the lock: by item, whether its idempotency key is used already, or else the key of the limit it is over and
-- the microseconds until it would pass. An item that is neither counts at once against each of its limits, which are
-- given in the order of the items: the item, the key, the microseconds between two requests, and the burst. Time is
-- the database's, read under the lock, so that replicas whose clocks differ count alike.
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

-- +goose Down
DROP FUNCTION admit;
DROP TABLE rate_limits;
DROP TABLE issuances;
DROP TABLE entries;
DROP TABLE deployment;
DROP TABLE ledger_head;
DROP FUNCTION only_forward;
DROP FUNCTION head_counts_entries;
DROP FUNCTION entries_reach_head;
DROP FUNCTION only_grow;
DROP FUNCTION forbid_change;
