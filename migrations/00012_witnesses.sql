-- +goose Up

-- What witnesses have said to checkpoints, each one line as in c2sp.org/tlog-cosignature. Appended to its checkpoint's note,
-- it makes one that both have signed. A witness goes by the name that the operator gave it.
CREATE TABLE cosignatures (
    size    bigint NOT NULL REFERENCES checkpoints,
    witness text NOT NULL CHECK (witness ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    line    text NOT NULL CHECK (line ~ '^— [^[:space:]+]+ [A-Za-z0-9+/]{102}==\n$' AND octet_length(line) <= 1024),
    time    timestamptz NOT NULL,
    PRIMARY KEY (size, witness)
);
CREATE TRIGGER cosignatures_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cosignatures
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

GRANT SELECT, INSERT ON cosignatures TO brevet_broker;
GRANT SELECT ON cosignatures TO brevet_auditor;

-- +goose Down
DROP TABLE cosignatures;
