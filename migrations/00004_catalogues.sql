-- +goose Up
-- +goose StatementBegin

-- Catalogues of scopes, and who put which one in force.

-- catalogue_digest is the SHA-256 of a text with one line for each file: the SHA-256 of the file and its name, as sha256sum prints them.
CREATE FUNCTION catalogue_digest(names text[], contents bytea[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'sha256:' || encode(sha256(string_agg(
        convert_to(encode(sha256(f.content), 'hex') || '  ' || f.name || E'\n', 'UTF8'), ''::bytea
        ORDER BY f.name COLLATE "C")), 'hex')
    FROM unnest(names, contents) AS f (name, content)
$$;

-- The files of each catalogue, byte for byte.
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

-- What people did with catalogues: they proposed one as the version that follows its base, applied one, or rejected a proposal. A proposal
-- is open while its version is the next one and no other row names it. Nobody applies their own proposal. The first version has no actor:
-- Brevet itself applied it, from its configuration.
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

-- A change repeats its entry.
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
CREATE TRIGGER catalogue_changes_entry_says_so AFTER INSERT ON catalogue_changes
    FOR EACH ROW EXECUTE FUNCTION catalogue_entry_says_so();

-- The catalogue in force. Version 0 means that there is none yet.
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

-- The head and the changes move together, one version at a time. Both triggers run after the statement, so a statement may write both.
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
CREATE TRIGGER catalogue_head_follows AFTER UPDATE ON catalogue_head
    FOR EACH ROW EXECUTE FUNCTION catalogue_head_follows();

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
CREATE TRIGGER catalogue_change_counts AFTER INSERT ON catalogue_changes
    FOR EACH ROW EXECUTE FUNCTION catalogue_change_counts();

-- may_change_catalogue reports whether the change that an entry describes follows on the catalogue in force. The caller holds the ledger's
-- lock. The function is volatile, so it sees what was committed before that.
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

-- A request is void once another catalogue comes into force before people have decided and the sandbox has redeemed: then the credential
-- would not be what people were shown. The change itself says so, in one commit, however many requests wait. So no row and no entry of a
-- request repeats it. A later return to the earlier catalogue does not make the request valid again.

-- outdated reports whether a catalogue was applied after the entry with an index. It is volatile, so it sees what was committed before the
-- caller got the ledger's lock.
CREATE FUNCTION outdated(since bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM catalogue_changes AS c WHERE c.kind = 'applied' AND c.entry_index > since);
END $$;

-- is_void is outdated for a request that waits for people or to be redeemed.
CREATE FUNCTION is_void(asked uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM issuances AS i WHERE i.id = asked AND i.status IN ('pending', 'approved') AND outdated(i.entry_index));
END $$;

-- voided_by returns the version of the catalogue that made a request void, or NULL. A request that had expired by then stays expired.
CREATE FUNCTION voided_by(status text, since bigint, expires_at timestamptz) RETURNS bigint LANGUAGE sql STABLE
RETURN (
    SELECT c.version FROM catalogue_changes AS c
    WHERE voided_by.status IN ('pending', 'approved') AND c.kind = 'applied' AND c.entry_index > voided_by.since
        AND c.time < voided_by.expires_at + CASE voided_by.status WHEN 'approved' THEN interval '1 minute' ELSE '0' END
    ORDER BY c.entry_index LIMIT 1);

-- A void request does not move any more, and no approval is used after a change.
CREATE FUNCTION void_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF outdated(OLD.entry_index) THEN
        RAISE EXCEPTION 'request % is void: the catalogue has changed', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER issuances_void_stays BEFORE UPDATE ON issuances FOR EACH ROW
    WHEN (OLD.status IN ('pending', 'approved') OR NEW.redemptions > OLD.redemptions) EXECUTE FUNCTION void_stays();

-- +goose StatementEnd

-- +goose Down
-- Entries are permanent: this fails once there is one about a catalogue.
ALTER TABLE entries ADD CONSTRAINT entries_of_catalogues CHECK (kind NOT LIKE 'catalogue.%');
ALTER TABLE entries DROP CONSTRAINT entries_of_catalogues;
DROP TRIGGER issuances_void_stays ON issuances;
DROP FUNCTION may_change_catalogue, void_stays, voided_by, is_void, outdated;
DROP TABLE catalogue_head;
DROP TABLE catalogue_changes;
DROP TABLE catalogues;
DROP FUNCTION catalogue_change_counts, catalogue_head_follows, catalogue_entry_says_so, catalogue_digest;
