-- +goose Up

-- The Merkle tree over the entries (RFC 6962), in tiles of eight levels as in c2sp.org/tlog-tiles. Only whole tiles are
-- kept: what is beyond them follows from the entries, and from the roots of the tiles below. Tiles of level 0 keep the
-- leaf hashes also when the entries are gone.
CREATE TABLE tree_tiles (
    level  smallint NOT NULL CHECK (level BETWEEN 0 AND 7),
    number bigint NOT NULL CHECK (number >= 0),
    hashes bytea NOT NULL CHECK (octet_length(hashes) = 256 * 32),
    root   bytea NOT NULL CHECK (octet_length(root) = 32),
    PRIMARY KEY (level, number)
);
CREATE TRIGGER tree_tiles_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tree_tiles
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The signed sizes of the log, each a note as in c2sp.org/tlog-checkpoint.
CREATE TABLE checkpoints (
    size bigint PRIMARY KEY CHECK (size > 0),
    root bytea NOT NULL CHECK (octet_length(root) = 32),
    time timestamptz NOT NULL,
    note text NOT NULL,
    -- What stands beside the note cannot say something else than the note: its second and third line.
    CONSTRAINT checkpoints_note CHECK (split_part(note, E'\n', 2) = size::text
        AND split_part(note, E'\n', 3) = encode(root, 'base64'))
);
CREATE TRIGGER checkpoints_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

-- The database itself takes the hashes of a tile from the entries, or from the tiles below it.
-- +goose StatementBegin
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
-- +goose StatementEnd
CREATE TRIGGER tree_tiles_take_hashes BEFORE INSERT ON tree_tiles FOR EACH ROW EXECUTE FUNCTION take_hashes();

-- A checkpoint is larger than all before it, and not larger than the ledger.
-- +goose StatementBegin
CREATE FUNCTION checkpoint_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.size <= (SELECT max(c.size) FROM checkpoints AS c) OR NEW.size > (SELECT h.size FROM ledger_head AS h) THEN
        RAISE EXCEPTION 'a checkpoint of % entries does not follow', NEW.size USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER checkpoints_grow BEFORE INSERT ON checkpoints FOR EACH ROW EXECUTE FUNCTION checkpoint_grows();

GRANT SELECT, INSERT ON tree_tiles, checkpoints TO brevet_broker;
GRANT SELECT ON tree_tiles, checkpoints TO brevet_auditor;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['take_hashes', 'checkpoint_grows'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE checkpoints;
DROP TABLE tree_tiles;
DROP FUNCTION checkpoint_grows;
DROP FUNCTION take_hashes;
