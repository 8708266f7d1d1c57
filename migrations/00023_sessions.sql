-- +goose Up

-- Who is logged in to the console. A session is known by the SHA-256 of its cookie, and what it holds is sealed with a key that
-- is made from the cookie: whoever reads this table can neither be somebody nor see their login.
CREATE TABLE sessions (
    id   bytea PRIMARY KEY CHECK (octet_length(id) = 32),
    data bytea NOT NULL CHECK (octet_length(data) <= 65536),
    ends timestamptz NOT NULL
);
CREATE INDEX sessions_end ON sessions (ends);
GRANT SELECT, INSERT, UPDATE (data, ends), DELETE ON sessions TO brevet_broker;

-- +goose Down
DROP TABLE sessions;
