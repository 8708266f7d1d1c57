-- +goose Up

-- Whoever appends locks issuances before any other table that this changes: from here on nobody has one of them and waits for another.
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;

-- A public key is somebody's once too, whatever credential it goes by: else who registers another's as theirs could show that
-- person's signature for their own.
ALTER TABLE passkeys ADD CONSTRAINT passkeys_once UNIQUE (digest);

-- What is removed is looked for in the entries themselves: a row that says otherwise revives no passkey.
CREATE INDEX entries_of_removals ON entries (index) WHERE kind = 'passkey.removed';

-- may_register as it was, of a key that was nobody's before.
-- +goose StatementBegin
CREATE FUNCTION may_register(of text, named text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN may_register(of, named) AND NOT EXISTS (SELECT FROM passkeys AS k WHERE k.digest = key);
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION may_register(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION may_register(text, text, text) TO brevet_broker;

-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.may_register(text, text, text) SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- +goose Down
LOCK TABLE issuances IN SHARE ROW EXCLUSIVE MODE;
DROP FUNCTION may_register(text, text, text);
DROP INDEX entries_of_removals;
ALTER TABLE passkeys DROP CONSTRAINT passkeys_once;
