-- +goose Up
-- +goose StatementBegin

-- The ledger: an append-only log of every event in partitions, the Merkle tree over it, and the notes that sign the tree.

-- forbid_change refuses the operations of its trigger, to the owner too: only dropping the trigger gets around it.
CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;

-- only_pruned allows DELETE only while `brevet ledger prune` runs, which sets brevet.pruning. Only the owner has the right to delete
-- from these tables at all.
CREATE FUNCTION only_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' OR current_setting('brevet.pruning', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION '% on % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END $$;

-- The number of entries. Every append updates this row first, so its lock puts all appends in order. The low fillfactor leaves room in
-- the page for new versions of the row.
CREATE TABLE ledger_head (
    only_row boolean PRIMARY KEY DEFAULT true,
    size     bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO ledger_head (size) VALUES (0);
CREATE TRIGGER ledger_head_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON ledger_head
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- Every event. Entry n is leaf n of a Merkle tree (RFC 6962), so the index starts at 0 and has no gaps. id is that of the record that
-- the entry begins or moves. A refused call has an id of its own. kind and id repeat what the body says. follow_entries checks all that.
--
-- Old entries can be dropped by the partition. Issuances stay one table: every append and every check of a credential looks up a record
-- by its id or its sandbox, which is one step in one index, and would be one step in each partition's.
CREATE TABLE entries (
    index     bigint PRIMARY KEY,
    id        uuid NOT NULL,
    time      timestamptz NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    body      bytea NOT NULL,
    leaf_hash bytea NOT NULL,
    CONSTRAINT entries_of_record UNIQUE (id, index)
) PARTITION BY RANGE (index);

-- The kinds that are rare and looked up in the whole ledger.
CREATE INDEX entries_of_kind ON entries (kind, index)
    WHERE kind IN ('credentials.revoke', 'task.end', 'ledger.pruned', 'passkey.removed');

CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The head moves only to where the entries end, and never back.
CREATE FUNCTION head_counts_entries() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER head_counts_entries AFTER UPDATE ON ledger_head
    FOR EACH ROW EXECUTE FUNCTION head_counts_entries();

-- has_entry stands in for a foreign key to entries. A foreign key would block dropping a partition. Tables whose triggers read the
-- entry itself do not need it.
CREATE FUNCTION has_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM entries AS e
        WHERE e.index = NEW.entry_index AND (TG_TABLE_NAME = 'webhook_notices' OR e.id = (to_jsonb(NEW) ->> 'command')::uuid)) THEN
        RAISE EXCEPTION 'there is no such entry as this row of % names', TG_TABLE_NAME USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;

-- The partitions and their bounds: first is in the partition, beyond is not.
CREATE VIEW entry_partitions AS
SELECT c.relname::text AS name, (regexp_match(b.bounds, 'FROM \(''(\d+)''\)'))[1]::bigint AS first,
    (regexp_match(b.bounds, 'TO \(''(\d+)''\)'))[1]::bigint AS beyond
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid, LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) AS b
WHERE i.inhparent = 'entries'::regclass;

-- partition_size is the number of entries for the next partition: about a month of growth, given the entries added during a period
-- of at least a day. It is a power of two from 2^12 to 2^22, and at most eight times the size of the last partition.
CREATE FUNCTION partition_size(grown bigint, during interval, last bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT 1::bigint << least(22, greatest(12, least(
        ceil(log(2, greatest(grown, 1) * 2592000 / greatest(extract(epoch FROM during), 86400))),
        ceil(log(2, greatest(last, 1))) + 3)))::integer
$$;

-- guard_partition adds to a partition what it does not inherit: a record begins once, and nobody writes to the partition directly.
CREATE FUNCTION guard_partition(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX %I ON %I (id)
        WHERE kind = ''issuance.intent'' OR kind NOT LIKE ''issuance.%%'' AND kind NOT LIKE ''approval.%%''', name || '_one_beginning', name);
    EXECUTE format('CREATE TRIGGER %I BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()', name || '_append_only', name);
END $$;

-- add_partition creates a partition after the last one. Its bounds are those of tiles, so that dropping a partition splits no tile. Its
-- lock is one that a login which can only read cannot take, unlike an advisory lock.
CREATE FUNCTION add_partition(size bigint) RETURNS void LANGUAGE plpgsql AS $$
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

-- extend_entries keeps one empty partition ahead of the head. The broker may call it, and can create nothing else.
CREATE FUNCTION extend_entries() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
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

SELECT add_partition(4096);

-- The Merkle tree over the entries (RFC 6962), in tiles of eight levels as in c2sp.org/tlog-tiles. Only full tiles are stored: the rest
-- follows from the entries and from the roots of lower tiles. Tiles of level 0 keep the leaf hashes of entries that were pruned.
CREATE TABLE tree_tiles (
    level  smallint NOT NULL CHECK (level BETWEEN 0 AND 7),
    number bigint NOT NULL CHECK (number >= 0),
    hashes bytea NOT NULL CHECK (octet_length(hashes) = 256 * 32),
    root   bytea NOT NULL CHECK (octet_length(root) = 32),
    PRIMARY KEY (level, number)
);
CREATE TRIGGER tree_tiles_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tree_tiles
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The database itself takes a tile's hashes from the entries or from the tiles below, so no caller can supply wrong ones.
CREATE FUNCTION take_hashes() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER tree_tiles_take_hashes BEFORE INSERT ON tree_tiles FOR EACH ROW EXECUTE FUNCTION take_hashes();

-- Signed tree heads, each a note as in c2sp.org/tlog-checkpoint. The columns repeat the note's second and third line.
CREATE TABLE checkpoints (
    size bigint PRIMARY KEY CHECK (size > 0),
    root bytea NOT NULL CHECK (octet_length(root) = 32),
    time timestamptz NOT NULL,
    note text NOT NULL,
    CONSTRAINT checkpoints_note CHECK (split_part(note, E'\n', 2) = size::text
        AND split_part(note, E'\n', 3) = encode(root, 'base64'))
);
CREATE TRIGGER checkpoints_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- A checkpoint is larger than all earlier ones, and not larger than the ledger.
CREATE FUNCTION checkpoint_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size <= (SELECT max(c.size) FROM checkpoints AS c) OR NEW.size > (SELECT h.size FROM ledger_head AS h) THEN
        RAISE EXCEPTION 'a checkpoint of % entries does not follow', NEW.size USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER checkpoints_grow BEFORE INSERT ON checkpoints FOR EACH ROW EXECUTE FUNCTION checkpoint_grows();

-- The cosignatures of witnesses, one line each as in c2sp.org/tlog-cosignature. Appended to its checkpoint's note, a line gives a note
-- that both have signed. The operator chooses the witness's name.
CREATE TABLE cosignatures (
    size    bigint NOT NULL REFERENCES checkpoints,
    witness text NOT NULL CHECK (witness ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    line    text NOT NULL CHECK (line ~ '^— [^[:space:]+]+ [A-Za-z0-9+/]{102}==\n$' AND octet_length(line) <= 1024),
    time    timestamptz NOT NULL,
    PRIMARY KEY (size, witness)
);
CREATE TRIGGER cosignatures_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cosignatures
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- +goose StatementEnd

-- +goose Down
-- Entries are permanent: this fails once there is one.
ALTER TABLE entries ADD CONSTRAINT entries_empty CHECK (false);
DROP TABLE cosignatures;
DROP TABLE checkpoints;
DROP TABLE tree_tiles;
DROP VIEW entry_partitions;
DROP TABLE entries;
DROP TABLE ledger_head;
DROP FUNCTION checkpoint_grows, take_hashes, extend_entries, add_partition, guard_partition, partition_size, has_entry,
    head_counts_entries, only_pruned, forbid_change;
