-- +goose Up

-- may_move says the same as before. Its names are read now and not when it is called, so that it needs no search_path, with which
-- PostgreSQL would read it anew for each statement, twice, and could not make it part of one.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION may_move(was text, becomes text, kind text, leased boolean, static boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE was
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
    ELSE false END;
-- +goose StatementEnd

-- +goose Down
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
