-- +goose Up
-- +goose StatementBegin

-- Sessions, replicas, the bootstrap admin, and the rights of the database roles.

-- Sessions of the console. id is the SHA-256 of the cookie, and data is sealed with a key derived from the cookie: somebody who reads this
-- table can neither take over a session nor see its tokens.
CREATE TABLE sessions (
    id   bytea PRIMARY KEY CHECK (octet_length(id) = 32),
    data bytea NOT NULL CHECK (octet_length(data) <= 65536),
    ends timestamptz NOT NULL
);
CREATE INDEX sessions_end ON sessions (ends);

-- DPoP proofs that were used, by a digest of their key and jti. A row stays until a minute after the proof has expired, because clocks
-- differ.
CREATE TABLE dpop_seen (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    until  timestamptz NOT NULL
);
CREATE INDEX dpop_seen_until ON dpop_seen (until);
CREATE TRIGGER dpop_seen_is_kept BEFORE DELETE ON dpop_seen FOR EACH ROW
    WHEN (OLD.until > now() - interval '1 minute') EXECUTE FUNCTION forbid_change();

-- Replicas that answer for tokens from a cache. seen is the number of entries that a replica has read, and beat counts its heartbeats. A
-- revocation is confirmed when every replica has read it, or has stopped its heartbeat long enough for its cache to have expired.
CREATE TABLE replicas (
    id   uuid PRIMARY KEY,
    seen bigint NOT NULL CHECK (seen >= 0),
    beat bigint NOT NULL
);

-- A replica that reported too much would make others confirm a revocation too early.
CREATE FUNCTION replica_reads_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.seen > (SELECT size FROM ledger_head)
        OR TG_OP = 'UPDATE' AND (NEW.id <> OLD.id OR NEW.seen < OLD.seen OR NEW.beat <= OLD.beat) THEN
        RAISE EXCEPTION 'replica % cannot have read up to %', NEW.id, NEW.seen USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER replicas_read_on AFTER INSERT OR UPDATE ON replicas FOR EACH ROW EXECUTE FUNCTION replica_reads_on();

-- What belongs to the deployment as a whole: the key that seals list cursors, and the period of its bootstrap admin. That period begins
-- with the first migration or the first entry, so neither an upgrade nor a repeated migration opens it again.
CREATE TABLE deployment (
    only_row           boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cursor_key         bytea NOT NULL CHECK (octet_length(cursor_key) = 32),
    created_at         timestamptz NOT NULL,
    bootstrap_ended_at timestamptz
);
INSERT INTO deployment (cursor_key, created_at) VALUES (
    sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    least(clock_timestamp(), (SELECT min(tstamp) FROM goose_db_version), (SELECT time FROM entries WHERE index = 0)));

-- The bootstrap admin ends once, at the database's time.
CREATE FUNCTION bootstrap_ends_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.created_at <> OLD.created_at OR OLD.bootstrap_ended_at IS NOT NULL
        OR NEW.bootstrap_ended_at NOT BETWEEN statement_timestamp() AND clock_timestamp() THEN
        RAISE EXCEPTION 'the bootstrap admin ends once, now, and does not begin again' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER deployment_bootstrap_ends_once BEFORE UPDATE OF created_at, bootstrap_ended_at ON deployment
    FOR EACH ROW EXECUTE FUNCTION bootstrap_ends_once();
CREATE TRIGGER deployment_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON deployment
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- Every function resolves names in this schema first and in a session's temporary schema last, so that no session can put its own table or
-- function in place of one of these. Functions with a body in standard SQL have bound their names already, and keep_rules names
-- the schema. A later migration does the same for functions that it adds.
DO $$
DECLARE
    ours regprocedure;
BEGIN
    FOR ours IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosqlbody IS NULL
        AND proname <> 'keep_rules' LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', ours, current_schema());
    END LOOP;
END $$;

-- The roles are groups: a login gets its rights by membership. Roles belong to the whole cluster, so another schema may have created them,
-- even at this moment, or an administrator where this login may not.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['brevet_broker', 'brevet_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), wanted);
    END LOOP;
END $$;

-- The broker appends to the ledger, and updates only what the state machines move.
GRANT SELECT, INSERT ON entries, tree_tiles, checkpoints, cosignatures TO brevet_broker;
GRANT SELECT, UPDATE (size) ON ledger_head TO brevet_broker;
GRANT SELECT ON entry_partitions TO brevet_broker;
GRANT SELECT,
    UPDATE (status, status_detail, status_time, idempotency_key, vault_accessor, vault_lease, credential_name, secret_digest, actor,
        votes, redemptions, redeemed_by, remembered)
    ON issuances TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (ends_at, ended, since, command, entry_index) ON task_ends TO brevet_broker;
GRANT SELECT, INSERT, DELETE ON quarantines TO brevet_broker;
GRANT SELECT, UPDATE (term) ON sweeper_term TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (tat), DELETE ON rate_limits TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (name, handle, groups, said_at, entry, entry_index) ON people TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (removed_at, removed_index) ON passkeys TO brevet_broker;
GRANT SELECT, INSERT ON votes TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (next, holder, held_until) ON webhooks TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (due, attempts), DELETE ON webhook_notices TO brevet_broker;
GRANT SELECT, INSERT ON catalogues, catalogue_changes TO brevet_broker;
GRANT SELECT, UPDATE (version, digest, change) ON catalogue_head TO brevet_broker;
GRANT SELECT, INSERT ON uses, call_reports TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (data, ends), DELETE ON sessions TO brevet_broker;
GRANT SELECT, INSERT, DELETE ON dpop_seen TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (seen, beat), DELETE ON replicas TO brevet_broker;
GRANT SELECT, UPDATE (bootstrap_ended_at) ON deployment TO brevet_broker;
GRANT SELECT ON goose_db_version TO brevet_broker;

-- An auditor reads the record, and nothing that only serves the broker's operation.
GRANT SELECT ON ledger_head, entries, entry_partitions, tree_tiles, checkpoints, cosignatures,
    issuances, task_ends, quarantines, people, passkeys, votes, webhooks, webhook_notices,
    catalogues, catalogue_changes, catalogue_head, uses, call_reports,
    audit_issuances, audit_votes, audit_tasks, audit_usage, audit_calls, goose_db_version TO brevet_auditor;

-- PostgreSQL lets everybody call a new function. Only a trigger can call a trigger function, but whoever may call one can put it on a table
-- of their own. So follow_entries, which runs as the owner, is closed too. issuance_terms stays open: the index calls it with the rights of
-- whoever writes.
REVOKE EXECUTE ON FUNCTION partition_size, guard_partition, add_partition, extend_entries, follow_entries,
    broken_rule, may_move, admit, signed, approved_by, enough, crowded, redeemable,
    may_register(text, text), may_register(text, text, text), may_unregister,
    catalogue_digest, may_change_catalogue, outdated, is_void, voided_by, tidy_terms, reportable, may_report, may_report_calls FROM PUBLIC;
GRANT EXECUTE ON FUNCTION extend_entries,
    broken_rule, may_move, admit, signed, approved_by, enough, crowded, redeemable,
    may_register(text, text), may_register(text, text, text), may_unregister,
    catalogue_digest, may_change_catalogue, outdated, is_void, voided_by, tidy_terms, reportable, may_report, may_report_calls TO brevet_broker;
GRANT EXECUTE ON FUNCTION voided_by TO brevet_auditor; -- audit_issuances calls it

-- +goose StatementEnd

-- +goose Down
-- The roles stay: other schemas of the cluster may use them.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM brevet_broker, brevet_auditor', current_schema());
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM brevet_broker, brevet_auditor', current_schema());
    EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM brevet_broker, brevet_auditor', current_schema());
END $$;
-- +goose StatementEnd
DROP TABLE deployment;
DROP FUNCTION bootstrap_ends_once;
DROP TABLE replicas;
DROP FUNCTION replica_reads_on;
DROP TABLE dpop_seen;
DROP TABLE sessions;
