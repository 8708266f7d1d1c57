-- +goose Up

-- A one-shot token is spent by the first who is told that it is in force.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'issuance.used', 'approval.vote', 'approval.remembered',
    'approval.withdrawn');

ALTER TABLE issuances
    ADD COLUMN one_shot boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK (CASE decision
        WHEN 'deny' THEN status = 'denied' AND NOT one_shot
        WHEN 'pending' THEN status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed') AND NOT one_shot
        WHEN 'allow' THEN (status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
            'released', 'expired') OR status = 'used' AND one_shot) AND (NOT one_shot OR credential_kind = 'jwt')
        ELSE false END);

-- may_move is the state machine as before, and what is used. What that is of, issuances_state says.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'pending' THEN becomes IN ('pending', 'approved', 'rejected', 'withdrawn')
        WHEN 'approved' THEN becomes IN ('redeemed', 'rejected', 'withdrawn')
        WHEN 'redeemed' THEN becomes = 'redeemed'
        WHEN 'intent' THEN becomes IN ('issued', 'failed', 'unknown', 'compensated', 'revoking')
        WHEN 'unknown' THEN becomes = 'compensated'
        WHEN 'issued' THEN CASE becomes
            WHEN 'failed' THEN kind = 'jwt'
            WHEN 'used' THEN kind = 'jwt'
            WHEN 'revoking' THEN leased
            WHEN 'expired' THEN leased
            WHEN 'revoked' THEN NOT leased AND NOT static
            WHEN 'released' THEN NOT leased AND NOT static
            ELSE false END
        WHEN 'revoking' THEN becomes IN ('revoked', 'released')
        ELSE false END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.may_move SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once there are entries or records of what it takes back: they are for good.
ALTER TABLE entries DROP CONSTRAINT entries_kind_check, ADD CONSTRAINT entries_kind_check CHECK (kind IN (
    'request.denied', 'request.pending', 'issuance.intent', 'call.refused',
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired',
    'task.end', 'quarantine.add', 'quarantine.remove', 'credentials.revoke',
    'approval.vote', 'approval.remembered', 'approval.withdrawn', 'person.seen',
    'catalogue.proposed', 'catalogue.applied', 'catalogue.rejected'));
DROP INDEX entries_one_beginning;
CREATE UNIQUE INDEX entries_one_beginning ON entries (id) WHERE kind NOT IN (
    'issuance.issued', 'issuance.failed', 'issuance.unknown', 'issuance.compensated', 'issuance.revoking',
    'issuance.revoked', 'issuance.released', 'issuance.expired', 'approval.vote', 'approval.remembered',
    'approval.withdrawn');
ALTER TABLE issuances
    DROP CONSTRAINT issuances_state,
    ADD CONSTRAINT issuances_state CHECK (CASE decision
        WHEN 'deny' THEN status = 'denied'
        WHEN 'pending' THEN status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed')
        WHEN 'allow' THEN status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked',
            'released', 'expired')
        ELSE false END),
    DROP COLUMN one_shot;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'pending' THEN becomes IN ('pending', 'approved', 'rejected', 'withdrawn')
        WHEN 'approved' THEN becomes IN ('redeemed', 'rejected', 'withdrawn')
        WHEN 'redeemed' THEN becomes = 'redeemed'
        WHEN 'intent' THEN becomes IN ('issued', 'failed', 'unknown', 'compensated', 'revoking')
        WHEN 'unknown' THEN becomes = 'compensated'
        WHEN 'issued' THEN CASE becomes
            WHEN 'failed' THEN kind = 'jwt'
            WHEN 'revoking' THEN leased
            WHEN 'expired' THEN leased
            WHEN 'revoked' THEN NOT leased AND NOT static
            WHEN 'released' THEN NOT leased AND NOT static
            ELSE false END
        WHEN 'revoking' THEN becomes IN ('revoked', 'released')
        ELSE false END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.may_move SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
