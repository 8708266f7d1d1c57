-- +goose Up

-- The place of a token in the list that tells whether it was ended. No two have one place.
ALTER TABLE issuances
    ADD COLUMN status_list uuid,
    ADD COLUMN status_index integer,
    ADD CONSTRAINT issuances_status_list CHECK (CASE WHEN status_list IS NULL THEN status_index IS NULL
        ELSE (credential_kind = 'jwt' AND status_index BETWEEN 0 AND 8191) IS TRUE END);
CREATE UNIQUE INDEX issuances_status_list ON issuances (status_list, status_index) WHERE status_list IS NOT NULL;

-- +goose Down
DROP INDEX issuances_status_list;
ALTER TABLE issuances
    DROP CONSTRAINT issuances_status_list,
    DROP COLUMN status_index,
    DROP COLUMN status_list;
