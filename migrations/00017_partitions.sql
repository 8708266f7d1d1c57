-- +goose Up

-- That old entries were dropped is an entry itself.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected', 'ledger.pruned'));

-- Entries are never deleted but with all that names them, so what a foreign key does beyond looking for the entry is not
-- needed, and it would be in the way when partitions come and go. Of people, votes and changes of the catalogue triggers
-- read the entry itself; of the others those below look whether it is there.
ALTER TABLE issuances DROP CONSTRAINT issuances_entry;
ALTER TABLE task_ends DROP CONSTRAINT task_ends_entry;
ALTER TABLE quarantines DROP CONSTRAINT quarantines_entry;
ALTER TABLE people DROP CONSTRAINT people_entry;
ALTER TABLE votes DROP CONSTRAINT votes_entry;
ALTER TABLE catalogue_changes DROP CONSTRAINT catalogue_changes_entry;
ALTER TABLE webhook_notices DROP CONSTRAINT webhook_notices_entry_index_fkey;

-- The table that there was becomes the first partition: no row is written, each is read once. Issuances stay one table: every append and every check of a credential looks for a record by its
-- id, or by its sandbox, which is one step in one index and would be one in each of them.
ALTER TABLE entries RENAME TO entries_0;
ALTER INDEX entries_pkey RENAME TO entries_0_pkey;
ALTER INDEX entries_of_record RENAME TO entries_0_id_index_key;
ALTER INDEX entries_to_revoke RENAME TO entries_0_index_idx;
DROP INDEX entries_one_beginning;
DROP TRIGGER entries_reach_head ON entries_0;
DROP TRIGGER entries_append_only ON entries_0;
REVOKE ALL ON entries_0 FROM brevet_broker, brevet_auditor;
CREATE TABLE entries (LIKE entries_0 INCLUDING CONSTRAINTS) PARTITION BY RANGE (index);
ALTER TABLE entries ADD CONSTRAINT entries_pkey PRIMARY KEY (index), ADD CONSTRAINT entries_of_record UNIQUE (id, index);
CREATE INDEX entries_to_revoke ON entries (index) WHERE kind = 'credentials.revoke';
CREATE INDEX entries_of_tasks ON entries (index) WHERE kind = 'task.end';
CREATE INDEX entries_of_prunes ON entries (index) WHERE kind = 'ledger.pruned';
GRANT SELECT, INSERT ON entries TO brevet_broker;
GRANT SELECT ON entries TO brevet_auditor;

CREATE VIEW entry_partitions AS
SELECT c.relname::text AS name, (regexp_match(b.bounds, 'FROM \(''(\d+)''\)'))[1]::bigint AS first,
    (regexp_match(b.bounds, 'TO \(''(\d+)''\)'))[1]::bigint AS beyond
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid, LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) AS b
WHERE i.inhparent = 'entries'::regclass;
GRANT SELECT ON entry_partitions TO brevet_broker, brevet_auditor;

-- partition_size is how many entries the next partition should have: what comes in about a month, when so many came during
-- so long, a day at the least. It is a power of two, from 2^12 to 2^22, and at most eight times the size of the last.
-- +goose StatementBegin
CREATE FUNCTION partition_size(grown bigint, during interval, last bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT 1::bigint << least(22, greatest(12, least(
        ceil(log(2, greatest(grown, 1) * 2592000 / greatest(extract(epoch FROM during), 86400))),
        ceil(log(2, greatest(last, 1))) + 3)))::integer
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION partition_size FROM PUBLIC;

-- guard_partition gives a partition what it does not have from the table. That begins once what begins, each partition sees for
-- itself, and entries_reach_head across them. Nobody inserts into a partition but through the table.
-- +goose StatementBegin
CREATE FUNCTION guard_partition(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (id)
        WHERE kind = ''issuance.intent'' OR kind NOT LIKE ''issuance.%%'' AND kind NOT LIKE ''approval.%%''', name || '_one_beginning', name);
    EXECUTE format('CREATE TRIGGER %I BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()', name || '_append_only', name);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION guard_partition FROM PUBLIC;

-- add_partition makes a partition after the last one. Tiles of the tree do not cross its bounds.
-- +goose StatementBegin
CREATE FUNCTION add_partition(size bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
    name  text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('brevet/partitions/' || current_schema(), 0));
    SELECT coalesce(max(p.beyond), 0) INTO first FROM entry_partitions AS p;
    IF size < 256 OR size % 256 <> 0 THEN
        RAISE EXCEPTION 'a partition has whole tiles of 256 entries, not % entries', size USING ERRCODE = 'check_violation';
    END IF;
    name := 'entries_' || first;
    EXECUTE format('CREATE TABLE %I (LIKE entries INCLUDING ALL)', name);
    PERFORM guard_partition(name);
    EXECUTE format('ALTER TABLE entries ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', name, first, first + size);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION add_partition FROM PUBLIC;

-- extend_entries sees to it that a whole empty partition is ahead. It is for whoever may append: it makes what is needed, and
-- nothing else.
-- +goose StatementBegin
CREATE FUNCTION extend_entries() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    head  bigint;
    last  record;
    since bigint;
    began timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('brevet/partitions/' || current_schema(), 0));
    LOOP
        SELECT h.size INTO head FROM ledger_head AS h;
        SELECT p.first, p.beyond - p.first AS size INTO last FROM entry_partitions AS p ORDER BY p.first DESC LIMIT 1;
        EXIT WHEN head <= last.first;
        SELECT coalesce(max(p.first), 0) INTO since FROM entry_partitions AS p WHERE p.first < last.first;
        SELECT e.index, e.time INTO since, began FROM entries AS e WHERE e.index >= since ORDER BY e.index LIMIT 1;
        PERFORM add_partition(partition_size(head - coalesce(since, 0), clock_timestamp() - began, last.size));
    END LOOP;
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION extend_entries FROM PUBLIC;
GRANT EXECUTE ON FUNCTION extend_entries TO brevet_broker;

-- The index has no gaps and nothing lies ahead of the head, whoever appends: what a statement inserts are exactly the
-- entries that it moved the head over. What begins has not begun in another partition. That entries were dropped, only the owner says.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION entries_reach_head() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lowest  bigint;
    highest bigint;
    added   bigint;
    pruned  bigint;
BEGIN
    SELECT min(index), max(index), count(*), count(*) FILTER (WHERE kind = 'ledger.pruned')
    INTO lowest, highest, added, pruned FROM added_entries;
    IF added = 0 THEN
        RETURN NULL;
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
    IF pruned > 0 AND NOT pg_has_role((SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RAISE EXCEPTION 'nobody but the owner drops entries' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
CREATE TRIGGER entries_reach_head AFTER INSERT ON entries
    REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION entries_reach_head();

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION head_counts_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size > 0 AND NOT EXISTS (SELECT FROM entries AS e WHERE e.index = NEW.size - 1)
        OR EXISTS (SELECT FROM entries AS e WHERE e.index = NEW.size) THEN
        RAISE EXCEPTION 'the head counts % entries, which is not how many there are', NEW.size
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION issuances_have_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM added_issuances AS a
        WHERE NOT EXISTS (SELECT FROM entries AS e WHERE e.index = a.entry_index AND e.id = a.id)) THEN
        RAISE EXCEPTION 'no entry begins the request' USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER issuances_have_entries AFTER INSERT ON issuances
    REFERENCING NEW TABLE AS added_issuances FOR EACH STATEMENT EXECUTE FUNCTION issuances_have_entries();

-- +goose StatementBegin
CREATE FUNCTION has_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM entries AS e
        WHERE e.index = NEW.entry_index AND (TG_TABLE_NAME = 'webhook_notices' OR e.id = (to_jsonb(NEW) ->> 'command')::uuid)) THEN
        RAISE EXCEPTION 'there is no such entry as this row of % names', TG_TABLE_NAME USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER task_ends_have_entries AFTER INSERT OR UPDATE ON task_ends FOR EACH ROW EXECUTE FUNCTION has_entry();
CREATE TRIGGER quarantines_have_entries AFTER INSERT ON quarantines FOR EACH ROW EXECUTE FUNCTION has_entry();
CREATE TRIGGER webhook_notices_have_entries AFTER INSERT ON webhook_notices FOR EACH ROW EXECUTE FUNCTION has_entry();

-- Records go with their entries: the owner deletes them while it prunes, and says so. Nobody else has the right at all.
-- +goose StatementBegin
CREATE FUNCTION only_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' OR current_setting('brevet.pruning', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TRIGGER issuances_are_kept ON issuances;
CREATE TRIGGER issuances_are_kept BEFORE DELETE OR TRUNCATE ON issuances FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();
DROP TRIGGER votes_are_kept ON votes;
CREATE TRIGGER votes_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON votes FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();
DROP TRIGGER task_ends_are_kept ON task_ends;
CREATE TRIGGER task_ends_are_kept BEFORE DELETE OR TRUNCATE ON task_ends FOR EACH STATEMENT EXECUTE FUNCTION only_pruned();
-- With each record it is looked whether another names it.
DROP INDEX issuances_approves;
CREATE INDEX issuances_approves ON issuances (approves) WHERE approves IS NOT NULL;
CREATE INDEX issuances_by_parent ON issuances (parent) WHERE parent IS NOT NULL;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
    size bigint;
BEGIN
    FOREACH ours IN ARRAY ARRAY['partition_size', 'guard_partition', 'add_partition', 'extend_entries', 'issuances_have_entries',
        'has_entry', 'only_pruned', 'entries_reach_head', 'head_counts_entries'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
    SELECT greatest(4096, (h.size / 256 + 1) * 256) INTO size FROM ledger_head AS h;
    PERFORM guard_partition('entries_0');
    EXECUTE format('ALTER TABLE entries ATTACH PARTITION entries_0 FOR VALUES FROM (0) TO (%s)', size);
    PERFORM extend_entries();
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once entries were dropped: that is for good. What lies in later partitions is written into the first.
DROP INDEX issuances_by_parent;
DROP INDEX issuances_approves;
CREATE INDEX issuances_approves ON issuances (approves) WHERE approves IS NOT NULL AND status = 'issued';
DROP TRIGGER task_ends_are_kept ON task_ends;
CREATE TRIGGER task_ends_are_kept BEFORE DELETE OR TRUNCATE ON task_ends FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
DROP TRIGGER votes_are_kept ON votes;
CREATE TRIGGER votes_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON votes FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
DROP TRIGGER issuances_are_kept ON issuances;
CREATE TRIGGER issuances_are_kept BEFORE DELETE OR TRUNCATE ON issuances FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
DROP FUNCTION only_pruned;
DROP TRIGGER webhook_notices_have_entries ON webhook_notices;
DROP TRIGGER quarantines_have_entries ON quarantines;
DROP TRIGGER task_ends_have_entries ON task_ends;
DROP FUNCTION has_entry;
DROP TRIGGER issuances_have_entries ON issuances;
DROP FUNCTION issuances_have_entries;
DROP FUNCTION extend_entries;
DROP FUNCTION add_partition;
DROP FUNCTION guard_partition;
DROP FUNCTION partition_size;
-- +goose StatementBegin
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT p.name FROM entry_partitions AS p ORDER BY p.first LOOP
        EXECUTE format('ALTER TABLE entries DETACH PARTITION %I', name);
        EXECUTE format('DROP TRIGGER %I ON %I', name || '_append_only', name);
        IF name <> 'entries_0' THEN
            EXECUTE format('INSERT INTO entries_0 SELECT * FROM %I', name);
            EXECUTE format('DROP TABLE %I', name);
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd
DROP VIEW entry_partitions;
DROP TABLE entries;
ALTER TABLE entries_0 RENAME TO entries;
ALTER INDEX entries_0_pkey RENAME TO entries_pkey;
ALTER INDEX entries_0_id_index_key RENAME TO entries_of_record;
ALTER INDEX entries_0_index_idx RENAME TO entries_to_revoke;
DROP INDEX entries_0_index_idx1;
DROP INDEX entries_0_index_idx2;
DROP INDEX entries_0_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used', 'approval.vote', 'approval.remembered',
    'approval.withdrawn');
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected'));
GRANT SELECT, INSERT ON entries TO brevet_broker;
GRANT SELECT ON entries TO brevet_auditor;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION entries_reach_head() RETURNS trigger LANGUAGE plpgsql AS $$
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
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION head_counts_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size <> (SELECT coalesce(max(index), -1) + 1 FROM entries) THEN
        RAISE EXCEPTION 'the head counts % entries, which is not how many there are', NEW.size
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
CREATE TRIGGER entries_reach_head AFTER INSERT ON entries
    REFERENCING NEW TABLE AS added_entries FOR EACH STATEMENT EXECUTE FUNCTION entries_reach_head();
ALTER TABLE issuances ADD CONSTRAINT issuances_entry FOREIGN KEY (id, entry_index) REFERENCES entries (id, index);
ALTER TABLE task_ends ADD CONSTRAINT task_ends_entry FOREIGN KEY (command, entry_index) REFERENCES entries (id, index);
ALTER TABLE quarantines ADD CONSTRAINT quarantines_entry FOREIGN KEY (command, entry_index) REFERENCES entries (id, index);
ALTER TABLE people ADD CONSTRAINT people_entry FOREIGN KEY (entry, entry_index) REFERENCES entries (id, index);
ALTER TABLE votes ADD CONSTRAINT votes_entry FOREIGN KEY (request, entry_index) REFERENCES entries (id, index);
ALTER TABLE catalogue_changes ADD CONSTRAINT catalogue_changes_entry FOREIGN KEY (id, entry_index) REFERENCES entries (id, index);
ALTER TABLE webhook_notices ADD CONSTRAINT webhook_notices_entry_index_fkey FOREIGN KEY (entry_index) REFERENCES entries (index);
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['entries_reach_head', 'head_counts_entries'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd
